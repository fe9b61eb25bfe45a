//! The attributes of inodes in images that mke2fs made, checked by e2fsck (nothing here without them).

use super::*;
use crate::cache::BlockCache;
use crate::device::file::FileDevice;
use crate::format::xattr::{ACL_DEFAULT, INDEX_TRUSTED, INDEX_USER};
use crate::format::Superblock;
use crate::journal::Journal;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::process::Command;

const FIRST: InodeNr = InodeNr(12);
const SECOND: InodeNr = InodeNr(13);

struct Image {
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn run(command: &mut Command) -> Option<(bool, String)> {
    let output = command.output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

impl Image {
    /// An image with two empty files, inodes 12 and 13.
    fn make(options: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut mke2fs = Command::new("mke2fs");
        let made = run(mke2fs.args(["-qF", "-O", "^has_journal"]).args(options).arg(&path).arg("4M"));
        let Some((true, _)) = made else {
            println!("skipped: no usable mke2fs");
            return None;
        };
        let script = "write /dev/null a\nwrite /dev/null b\n";
        std::fs::write(dir.path().join("script"), script).unwrap();
        run(Command::new("debugfs").arg("-wf").arg(dir.path().join("script")).arg(&path))?;
        Some(Self { path, _dir: dir })
    }

    fn check(&self) {
        let (clean, text) = run(Command::new("e2fsck").arg("-fn").arg(&self.path)).unwrap();
        assert!(clean, "{text}");
    }

    fn debugfs(&self, command: &str) -> String {
        run(Command::new("debugfs").args(["-R", command]).arg(&self.path)).unwrap().1
    }

    fn write(&self, command: &str) {
        run(Command::new("debugfs").args(["-w", "-R", command]).arg(&self.path)).unwrap();
    }

    fn mount(&self) -> Mounted {
        let device = Arc::new(FileDevice::open(&self.path, false, false).unwrap());
        let bytes = std::fs::read(&self.path).unwrap();
        let superblock = Superblock::decode(&bytes[1024..2048]).unwrap();
        let geometry = Geometry::new(&superblock);
        let journal = Arc::new(Journal::without_log(device.clone(), geometry.block_bytes));
        let cache = BlockCache::new(device, journal.clone(), geometry.block_bytes, 1 << 20);
        let allocator = Arc::new(Allocator::open(&cache, &geometry, 0, &[]).unwrap());
        journal.set_observer(allocator.clone());
        Mounted { geometry, allocator, cache }
    }
}

struct Mounted {
    geometry: Geometry,
    allocator: Arc<Allocator>,
    cache: BlockCache,
}

impl Mounted {
    fn raw(&self, nr: InodeNr) -> RawInode {
        inode_table::read(&self.cache, &self.geometry, nr).unwrap()
    }

    fn change<R>(
        &self,
        nr: InodeNr,
        mut f: impl FnMut(&mut Handle<'_>, &Allocator, &mut RawInode) -> Result<R>,
    ) -> Result<R> {
        let raw = self.raw(nr);
        let (_, result) = self.cache.update(10, |h| f(h, &self.allocator, &mut raw.clone()))?;
        Ok(result)
    }

    fn set(&self, nr: InodeNr, name: Name<'_>, value: &[u8], mode: Mode) -> Result<()> {
        self.change(nr, |h, allocator, raw| set(h, allocator, nr, raw, name, value, mode))
    }

    fn remove(&self, nr: InodeNr, name: Name<'_>) -> bool {
        self.change(nr, |h, allocator, raw| remove(h, allocator, nr, raw, name)).unwrap()
    }

    fn get(&self, nr: InodeNr, name: Name<'_>) -> Option<Vec<u8>> {
        get(&self.cache, &self.geometry, nr, &self.raw(nr), name).unwrap()
    }

    fn all(&self, nr: InodeNr) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let areas = Areas::read(&self.cache, &self.geometry, nr, &self.raw(nr)).unwrap();
        let pair = |a: AttributeRef<'_>| match a.value {
            ValueRef::Bytes(value) => (a.name.full().unwrap(), value.to_vec()),
            ValueRef::Inode { .. } => panic!("no inode values here"),
        };
        areas.all().unwrap().into_iter().map(pair).collect()
    }

    fn commit(&self) {
        self.cache.journal().commit(self.cache.journal().running_tid()).unwrap();
    }
}

fn user(suffix: &[u8]) -> Name<'_> {
    Name { index: INDEX_USER, suffix }
}

