#!/usr/bin/env bash
# Licences, duplicate versions and advisories of the dependencies, where cargo-deny is installed.
set -eu
cd "$(dirname "$0")/.."
if command -v cargo-deny >/dev/null; then
    # Advisories need their database from the network; the rest does not.
    cargo deny --offline check licenses bans sources
else
    echo "cargo-deny is not installed: licences and duplicate versions not checked (deny.toml)"
fi
