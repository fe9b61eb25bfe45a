#!/usr/bin/env bash
# run.sh [check's arguments; default -g quick]: sets up, runs xfstests in $XFSTESTS, tears down.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${XFSTESTS:?where xfstests is built}"
make -C "$here/.." -s install
trap '"$here/teardown.sh"' EXIT
"$here/setup.sh"
cd "$XFSTESTS"
[ $# -gt 0 ] || set -- -g quick
PATH=$here/bin:$PATH ./check "$@"
