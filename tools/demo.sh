#!/usr/bin/env bash
# Builds Forebay and runs its demo.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

step() { printf '\n== %s\n' "$1"; }

step "libtorch"
tools/setup libtorch

# The daily profile, which `make test` and `cargo run` share: the time goes into the model, which is
# compiled already, and an optimised build takes far longer.
step "build (cargo build)"
cargo build

cargo run --quiet -- demo
