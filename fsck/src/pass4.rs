//! Pass 4: link counts.

use crate::check::Check;
use journalfs::format::features::RoCompat;

/// A directory with more links than this may say 1 instead (dir_nlink).
const LINKS_MAX: u32 = 65_000;

pub(crate) fn links(check: &mut Check<'_>) {
    let dir_nlink = check.image.geometry.features.ro_compat.contains(RoCompat::DIR_NLINK);
    let mut wrong = Vec::new();
    for (nr, info) in check.inodes.iter().filter(|(_, info)| !info.hidden) {
        if info.entries == 0 {
            wrong.push((*nr, format!("has {} links, but no name", info.links)));
        } else if info.links as u32 != info.entries
            && !(dir_nlink
                && info.links == 1
                && info.entries >= LINKS_MAX
                && check.directories.contains_key(nr))
        {
            wrong.push((*nr, format!("has {} links, but {} names", info.links, info.entries)));
        }
    }
    wrong.sort_unstable();
    for (nr, text) in wrong {
        check.report.inode(nr, text);
    }
}
