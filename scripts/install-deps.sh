#!/usr/bin/env bash
# Installs what the demo and the tests need and this machine lacks: Debian packages, and pjdfstest and
# fsx, pinned, into target/tools. Does nothing where all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

# A program that shows that a package is there, and the package.
needs="
fusermount3 fuse3
mke2fs e2fsprogs
fs_mark fsmark
getfattr attr
setfacl acl
gcc gcc
make make
git git
mount mount
losetup mount
setpriv util-linux
tar tar
"
packages=()
programs=()
while read -r program package; do
    [ -n "$program" ] || continue
    if ! command -v "$program" >/dev/null; then
        packages+=("$package")
        programs+=("$program")
    fi
done <<<"$needs"
if [ ${#packages[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "Missing: ${programs[*]}. There is no apt-get here: install them with this system's" \
            "package manager (on Debian the packages are ${packages[*]}) and run this again." >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "Missing: ${programs[*]}. As root: apt-get install ${packages[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "Installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

if ! command -v cargo >/dev/null; then
    echo "There is no cargo: install Rust 1.85 or later (https://rustup.rs)" >&2
    exit 1
fi
for tool in pjdfstest@0.2.2 fsx@0.3.2; do
    name=${tool%@*} version=${tool#*@}
    if ! grep -qs "\"$name $version " target/tools/.crates.toml; then
        echo "Installing $name $version into target/tools"
        CARGO_TARGET_DIR=target/tools/build cargo install --quiet --locked --root target/tools "$tool"
    fi
done
