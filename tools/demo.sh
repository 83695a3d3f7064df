#!/usr/bin/env bash
# Builds Forebay and runs the demo's SQL.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

cargo run --release -- shell -f sql-examples/demo.sql
