//! Target `records`: each record's decoder on any bytes, and what holds of what it returns: encoding it and decoding that
//! gives the same. The journal's records are in `records_log`.

use super::input::Input;
use super::records_log;
use journalfs::format::hash::HashVersion;
use journalfs::format::inode::RawInode;
use journalfs::format::{
    acl, dirent, extent, group, htree, indirect, inode, mmp, orphan_file, superblock, xattr,
};
use journalfs::format::{Geometry, GroupDescriptor, Incompat, RoCompat, Superblock, Timestamp};
use journalfs::fs::options::MountOptions;
use journalfs::units::{BlockNr, FileBlock, GroupNr, InodeNr};
use journalfs::Place;

const PLACE: Place = Place::Block(BlockNr(9));
const FILE: InodeNr = InodeNr(12);
const SEED: u32 = 0x1234_5678;

/// The target's body.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.u8() % 20 {
        0 => superblock(&mut input),
        1 => descriptor(&mut input),
        2 => inode(&mut input),
        3 => extents(&mut input),
        4 => pointers(&mut input),
        5 => entries(&mut input),
        6 => index(&mut input),
        7 => attributes(&mut input, xattr::Area::Inode),
        8 => attributes(&mut input, xattr::Area::Block),
        9 => acls(&mut input),
        10 => orphans(&mut input),
        11 => protection(&mut input),
        12 => time(&mut input),
        13 => options(&mut input),
        which => records_log::run(which - 14, &mut input),
    }
}

/// A block of the size that the input asks for, filled with the rest of it.
pub(crate) fn block(input: &mut Input<'_>) -> Vec<u8> {
    let mut block = vec![0; 1024 << (input.u8() % 3)];
    let bytes = input.rest();
    let len = bytes.len().min(block.len());
    block[..len].copy_from_slice(&bytes[..len]);
    block
}

/// A shape by the input's bits.
fn geometry(bits: u8) -> Geometry {
    let mut sb = Superblock::new();
    (sb.rev_level, sb.first_ino, sb.checksum_type) = (1, 11, 1);
    sb.log_block_size = u32::from(bits & 3) % 3;
    sb.log_cluster_size = sb.log_block_size;
    sb.first_data_block = u32::from(sb.log_block_size == 0);
    (sb.blocks_per_group, sb.clusters_per_group, sb.inodes_per_group) = (8192, 8192, 512);
    sb.blocks_count = 8192 * 20;
    sb.inode_size = if bits & 4 == 0 { 128 } else { 256 };
    sb.features.incompat.set(Incompat::BIT64, bits & 8 != 0);
    sb.desc_size = if bits & 8 == 0 { 0 } else { 64 };
    sb.features.ro_compat.set(RoCompat::METADATA_CSUM, bits & 16 != 0);
    sb.features.ro_compat.set(RoCompat::GDT_CSUM, bits & 32 != 0);
    sb.features.ro_compat.set(RoCompat::HUGE_FILE, bits & 64 != 0);
    sb.features.incompat.set(Incompat::LARGE_DIR, bits & 128 != 0);
    sb.inodes_count = sb.group_count() as u32 * 512;
    Geometry::new(&Superblock::decode(&sb.encode()).unwrap())
}

fn superblock(input: &mut Input<'_>) {
    let reseal = input.u8() & 1 == 0;
    let mut bytes: [u8; superblock::SUPERBLOCK_BYTES] = input.array();
    if reseal {
        superblock::seal(&mut bytes);
    }
    let Ok(sb) = Superblock::decode(&bytes) else { return };
    let encoded = sb.encode();
    let again = Superblock::decode(&encoded).unwrap();
    assert_eq!(again.encode(), encoded);
    assert_eq!((again.features, again.blocks_count, &again.uuid), (sb.features, sb.blocks_count, &sb.uuid));
    let geometry = Geometry::new(&sb);
    let _ = (sb.label(), sb.features.names(), geometry.groups_per_flex(), geometry.desc_blocks());
    for group in [0, 1, 2, 7, geometry.group_count / 2, geometry.group_count - 1].map(GroupNr) {
        if group.0 < geometry.group_count {
            let _ = (geometry.descriptor_place(group), geometry.base_meta_blocks(group));
            assert!(geometry.blocks_in_group(group) <= geometry.blocks_per_group);
            assert!(geometry.group_first_block(group).0 < geometry.blocks_count);
        }
    }
    for nr in [1, 2, 11, geometry.inodes_count].map(InodeNr) {
        if geometry.holds_inode(nr) {
            let (group, index) = geometry.group_of_inode(nr);
            assert_eq!(geometry.inode_at(group, index), nr);
        }
    }
}

