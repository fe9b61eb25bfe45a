#!/usr/bin/env bash
# seeds.sh: fills fuzz/corpus with images that mke2fs, debugfs and the kernel made, and with one small input for each
# built-in image. What needs root (the kernel's dirty journals) is left out without it.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
loop=
cleanup() {
    if mountpoint -q "$work/mnt"; then umount "$work/mnt"; fi
    if [ -n "$loop" ]; then losetup -d "$loop"; fi
    rm -rf "$work"
}
trap cleanup EXIT
mkdir -p corpus/mount corpus/replay corpus/records "$work/tree/sub" "$work/mnt" "$work/clean" "$work/dirty"

echo small >"$work/tree/file"
: >"$work/tree/empty"
head -c 30000 /dev/zero | tr '\0' x >"$work/tree/sub/large"
ln -s file "$work/tree/link"
ln -s "$(printf 'x%.0s' $(seq 150))" "$work/tree/long"
for i in $(seq 30); do ln "$work/tree/empty" "$work/tree/sub/name-of-some-length-$i"; done
setfattr -n user.a -v "$(printf 'v%.0s' $(seq 300))" "$work/tree/file" 2>/dev/null || true

# name, then mke2fs's options.
while read -r name options; do
    # shellcheck disable=SC2086
    mke2fs -q -F -d "$work/tree" -N 64 $options "$work/clean/$name.img" 4M >/dev/null 2>&1 ||
        echo "mke2fs can't make $name; left out"
done <<'END'
ext2 -t ext2 -b 1024
ext3 -t ext3 -b 1024 -J size=1
ext4 -t ext4 -b 1024 -J size=1
inline -t ext4 -b 1024 -J size=1 -I 256 -O inline_data
eainode -t ext4 -b 1024 -J size=1 -O ea_inode
mmp -t ext4 -b 1024 -J size=1 -O mmp
bigalloc -t ext4 -b 1024 -J size=1 -O bigalloc
gdtcsum -t ext4 -b 1024 -J size=1 -O ^metadata_csum,uninit_bg
metabg -t ext4 -b 1024 -J size=1 -O meta_bg,^resize_inode
orphan -t ext4 -b 1024 -J size=1 -O orphan_file
END

# What the kernel leaves when a machine stops: a copy of the image under a mount that has synced.
if [ "$(id -u)" = 0 ] && [ -e /dev/loop-control ]; then
    for options in "ext3 -t ext3 -J size=1" "ext4 -t ext4 -J size=1" "fast -t ext4 -J size=2,fast_commit_size=64 -O fast_commit"; do
        read -r name options <<<"$options"
        image=$work/kernel.img
        # shellcheck disable=SC2086
        mke2fs -q -F -b 1024 -N 64 $options "$image" 6M >/dev/null 2>&1 || continue
        loop=$(losetup --show -f "$image")
        if mount "$loop" "$work/mnt"; then
            cp -r "$work/tree/sub" "$work/mnt/"
            sync -f "$work/mnt"
            echo more >"$work/mnt/sub/new"
            mv "$work/mnt/sub/new" "$work/mnt/moved"
            rm "$work/mnt/sub/name-of-some-length-3"
            sync "$work/mnt/moved"
            sync "$loop"
            cp "$image" "$work/dirty/kernel-$name.img"
            umount "$work/mnt"
        fi
        losetup -d "$loop"
        loop=
    done
fi

cargo build --release --quiet --example seed
target/release/examples/seed corpus/mount "$work"/clean/*.img
if compgen -G "$work/dirty/*.img" >/dev/null; then
    target/release/examples/seed corpus/replay "$work"/dirty/*.img
fi
for base in $(seq 0 31); do
    octal=$(printf '\\%03o' "$base")
    # Options, image, seal, one patch: a bit of some block.
    printf '\0'"$octal"'\1\1\1\7\0\24\0\1' | tee "corpus/mount/base-$base" >"corpus/replay/base-$base"
    printf "$octal"'%0300d' 0 | tr 0 '\0' >"corpus/records/kind-$base"
done
echo "seeds: $(find corpus -type f | wc -l) files"
