#!/usr/bin/env bash
# What journalfs does, in a minute: make an image, mount it, work on it, look at the journal, unmount,
# check. Needs no root where /dev/fuse is open to all (as distributions have it).
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
bin=${JOURNALFS_BIN_DIR:-$top/target/release}
PATH=$PATH:/usr/sbin:/sbin

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

if [ "$(id -u)" != 0 ] && ! [ -w /dev/fuse ]; then
    echo "/dev/fuse is not open to ordinary users here: going on as root" >&2
    exec sudo env "PATH=$PATH" "$0"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/journalfs-demo.XXXXXX")
image=$work/disk.img
dir=$work/mnt
finish() {
    cd /
    if grep -q " $dir " /proc/self/mounts; then "$bin/journalfs" umount "$dir" || umount -l "$dir"; fi
    rm -rf "$work"
}
trap finish EXIT
mkdir "$dir"

say "1. An image with a journal"
truncate -s 1G "$image"
# An ordinary user's root directory should be that user's.
owner=()
[ "$(id -u)" = 0 ] || owner=(-E root_owner)
show "$bin/mkfs.journalfs" -q -L demo "${owner[@]}" "$image"
dumpe2fs -h "$image" 2>/dev/null | grep -E '^(Filesystem features|Block size|Block count|Total journal size)'

say "2. Mount it"
show "$bin/mount.journalfs" "$image" "$dir" -o batch=adaptive
df -h "$dir" | tail -1

say "3. Work on it: unpack our own sources, build them into a repository, sync many small files"
mkdir "$dir/src"
seconds() { local start=$EPOCHREALTIME; "${@:2}" >/dev/null; local end=$EPOCHREALTIME
    printf '   %-46s %6.2f s\n' "$1" "$(awk "BEGIN { print $end - $start }")"; }
sources=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ | head -1)
unpack() { tar -C "$sources" --exclude='./win*' -cf - . | tar -C "$dir/src" -xf -; }
seconds "unpack the sources of the crates we use" unpack
printf '   %-46s %6d\n' "files" "$(find "$dir/src" -type f | wc -l)"
in_git() {
    cd "$dir/src"
    git init -q . && git add -A
    git -c user.name=demo -c user.email=demo@example.invalid commit -q -m everything
    git gc -q && git fsck --full
    cd "$top"
}
seconds "git init, add, commit, gc, fsck" in_git 2>/dev/null
mkdir "$dir/mail"
for threads in 1 4 20; do
    rate=$(cd "$work" && fs_mark -d "$dir/mail" -S 1 -s 4096 -t $threads -n $((2000 / threads)) |
        awk '/^ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+/ { print $4 }' | tail -1)
    printf '   fs_mark, %2d threads, fsync after each file     %8s files/s\n' $threads "$rate"
done
seconds "rm -rf half of it" rm -rf "$dir/src/.git" "$dir/mail"

say "4. What the journal did"
show "$bin/journalfs" stats "$dir" | tee "$work/stats" | grep -E '^(\$|journal\.)' || true
awk '{ value[$1] = $2 } END {
    printf "So %d fsyncs waited for %d commits, which cost %d cache flushes.\n",
        value["journal.sync_time_us.count"], value["journal.commits"], value["journal.flushes"] }' "$work/stats"

say "5. Unmount; everything is home when it returns"
show "$bin/journalfs" umount "$dir"

say "6. Check, with our fsck and with e2fsck"
show "$bin/fsck.journalfs" -n -f "$image"
show e2fsck -fn "$image"
say "All well."
