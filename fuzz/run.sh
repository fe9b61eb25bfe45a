#!/usr/bin/env bash
# run.sh [TARGET...]: fuzzes each target for FUZZ_SECONDS (an hour), with 2 GiB of memory and 10 s for an input. Goes on after a
# crash; what was found is in fuzz/artifacts, and the exit code says whether anything was.
# What is found is copied to tests/hostile/inputs/TARGET once it is mended.
set -euo pipefail
cd "$(dirname "$0")"
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(records replay mount)
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
./seeds.sh
# Unsafe code is in layers that are not fuzzed, so the time that a sanitizer costs is better spent on inputs.
cargo +nightly fuzz build -s none
found=0
for target in "${targets[@]}"; do
    mkdir -p "artifacts/$target"
    cp ../tests/hostile/inputs/"$target"/* "corpus/$target/"
    echo "fuzzing $target for ${FUZZ_SECONDS:-3600} s"
    cargo +nightly fuzz run -s none "$target" -- -fork=1 -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 \
        -max_total_time="${FUZZ_SECONDS:-3600}" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -len_control=20 ||
        found=1
    if [ -n "$(ls "artifacts/$target")" ]; then
        found=1
        echo "$target: $(find "artifacts/$target" -type f | wc -l) inputs found, in fuzz/artifacts/$target"
    fi
done
exit $found
