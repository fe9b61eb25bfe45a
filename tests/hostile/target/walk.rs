//! A bounded walk through a mounted file system: all that a program can look at.

use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use journalfs::Error;

const INODES_MAX: usize = 48;
const ENTRIES_MAX: usize = 200;
const READ_BYTES: u32 = 8192;

/// A name that was found.
pub(crate) struct Found {
    pub(crate) parent: InodeNr,
    pub(crate) nr: InodeNr,
    pub(crate) name: Vec<u8>,
}

/// Looks at everything, and returns some of what is there; the root is first.
pub(crate) fn walk(fs: &Fs) -> Vec<Found> {
    let mut found = vec![Found { parent: InodeNr::ROOT, nr: InodeNr::ROOT, name: b".".to_vec() }];
    let mut at = 0;
    while at < found.len() {
        let nr = found[at].nr;
        at += 1;
        let Ok(attr) = fs.getattr(nr) else { continue };
        look(fs, nr, attr.size);
        let (mut entries, mut last) = (0, None);
        let listed = fs.readdir(nr, 0, &mut |entry| {
            assert!(last.is_none_or(|last| last < entry.next_cookie), "a listing's cookies don't grow");
            last = Some(entry.next_cookie);
            let dots = matches!(entry.name, b"." | b"..");
            if !dots && found.len() < INODES_MAX && entries % 9 < 4 {
                found.push(Found { parent: nr, nr: entry.nr, name: entry.name.to_vec() });
            }
            entries += 1;
            entries < ENTRIES_MAX
        });
        if listed.is_ok() {
            let _ = fs.lookup(nr, b"..");
        }
    }
    for entry in &found[1..] {
        match fs.lookup(entry.parent, &entry.name) {
            // Perhaps another inode than the listing's: a damaged directory may have a name twice.
            Ok(_) | Err(Error::Posix(_) | Error::Corrupt { .. } | Error::Io { .. }) => {}
            Err(error) => panic!("lookup: {error:?}"),
        }
    }
    let _ = fs.statfs();
    found
}

fn look(fs: &Fs, nr: InodeNr, size: u64) {
    let _ = fs.readlink(nr);
    for at in [0, size / 2, size.saturating_sub(5000), 12 * 1024, 300 << 20, size] {
        if let Ok(bytes) = fs.read(nr, at, READ_BYTES) {
            let left = size.saturating_sub(at).min(u64::from(READ_BYTES));
            assert!(bytes.to_vec().len() as u64 <= left, "more bytes than the file has");
        }
    }
    let _ = fs.seek(nr, 0, libc::SEEK_DATA);
    let _ = fs.seek(nr, 0, libc::SEEK_HOLE);
    let names = fs.listxattr(nr).unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).take(20) {
        let _ = fs.getxattr(nr, name);
    }
    let _ = fs.getxattr(nr, b"system.posix_acl_access");
    let _ = fs.getxattr(nr, b"system.posix_acl_default");
}