fn descriptor(input: &mut Input<'_>) {
    let geometry = geometry(input.u8());
    let (group, reseal) = (GroupNr(u32::from(input.u8()) % geometry.group_count), input.u8() & 1 == 0);
    let mut bytes: [u8; 64] = input.array();
    let bytes = &mut bytes[..geometry.desc_bytes as usize];
    if reseal {
        group::seal(bytes, &geometry, group);
    }
    let Ok(descriptor) = GroupDescriptor::decode(bytes, &geometry, group) else { return };
    descriptor.encode(bytes, &geometry, group).unwrap();
    assert_eq!(GroupDescriptor::decode(bytes, &geometry, group).unwrap(), descriptor);
}

fn inode(input: &mut Input<'_>) {
    let geometry = geometry(input.u8());
    let reseal = input.u8() & 1 == 0;
    let mut bytes: [u8; 256] = input.array();
    let bytes = &mut bytes[..geometry.inode_bytes as usize];
    if reseal {
        inode::seal(bytes, &geometry, FILE);
    }
    let Ok(raw) = RawInode::decode(bytes, &geometry, FILE) else { return };
    let _ = (raw.kind(), raw.maps_blocks(), raw.rdev(), raw.has_wide_times());
    let mut device = raw.clone();
    device.set_rdev(raw.rdev());
    assert_eq!(device.rdev(), raw.rdev());
    if raw.encode(bytes, &geometry, FILE).is_ok() {
        let again = RawInode::decode(bytes, &geometry, FILE).unwrap();
        // The unit of i_blocks is the encoder's choice.
        let flags = again.flags ^ raw.flags;
        assert!((flags - journalfs::format::InodeFlags::HUGE_FILE).is_empty());
        assert_eq!(RawInode { flags: raw.flags, ..again }, raw);
    }
}

fn extents(input: &mut Input<'_>) {
    let depth = match input.u8() {
        0 => None,
        depth => Some(u16::from(depth % 7)),
    };
    let at = FileBlock(input.u32());
    let mut bytes = if depth.is_none() { input.array::<60>().to_vec() } else { block(input) };
    let _ = extent::is_sealed(&bytes, SEED);
    let Ok(view) = extent::View::new(&bytes, PLACE, depth) else { return };
    if let Some(index) = view.search(at) {
        assert!(view.get(index).is_some());
    }
    let good = view.check_entries(PLACE, &(0..1 << 32), &(1..1 << 40)).is_ok();
    let node = extent::Node::decode(&view);
    for entry in &node.entries {
        let _ = (entry.end(), entry.len_max(), entry.part(u64::from(entry.block.0)..entry.end()));
    }
    for pair in node.entries.windows(2) {
        let _ = pair[0].joins(&pair[1]);
        assert!(!good || pair[0].end() <= u64::from(pair[1].block.0));
    }
    node.encode(&mut bytes);
    let view = extent::View::new(&bytes, PLACE, depth).unwrap();
    assert_eq!(extent::Node::decode(&view), node);
    if depth.is_some() && usize::from(node.max) < (bytes.len() - 12) / 12 {
        extent::seal(&mut bytes, SEED);
        assert!(extent::is_sealed(&bytes, SEED));
    }
}

