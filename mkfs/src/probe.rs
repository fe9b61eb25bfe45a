//! What a device holds already: signatures of file systems, volume managers and partition tables.

use journalfs::device::Device;

/// Signatures at fixed places: what, byte offset, bytes.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 8182, b"SWAPSPACE2"),
    ("swap space", 16374, b"SWAPSPACE2"),
    ("swap space", 65526, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("a hibernation image", 4086, b"S1SUSPEND"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an erofs file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("a JFS file system", 32768, b"JFS1"),
    ("a reiserfs file system", 65588, b"ReIsEr"),
    ("a bcachefs file system", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a ZFS pool", 0x2_0000, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    // The last one, since boot sectors of other kinds have it too.
    ("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

fn has(device: &dyn Device, offset: u64, signature: &[u8]) -> bool {
    let mut bytes = vec![0; signature.len()];
    let inside = offset + bytes.len() as u64 <= device.size_bytes();
    inside && device.read_at(offset, &mut bytes).is_ok() && bytes == signature
}

/// What the device seems to hold; a phrase such as "an XFS file system".
pub fn contents(device: &dyn Device) -> Option<String> {
    if has(device, 1024 + 56, &0xef53_u16.to_le_bytes()) {
        let mut label = [0; 16];
        device.read_at(1024 + 120, &mut label).ok()?;
        let label = String::from_utf8_lossy(&label);
        let label = label.trim_end_matches('\0');
        let labelled = if label.is_empty() { String::new() } else { format!(" labelled '{label}'") };
        return Some(format!("an ext2, ext3 or ext4 file system{labelled}"));
    }
    // RAID metadata of versions 0.90 and 1.0 lies near the end.
    let size = device.size_bytes();
    let old_raid = (size & !0xffff).checked_sub(0x1_0000);
    let new_raid = size.checked_sub(0x2000).map(|at| at & !0xfff);
    if [old_raid, new_raid].into_iter().flatten().any(|at| has(device, at, &[0xfc, 0x4e, 0x2b, 0xa9])) {
        return Some("a RAID member".to_owned());
    }
    SIGNATURES
        .iter()
        .find(|(_, offset, signature)| has(device, *offset, signature))
        .map(|(what, ..)| (*what).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use journalfs::device::memory::MemoryDevice;

    #[test]
    fn signatures_are_seen_and_empty_devices_are_empty() {
        let device = MemoryDevice::new(1 << 20);
        assert_eq!(contents(&device), None);
        for (what, offset, signature) in SIGNATURES {
            let device = MemoryDevice::new(1 << 20);
            device.write_at(*offset, signature).unwrap();
            assert_eq!(contents(&device).as_deref(), Some(*what));
        }
        device.write_at((1 << 20) - 0x2000, &[0xfc, 0x4e, 0x2b, 0xa9]).unwrap();
        assert_eq!(contents(&device).as_deref(), Some("a RAID member"));
        device.write_at(1024 + 56, &[0x53, 0xef]).unwrap();
        device.write_at(1024 + 120, b"home").unwrap();
        assert!(contents(&device).unwrap().ends_with("labelled 'home'"));
        assert_eq!(contents(&MemoryDevice::new(100)), None);
    }
}
