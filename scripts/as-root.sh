#!/usr/bin/env bash
# as-root.sh COMMAND...: runs it as root where that needs no question, else as who we are (tests that
# mount then say "skipped: needs root").
set -eu
if [ "$(id -u)" = 0 ]; then
    exec "$@"
elif sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null && sudo true; }; then
    # The user's cargo and rustup, and what the caller set for the tests.
    exec sudo --preserve-env=HOME,CARGO_HOME,RUSTUP_HOME,KILL_ROUNDS,FSX_OPERATIONS,FUZZ_SECONDS,HOSTILE_INPUTS,HOSTILE_ROUNDS,HOSTILE_SEED \
        env "PATH=$PATH" "$@"
else
    echo "not root and no sudo: what mounts is skipped" >&2
    exec "$@"
fi
