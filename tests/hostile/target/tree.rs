//! Something of everything that an image can hold.

use journalfs::fs::attr::Caller;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;

const ROOT: Caller = Caller::ROOT;

fn file(fs: &Fs, parent: InodeNr, name: &str) -> InodeNr {
    fs.mknod(parent, name.as_bytes(), 0o100_644, 0, 0, &ROOT).unwrap().nr
}

fn write(fs: &Fs, nr: InodeNr, at: u64, len: usize) {
    fs.write(nr, at, &vec![0x66; len], &ROOT, false).unwrap();
}

/// Fills an empty file system.
pub(crate) fn fill(fs: &Fs) {
    let root = InodeNr::ROOT;
    let small = file(fs, root, "small");
    write(fs, small, 0, 700);
    let big = file(fs, root, "big");
    write(fs, big, 0, 300_000);
    // Mapped by three levels of indirect blocks, where there are any.
    write(fs, big, 200 << 20, 3000);
    let pieces = file(fs, root, "pieces");
    for i in 0..200 {
        write(fs, pieces, i * 2 * 4096, 900);
    }
    let unwritten = file(fs, root, "unwritten");
    let _ = fs.fallocate(unwritten, 0, 0, 50_000, &ROOT);
    fs.symlink(root, b"link", b"small", &ROOT).unwrap();
    fs.symlink(root, b"long", &[b'x'; 300], &ROOT).unwrap();
    fs.mknod(root, b"fifo", 0o010_644, 0, 0, &ROOT).unwrap();
    fs.mknod(root, b"null", 0o020_666, 0x103, 0, &ROOT).unwrap();
    attributes(fs, small, big);
    let dir = fs.mkdir(root, b"dir", 0o755, 0, &ROOT).unwrap().nr;
    for i in 0..80 {
        fs.link(small, dir, format!("{i:0>120}").as_bytes(), &ROOT).unwrap();
    }
    let mut parent = dir;
    for name in ["a", "b", "c"] {
        parent = fs.mkdir(parent, name.as_bytes(), 0o700, 0, &ROOT).unwrap().nr;
        file(fs, parent, "leaf");
    }
    fs.sync().unwrap();
}

fn attributes(fs: &Fs, small: InodeNr, big: InodeNr) {
    fs.setxattr(small, b"user.small", b"value", 0, &ROOT).unwrap();
    fs.setxattr(big, b"user.large", &[b'v'; 400], 0, &ROOT).unwrap();
    fs.setxattr(big, b"trusted.other", b"", 0, &ROOT).unwrap();
    // Owner, a named user, group, mask and others.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 4, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    fs.setxattr(small, b"system.posix_acl_access", &acl, 0, &ROOT).unwrap();
}

/// Changes what [`fill`] made, for a log to hold.
pub(crate) fn change(fs: &Fs) {
    let root = InodeNr::ROOT;
    let dir = fs.lookup(root, b"dir").unwrap().nr;
    let big = fs.lookup(root, b"big").unwrap().nr;
    for i in 0..20 {
        fs.unlink(dir, format!("{i:0>120}").as_bytes()).unwrap();
    }
    fs.truncate(big, 10_000).unwrap();
    let new = file(fs, dir, "new");
    write(fs, new, 0, 40_000);
    fs.rename(dir, b"new", root, b"moved", journalfs::fs::RenameFlags::empty(), &ROOT).unwrap();
    fs.removexattr(big, b"user.large", &ROOT).unwrap();
    fs.sync().unwrap();
    // Frees blocks that the log has copies of.
    let short = fs.mkdir(root, b"short", 0o755, 0, &ROOT).unwrap().nr;
    file(fs, short, "f");
    fs.sync().unwrap();
    fs.unlink(short, b"f").unwrap();
    fs.rmdir(root, b"short").unwrap();
    // An orphan.
    let open = file(fs, root, "open");
    write(fs, open, 0, 20_000);
    fs.open(open, 0).unwrap();
    fs.sync().unwrap();
    fs.unlink(root, b"open").unwrap();
    fs.sync().unwrap();
}