fn pointers(input: &mut Input<'_>) {
    let (at, bits) = (FileBlock(input.u32()), input.u8());
    let block_bytes = 1024 << (bits % 7);
    if let Some(path) = indirect::Path::to(at, block_bytes) {
        for depth in 0..=path.indices().len() {
            let first = path.first_under(at, depth, block_bytes);
            assert!(first <= u64::from(at.0) && u64::from(at.0) < first + path.span(depth, block_bytes));
        }
        assert!(path.indices().iter().all(|index| *index < indirect::per_block(block_bytes)));
    }
    let index = u32::from(input.u16());
    let mut block = block(input);
    let pointer = indirect::pointer(&block, index);
    indirect::set_pointer(&mut block, index, pointer);
    assert_eq!(indirect::pointer(&block, index), pointer);
}

fn entries(input: &mut Input<'_>) {
    let (has_csum, which, name_len) =
        (input.u8() & 1 == 0, usize::from(input.u8()), usize::from(input.u8().max(1)));
    let mut block = block(input);
    let usable = dirent::usable_bytes(block.len(), has_csum);
    if has_csum {
        dirent::seal(&mut block, SEED);
        dirent::check_seal(&block, SEED).unwrap();
    }
    let all: Vec<_> = dirent::entries(&block, usable).collect();
    assert!(all.len() <= block.len() / dirent::ENTRY_MIN + 1);
    let sound = all.iter().all(Result::is_ok);
    let count = |block: &[u8]| dirent::entries(block, usable).filter(|e| e.is_ok_and(|e| e.in_use())).count();
    let before = count(&block);
    let chosen = all
        .get(which % all.len().max(1))
        .copied()
        .and_then(Result::ok)
        .map(|e| (e.offset, e.name.to_vec(), e.in_use()));
    if let Some((offset, name, used)) = chosen {
        let _ = dirent::find(&block, usable, &name);
        if sound && used {
            assert_eq!(dirent::remove(&mut block, usable, offset), Ok(true));
            assert_eq!(count(&block), before - 1);
        }
    }
    if let Ok(Some(room)) = dirent::find_room(&block, usable, name_len) {
        let before = count(&block);
        assert!(dirent::put_in(&mut block, room, FILE, 1, &vec![b'n'; name_len]));
        if sound {
            assert_eq!(count(&block), before + 1);
        }
    }
    if sound {
        assert!(dirent::entries(&block, usable).all(|entry| entry.is_ok()), "a change damaged a sound block");
    }
}

fn index(input: &mut Input<'_>) {
    let (bits, hash) = (input.u8(), input.u32());
    let kind = if bits & 1 == 0 { htree::Kind::Root } else { htree::Kind::Node };
    let has_csum = bits & 2 == 0;
    let mut block = block(input);
    htree::seal(&mut block, kind, SEED);
    let _ = htree::check_seal(&block, kind, SEED);
    if let Ok(info) = htree::root_info(&block, bits & 4 == 0) {
        let _ = info.version.hash(&[1, 2, 3, 4], &block[..usize::from(bits)]);
        htree::set_info(&mut block, info);
        assert_eq!(htree::root_info(&block, bits & 4 == 0), Ok(info));
    }
    let _ = HashVersion::from_disk(bits, false).map(|version| version.hash(&[0; 4], &block[..255]));
    let Ok(index) = htree::Index::new(&block, kind, has_csum) else { return };
    let at = index.position(hash);
    assert!(at < index.count());
    if index.is_sorted() {
        assert!(index.hash(at) <= hash);
    }
    let list = index.entries(0);
    let mut copy = block.clone();
    htree::put_entries(&mut copy, kind, has_csum, &list);
    assert_eq!(htree::Index::new(&copy, kind, has_csum).unwrap().entries(0), list);
    if list.len() < kind.limit(block.len(), has_csum) {
        htree::insert_entry(&mut copy, kind, at + 1, hash, FileBlock(5));
        let again = htree::Index::new(&copy, kind, has_csum).unwrap();
        assert_eq!((again.count(), again.hash(at + 1)), (list.len() + 1, hash));
    }
}

