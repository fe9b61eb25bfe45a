//! The paths of inodes that have problems.

use crate::blocks::{walk, Runs};
use crate::check::Check;
use journalfs::format::dirent;
use journalfs::fs::inode_table;
use journalfs::units::InodeNr;
use std::collections::BTreeMap;

/// Longer chains of parents than this are cut.
const DEPTH_MAX: usize = 200;

/// Adds to each problem with an inode the path that leads there, where there is one.
pub(crate) fn resolve(check: &mut Check<'_>) {
    let mut known: BTreeMap<InodeNr, Option<String>> = BTreeMap::new();
    let wanted: Vec<InodeNr> = check.report.problems.iter().filter_map(|p| p.inode).collect();
    let files: Vec<InodeNr> =
        wanted.iter().copied().filter(|nr| !check.directories.contains_key(nr)).collect();
    let parents = if files.is_empty() { BTreeMap::new() } else { parents_of(check, &files) };
    for nr in wanted {
        known.entry(nr).or_insert_with(|| path(check, &parents, nr));
    }
    for problem in &mut check.report.problems {
        let Some(nr) = problem.inode else { continue };
        let path = known.get(&nr).cloned().flatten().map(|path| format!(" ({path})")).unwrap_or_default();
        problem.text = format!("inode {nr}{path}: {}", problem.text);
    }
}

/// The first directory that names each of these files.
fn parents_of(check: &Check<'_>, files: &[InodeNr]) -> BTreeMap<InodeNr, InodeNr> {
    let mut parents = BTreeMap::new();
    for directory in check.directories.keys() {
        let _ = for_entries(check, *directory, &mut |nr, _| {
            if files.contains(&nr) {
                parents.entry(nr).or_insert(*directory);
            }
            parents.len() == files.len()
        });
    }
    parents
}

fn path(check: &Check<'_>, parents: &BTreeMap<InodeNr, InodeNr>, nr: InodeNr) -> Option<String> {
    let mut names = Vec::new();
    let mut at = nr;
    while at != InodeNr::ROOT && names.len() < DEPTH_MAX {
        let parent = match check.directories.get(&at) {
            Some(directory) => directory.parent?,
            None => *parents.get(&at)?,
        };
        let mut found = None;
        let _ = for_entries(check, parent, &mut |target, name| {
            if target == at && !matches!(name, b"." | b"..") {
                found = Some(String::from_utf8_lossy(name).into_owned());
            }
            found.is_some()
        });
        names.push(found?);
        at = parent;
    }
    names.reverse();
    Some(format!("/{}", names.join("/")))
}

/// Calls `f` on each entry until it says that it has enough.
fn for_entries(
    check: &Check<'_>,
    nr: InodeNr,
    f: &mut dyn FnMut(InodeNr, &[u8]) -> bool,
) -> journalfs::Result<()> {
    let image = check.image;
    let raw = inode_table::read(image, &image.geometry, nr)?;
    let mut runs = Runs::default();
    if raw.maps_blocks() {
        walk(image, nr, &raw, &mut runs)?;
    }
    for place in runs.0.iter().flat_map(|(_, range)| range.iter()) {
        let block = image.read(place)?;
        for entry in dirent::entries(&block, block.len()).map_while(Result::ok).filter(dirent::Entry::in_use)
        {
            if f(InodeNr(entry.inode), entry.name) {
                return Ok(());
            }
        }
    }
    Ok(())
}
