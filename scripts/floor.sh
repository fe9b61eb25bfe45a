#!/usr/bin/env bash
# Performance against kernel ext3 on the same image size, on tmpfs, client and daemon on one CPU: fs_mark
# -S 1 and dd. Runs alternate; medians; the ratio is ours / kernel's. Exits 1 where a ratio is below
# FLOOR (0.5). Environment: RUNS (3), FILES (3000), DD_MIB (1024), CPU (0), OPTIONS (batch=adaptive),
# PROFILE (journalfs; the kernel always gets ext3), SPREAD (0).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
bin=${JOURNALFS_BIN_DIR:-$PWD/target/release}
runs=${RUNS:-3} files=${FILES:-3000} mib=${DD_MIB:-1024} cpu=${CPU:-0} floor=${FLOOR:-0.5}
options=${OPTIONS:-batch=adaptive} profile=${PROFILE:-journalfs}

if [ "$(id -u)" != 0 ]; then echo "skipped: needs root"; exit 0; fi
work=$(mktemp -d /dev/shm/journalfs-floor.XXXXXX)
dir=$work/mnt
mkdir "$dir"
mounted() { grep -q " $dir " /proc/self/mounts; }

# The loop device's workers are a part of the kernel's driver as our daemon is of ours: they get the same one CPU (where
# that can be set; SPREAD=1 leaves them the others).
workers=/sys/devices/virtual/workqueue/cpumask
if [ -w $workers ] && [ "${SPREAD:-0}" = 0 ]; then
    workers_before=$(cat $workers)
    printf '%x\n' $((1 << cpu)) >$workers
fi
finish() {
    cd /
    if [ -n "${workers_before:-}" ]; then echo "$workers_before" >$workers; fi
    if mounted; then umount "$dir" 2>/dev/null || umount -l "$dir"; fi
    rm -rf "$work"
}
trap finish EXIT

# up DRIVER: a new file system of that driver, mounted, everything of it on one CPU.
up() {
    rm -f "$work/image"
    truncate -s 3G "$work/image"
    if [ "$1" = kernel ]; then
        mke2fs -q -F -t ext3 "$work/image"
        mount -t ext3 -o loop "$work/image" "$dir"
    else
        "$bin/mkfs.journalfs" -q -t "$profile" "$work/image"
        taskset -c "$cpu" "$bin/mount.journalfs" "$work/image" "$dir" -o "$options"
    fi
}
down() {
    sync -f "$dir"
    if [ "$1" = kernel ]; then
        umount "$dir"
    else
        "$bin/journalfs" umount "$dir"
    fi
}

# Each prints one number, larger is better.
mark() { # THREADS
    (cd "$work" && taskset -c "$cpu" fs_mark -d "$dir" -S 1 -s 4096 -t "$1" -n $((files / $1)) -L 1) |
        awk '/^ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+/ { print $4 }' | tail -1
}
dd_rate() { # MiB/s of a dd with these arguments
    local start=$EPOCHREALTIME
    taskset -c "$cpu" dd "$@" bs=1M 2>/dev/null
    local end=$EPOCHREALTIME
    awk "BEGIN { printf \"%.1f\", $mib / ($end - $start) }"
}

results=$work/results
for ((run = 1; run <= runs; run++)); do
    for driver in ours kernel; do
        for threads in 1 4 20; do
            up $driver
            echo "$driver fs_mark-S1-t$threads $(mark $threads)" >>"$results"
            down $driver
        done
        up $driver
        echo "$driver dd-in $(dd_rate if=/dev/zero of="$dir/file" count="$mib" conv=fsync)" >>"$results"
        down $driver
        # Read back by a mount with cold caches.
        if [ $driver = kernel ]; then
            mount -t ext3 -o loop "$work/image" "$dir"
        else
            taskset -c "$cpu" "$bin/mount.journalfs" "$work/image" "$dir" -o "$options"
        fi
        echo "$driver dd-out $(dd_rate if="$dir/file" of=/dev/null count="$mib")" >>"$results"
        down $driver
        e2fsck -fn "$work/image" >/dev/null 2>&1 || { echo "e2fsck -fn fails after $driver"; exit 1; }
    done
done

echo "medians of $runs runs, image on tmpfs, client and daemon on CPU $cpu (files/s, MiB/s)"
sort -k1,1 -k2,2 -k3,3n "$results" | awk -v floor="$floor" '
    { key = $1 " " $2; n[key]++; value[key, n[key]] = $3; if (!($2 in seen)) { seen[$2]; order[++count] = $2 } }
    function median(key) { return n[key] % 2 ? value[key, (n[key] + 1) / 2] : (value[key, n[key] / 2] + value[key, n[key] / 2 + 1]) / 2 }
    END {
        printf "%-16s %12s %12s %8s\n", "", "journalfs", "kernel ext3", "ratio"
        for (i = 1; i <= count; i++) {
            ours = median("ours " order[i]); kernel = median("kernel " order[i])
            ratio = kernel > 0 ? ours / kernel : 0
            printf "%-16s %12.1f %12.1f %8.2f%s\n", order[i], ours, kernel, ratio, ratio < floor ? "  below the floor" : ""
            if (ratio < floor) bad = 1
        }
        exit bad
    }'
