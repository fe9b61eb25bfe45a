#!/usr/bin/env bash
# Undoes setup.sh, except for the users.
set -uo pipefail
work=${WORK:-/dev/shm/journalfs-xfstests}
for name in test scratch; do
    while grep -q " $work/$name " /proc/self/mounts; do umount "$work/$name" || umount -l "$work/$name"; done
    losetup -j "$work/$name.img" | cut -d: -f1 | while read -r device; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do losetup -d "$device" 2>/dev/null && break; sleep 1; done
    done
done
rm -rf "$work"