fn attributes(input: &mut Input<'_>, kind: xattr::Area) {
    let len = usize::from(input.u8());
    let mut area = block(input);
    if kind == xattr::Area::Inode {
        area.truncate(len);
        let _ = xattr::inode_area_in_use(&area);
    } else {
        let _ = xattr::verify_block(&area, BlockNr(9), Some(SEED));
        xattr::seal_block(&mut area, BlockNr(9), Some(SEED));
        let _ = xattr::verify_block(&area, BlockNr(9), Some(SEED));
    }
    let Ok(mut list) = xattr::parse(&area, kind, PLACE) else { return };
    for attribute in &list {
        if let Some(full) = attribute.name.full() {
            assert!(xattr::Name::split(&full).is_none_or(|name| name.full().as_ref() == Some(&full)));
        }
    }
    // Values may overlap one another in what is read, so that all of them need not fit.
    let mut written = vec![0; area.len()];
    let result = if kind == xattr::Area::Inode {
        xattr::write_inode(&mut written, &list)
    } else {
        xattr::write_block(&mut written, &mut list)
    };
    if result.is_ok() && (kind == xattr::Area::Block || xattr::inode_area_in_use(&written)) {
        assert_eq!(xattr::parse(&written, kind, PLACE).unwrap(), list);
    }
}

fn acls(input: &mut Input<'_>) {
    let mode = input.u16();
    let bytes = input.rest();
    let from_xattr = acl::Acl::from_xattr(bytes).ok().flatten();
    for mut acl in [acl::Acl::from_disk(bytes), from_xattr].into_iter().flatten() {
        assert_eq!(acl::Acl::from_disk(&acl.to_disk()).as_ref(), Some(&acl));
        assert_eq!(acl::Acl::from_xattr(&acl.to_xattr()).unwrap().as_ref(), Some(&acl));
        let _ = acl.is_minimal();
        acl.chmod(mode);
        assert_eq!(acl.mode(0) & 0o777, mode & 0o777);
        let made = acl.create(mode);
        assert_eq!(made & 0o777 & !mode, 0);
    }
}

fn orphans(input: &mut Input<'_>) {
    let geometry = geometry(input.u8());
    let slot = u32::from(input.u16());
    let mut block = block(input);
    block.resize(geometry.block_bytes as usize, 0);
    let _ = orphan_file::verify(&block, &geometry, SEED, BlockNr(9));
    orphan_file::set_entry(&mut block, slot % orphan_file::entries_per_block(&geometry), Some(FILE));
    orphan_file::seal(&mut block, &geometry, SEED, BlockNr(9));
    orphan_file::verify(&block, &geometry, SEED, BlockNr(9)).unwrap();
    assert_eq!(orphan_file::entry(&block, slot % orphan_file::entries_per_block(&geometry)), Some(FILE));
    let _ = orphan_file::entry(&block, slot);
}

fn protection(input: &mut Input<'_>) {
    let geometry = geometry(input.u8());
    let mut block = block(input);
    if let Ok(mmp) = mmp::Mmp::decode(&block, &geometry, BlockNr(9)) {
        mmp.encode(&mut block, &geometry);
        assert_eq!(mmp::Mmp::decode(&block, &geometry, BlockNr(9)).unwrap(), mmp);
    }
}

fn time(input: &mut Input<'_>) {
    let (low, extra) = (input.u32(), input.u32());
    let time = Timestamp::decode(low, Some(extra));
    let (low, extra) = time.encode();
    assert_eq!(Timestamp::decode(low, Some(extra)), time);
    let any = Timestamp { seconds: i64::from_le_bytes(input.array()), nanoseconds: input.u32() };
    for wide in [false, true] {
        let stored = any.storable(wide);
        assert_eq!(stored.storable(wide), stored);
    }
}

fn options(input: &mut Input<'_>) {
    let text = String::from_utf8_lossy(input.rest());
    let mut options = MountOptions::default();
    for word in text.split(',') {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let _ = options.set(name, value);
    }
    let _ = options.finish();
}
