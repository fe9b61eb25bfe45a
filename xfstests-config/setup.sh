#!/usr/bin/env bash
# Users, loop devices over tmpfs and local.config for xfstests. Environment: WORK (/dev/shm/journalfs-xfstests),
# SIZE (2G), OPTIONS (batch=adaptive), XFSTESTS (where local.config goes; else it stays in WORK).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/dev/shm/journalfs-xfstests} size=${SIZE:-2G} options=${OPTIONS:-batch=adaptive}

for name in fsgqa fsgqa2 123456-fsgqa; do
    id "$name" >/dev/null 2>&1 || useradd --badname -M -U "$name" 2>/dev/null || useradd -M -U "$name"
done
for name in mount.fuse.journalfs mkfs.fuse.journalfs fsck.fuse.journalfs; do
    ln -sf "$here/bin/$name" "/sbin/$name"
done

mkdir -p "$work/test" "$work/scratch"
for name in test scratch; do
    truncate -s "$size" "$work/$name.img"
    device=$(losetup -j "$work/$name.img" | cut -d: -f1)
    [ -n "$device" ] || device=$(losetup -f --show "$work/$name.img")
    chmod 0660 "$device"
    declare "$name=$device"
done
mkfs.fuse.journalfs "$test"

sed -e "s|@TEST_DEV@|$test|; s|@TEST_DIR@|$work/test|" \
    -e "s|@SCRATCH_DEV@|$scratch|; s|@SCRATCH_MNT@|$work/scratch|" \
    -e "s|@OPTIONS@|$options|g" "$here/local.config.in" >"${XFSTESTS:-$work}/local.config"
echo "test $test, scratch $scratch, ${XFSTESTS:-$work}/local.config"
