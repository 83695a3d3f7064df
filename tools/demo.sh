#!/usr/bin/env bash
# Builds Forebay and runs the demo's SQL.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

# The daily profile, which `make test` and `cargo run` share: the time goes into the model, which is
# compiled already, and an optimised build takes far longer.
cargo build
cargo run --quiet -- shell -f sql-examples/demo.sql