#[test]
fn small_values_live_in_the_inode_and_large_ones_in_a_block_that_goes_when_it_is_empty() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024", "-I", "256"]) else { return };
    let fs = image.mount();
    let free = fs.allocator.free_blocks();
    fs.set(FIRST, user(b"small"), b"here", Mode::Any).unwrap();
    assert_eq!((fs.raw(FIRST).file_acl.0, fs.raw(FIRST).blocks), (0, 0));
    fs.set(FIRST, user(b"large"), &[7; 500], Mode::Any).unwrap();
    assert_eq!(fs.raw(FIRST).blocks, 2);
    assert!(fs.set(FIRST, user(b"third"), &[7; 480], Mode::Any).unwrap_err().is(libc::ENOSPC));
    // A name moves between the areas as its value's size asks.
    fs.set(FIRST, user(b"small"), &[9; 300], Mode::Any).unwrap();
    fs.set(FIRST, ACL_DEFAULT, b"acl", Mode::Any).unwrap();
    fs.commit();
    image.check();
    assert!(image.debugfs("ea_list <12>").contains("user.large (500)"));
    assert_eq!(fs.all(FIRST).len(), 3);
    fs.set(FIRST, user(b"small"), b"1", Mode::Replace).unwrap();
    assert!(fs.remove(FIRST, user(b"large")));
    assert!(!fs.remove(FIRST, user(b"large")));
    assert_eq!((fs.raw(FIRST).file_acl.0, fs.raw(FIRST).blocks), (0, 0));
    fs.commit();
    assert_eq!(fs.allocator.free_blocks(), free);
    assert_eq!(fs.get(FIRST, user(b"small")).unwrap(), b"1");
    image.check();
}

#[test]
fn create_and_replace_are_honoured() {
    let Some(image) = Image::make(&["-t", "ext3", "-b", "1024", "-I", "128"]) else { return };
    let fs = image.mount();
    assert!(fs.set(FIRST, user(b"a"), b"1", Mode::Replace).unwrap_err().is(libc::ENODATA));
    fs.set(FIRST, user(b"a"), b"1", Mode::Create).unwrap();
    assert!(fs.set(FIRST, user(b"a"), b"1", Mode::Create).unwrap_err().is(libc::EEXIST));
    // A 128-byte inode has no room: everything is in the block.
    assert_ne!(fs.raw(FIRST).file_acl.0, 0);
    let long = [b'n'; 256];
    assert!(fs.set(FIRST, user(&long), b"1", Mode::Any).unwrap_err().is(libc::ERANGE));
    fs.set(FIRST, user(&long[..255]), b"", Mode::Any).unwrap();
    fs.commit();
    image.check();
}

#[test]
fn a_shared_block_is_copied_by_the_first_who_changes_it() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024", "-I", "128", "-O", "metadata_csum"]) else {
        return;
    };
    let fs = image.mount();
    fs.set(FIRST, user(b"a"), b"1", Mode::Any).unwrap();
    fs.set(FIRST, user(b"b"), b"2", Mode::Any).unwrap();
    // As the kernel shares: the second inode refers to the same block.
    let shared = fs.raw(FIRST).file_acl;
    fs.change(SECOND, |h, allocator, raw| {
        let block = h.modify(shared)?;
        xattr::set_refcount(block, 2);
        xattr::seal_block(
            block,
            shared,
            allocator.geometry().has_csum().then_some(allocator.geometry().csum_seed),
        );
        (raw.file_acl, raw.blocks) = (shared, 2);
        inode_table::write(h, allocator.geometry(), SECOND, raw)
    })
    .unwrap();
    fs.commit();
    image.check();
    fs.set(SECOND, user(b"a"), b"changed", Mode::Any).unwrap();
    assert_ne!(fs.raw(SECOND).file_acl, shared);
    assert_eq!(fs.get(FIRST, user(b"a")).unwrap(), b"1");
    assert_eq!(fs.get(SECOND, user(b"b")).unwrap(), b"2");
    fs.commit();
    image.check();
    fs.change(FIRST, |h, allocator, raw| {
        drop_all(h, allocator, FIRST, raw)?;
        inode_table::write(h, allocator.geometry(), FIRST, raw)
    })
    .unwrap();
    assert_eq!((fs.raw(FIRST).file_acl.0, fs.raw(FIRST).blocks), (0, 0));
    fs.commit();
    image.check();
}

