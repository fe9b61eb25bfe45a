//! Pass 3: every directory can be reached from the root.

use crate::check::Check;
use journalfs::units::InodeNr;
use std::collections::HashSet;

pub(crate) fn connections(check: &mut Check<'_>) {
    let mut reached: HashSet<InodeNr> = HashSet::from([InodeNr::ROOT]);
    if !check.directories.contains_key(&InodeNr::ROOT) {
        check.report.inode(InodeNr::ROOT, "is not a directory, but should be the root");
    }
    for (nr, directory) in &check.directories {
        let parent = if *nr == InodeNr::ROOT { Some(InodeNr::ROOT) } else { directory.parent };
        if let (Some(parent), Some(dot_dot)) = (parent, directory.dot_dot) {
            if parent != dot_dot {
                check
                    .report
                    .inode(*nr, format!("its .. names inode {dot_dot}, but it is in directory {parent}"));
            }
        }
        // Each directory has one parent, so the way up is a line; it ends at what was reached before, or is a ring.
        let mut way = HashSet::new();
        let mut at = *nr;
        while !reached.contains(&at) && way.insert(at) {
            match check.directories.get(&at).and_then(|d| d.parent) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        if reached.contains(&at) {
            reached.extend(way);
        } else if !check.inodes.get(nr).is_some_and(|info| info.hidden) {
            check.report.inode(*nr, "is a directory that can't be reached from the root");
        }
    }
}
