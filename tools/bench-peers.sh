#!/usr/bin/env bash
# Forebay beside its peers and beside the limit; written to benches/results/. Arguments are those of
# benches/peers/run.py, for example --rounds 1 --only embed.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

if ! command -v java >/dev/null; then
    echo "bench-peers: PySpark needs Java 17 or newer: apt install openjdk-17-jre-headless" >&2
    exit 1
fi
cargo build --release
binary=$(cargo metadata --format-version 1 --no-deps --offline |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/forebay
benches/peers/python benches/peers/run.py "$binary" "$@"