#[test]
fn attributes_of_other_writers_are_read_and_damage_is_named() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024", "-I", "256"]) else { return };
    image.write("ea_set <12> user.small there");
    image.write(
        "ea_set <12> trusted.big \"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"",
    );
    let fs = image.mount();
    assert_eq!(fs.get(FIRST, user(b"small")).unwrap(), b"there");
    let big = Name { index: INDEX_TRUSTED, suffix: b"big" };
    assert_eq!(fs.get(FIRST, big).unwrap().len(), 70);
    let block = fs.raw(FIRST).file_acl;
    assert_ne!(block.0, 0);
    drop(fs);
    let mut bytes = std::fs::read(&image.path).unwrap();
    bytes[block.0 as usize * 1024 + 40] ^= 1;
    std::fs::write(&image.path, bytes).unwrap();
    let fs = image.mount();
    let error = get(&fs.cache, &fs.geometry, FIRST, &fs.raw(FIRST), big).unwrap_err();
    assert!(error.to_string().contains(&format!("attribute block at block {block}")), "{error}");
}

/// Runs a shell script in the image's root, mounted by the kernel. `None`: the kernel can't be had here.
fn in_kernel(image: &Image, script: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let mounted =
        run(Command::new("mount").args(["-o", "loop,acl,user_xattr"]).arg(&image.path).arg(dir.path()));
    let Some((true, _)) = mounted else {
        println!("skipped: no kernel mount of an image here");
        return None;
    };
    let result = run(Command::new("sh").args(["-ec", script]).current_dir(dir.path()));
    let (unmounted, text) = run(Command::new("umount").arg(dir.path())).unwrap();
    assert!(unmounted, "{text}");
    let (ok, text) = result.unwrap();
    assert!(ok, "{text}");
    Some(text)
}

const KERNEL_WRITES: &str = "
for f in a b; do
    setfattr -n user.short -v 1 $f
    setfattr -n trusted.long -v $(printf %0300d 7) $f
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 $f
done
setfacl -m u:1000:rw,g:70000:r a
mkdir d
setfacl -d -m u:1000:rwx d
stat -c %i d";

#[test]
fn the_kernel_reads_what_we_write_and_we_what_it_writes() {
    use crate::format::acl::{Acl, Entry, Tag};
    use crate::fs::acl;
    for options in [["-t", "ext3", "-I", "128"], ["-t", "ext4", "-I", "256"], ["-t", "ext4", "-I", "128"]] {
        let Some(image) = Image::make(&[&options[..], &["-b", "1024"]].concat()) else { return };
        let Some(dir) = in_kernel(&image, KERNEL_WRITES) else { return };
        let dir = InodeNr(dir.trim().parse().unwrap());
        let fs = image.mount();
        assert_eq!(fs.all(FIRST).len(), 4, "{options:?}");
        assert_eq!(fs.get(SECOND, user(b"short")).unwrap(), b"1");
        let acl = |nr, kind| acl::get(&fs.cache, &fs.geometry, nr, &fs.raw(nr), kind).unwrap();
        let access = acl(FIRST, acl::Kind::Access).unwrap();
        assert_eq!(access.entries()[1], Entry { tag: Tag::User(1000), perm: 6 });
        assert_eq!(access.mode(0o100_000), fs.raw(FIRST).mode);
        assert!(acl(dir, acl::Kind::Access).is_none());
        let default = acl(dir, acl::Kind::Default).unwrap();

        fs.set(SECOND, user(b"short"), b"ours", Mode::Replace).unwrap();
        fs.set(SECOND, user(b"empty"), b"", Mode::Create).unwrap();
        assert!(fs.remove(FIRST, user(b"short")));
        let mut shown = default.clone();
        shown.chmod(0o750);
        fs.change(SECOND, |h, allocator, raw| {
            acl::set(h, allocator, SECOND, raw, acl::Kind::Access, Some(&shown))
        })
        .unwrap();
        let minimal = Acl::from_mode(0o604);
        fs.change(FIRST, |h, allocator, raw| {
            acl::set(h, allocator, FIRST, raw, acl::Kind::Access, Some(&minimal))
        })
        .unwrap();
        fs.change(dir, |h, allocator, raw| {
            acl::set(h, allocator, dir, raw, acl::Kind::Access, Some(&default))
        })
        .unwrap();
        fs.commit();
        image.check();
        let read = "getfattr -d -m - --absolute-names a b; getfacl -cnE a b d; stat -c %a a b d; cat a b";
        let text = in_kernel(&image, read).unwrap();
        let long = format!("trusted.long=\"{:0300}\"", 7);
        assert_eq!(text.matches(&long).count(), 2, "{text}");
        for part in ["user.short=\"ours\"", "user.empty", "user:1000:rwx", "mask::r-x", "604\n750\n77"] {
            assert!(text.contains(part), "{options:?}: no {part} in {text}");
        }
        assert!(!text.contains("user.short=\"1\"") && !text.contains("group:70000"), "{text}");
        image.check();
    }
}

#[test]
fn values_in_inodes_of_their_own_are_read_and_freed_with_the_last_reference() {
    let options = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", "ea_inode"];
    let Some(image) = Image::make(&options) else { return };
    let script = "v=$(printf %05000d 7); for f in a b; do setfattr -n user.big -v $v $f; setfattr -n user.s -v 1 $f; done
        setfattr -n user.other -v $(printf %020000d 8) a";
    if in_kernel(&image, script).is_none() {
        return;
    }
    let fs = image.mount();
    let free = (fs.allocator.free_blocks(), fs.allocator.free_inodes());
    for nr in [FIRST, SECOND] {
        assert_eq!(fs.get(nr, user(b"big")).unwrap(), format!("{:05000}", 7).into_bytes());
    }
    assert_eq!(fs.get(FIRST, user(b"other")).unwrap().len(), 20000);
    assert!(fs.set(FIRST, user(b"more"), &[1; 3000], Mode::Any).unwrap_err().is(libc::ENOSPC));
    assert!(fs.remove(FIRST, user(b"other")));
    fs.set(FIRST, user(b"big"), b"small", Mode::Replace).unwrap();
    fs.commit();
    image.check();
    assert_eq!(fs.allocator.free_inodes(), free.1 + 1);
    assert!(fs.remove(SECOND, user(b"big")));
    fs.commit();
    image.check();
    assert_eq!(fs.allocator.free_inodes(), free.1 + 2);
    assert!(fs.allocator.free_blocks() > free.0 + 24);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, u8, usize),
    Remove(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (file, name) = (0u8..2, 0u8..6);
    prop_oneof![
        3 => (file.clone(), name.clone(), 0usize..400).prop_map(|(f, n, len)| Step::Set(f, n, len)),
        1 => (file, name).prop_map(|(f, n)| Step::Remove(f, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_keeps_what_a_map_keeps(steps in proptest::collection::vec(step(), 1..60), small in any::<bool>()) {
        let inode_bytes = if small { "128" } else { "512" };
        let Some(image) = Image::make(&["-t", "ext4", "-b", "1024", "-I", inode_bytes]) else { return Ok(()) };
        let fs = image.mount();
        let mut model = [BTreeMap::new(), BTreeMap::new()];
        for step in steps {
            match step {
                Step::Set(file, name, len) => {
                    let (nr, suffix) = (InodeNr(12 + u32::from(file)), vec![b'a' + name; 1 + name as usize]);
                    let value = vec![name; len];
                    match fs.set(nr, user(&suffix), &value, Mode::Any) {
                        Ok(()) => { model[file as usize].insert([b"user.", &*suffix].concat(), value); }
                        Err(error) => prop_assert!(error.is(libc::ENOSPC)),
                    }
                }
                Step::Remove(file, name) => {
                    let (nr, suffix) = (InodeNr(12 + u32::from(file)), vec![b'a' + name; 1 + name as usize]);
                    let known = model[file as usize].remove(&[b"user.", &*suffix].concat()).is_some();
                    prop_assert_eq!(fs.remove(nr, user(&suffix)), known);
                }
            }
        }
        fs.commit();
        image.check();
        prop_assert_eq!(fs.all(FIRST), model[0].clone());
        prop_assert_eq!(fs.all(SECOND), model[1].clone());
        let again = image.mount();
        prop_assert_eq!(again.all(FIRST), model[0].clone());
    }
}
