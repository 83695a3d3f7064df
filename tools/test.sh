#!/usr/bin/env bash
# Every check of the repository, in the order of how soon each fails. The last line printed is the
# closing line of the Rust tests.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

step() { printf '\n== %s\n' "$1"; }

step "set-up"
tools/setup all

step "formatting (cargo fmt)"
cargo fmt --all --check

# On one core: builds, which now and then wait for one crate, take what is left.
exporter_log=$(mktemp)
step "exporter (pytest), while the next steps build"
OMP_NUM_THREADS=1 tools/python -m pytest --quiet python/tests >"$exporter_log" 2>&1 &
exporter=$!
trap 'kill "$exporter" 2>/dev/null || true; rm -f -- "$exporter_log"' EXIT

step "lints (cargo clippy)"
cargo clippy --workspace --all-targets -- -D warnings

step "documentation (cargo doc)"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

step "examples in the documentation (cargo test --doc)"
cargo test --doc --workspace

step "build of the tests (cargo test --no-run)"
cargo test --workspace --lib --bins --tests --no-run

step "exporter (pytest): what it printed"
status=0
wait "$exporter" || status=$?
cat -- "$exporter_log"
[ "$status" -eq 0 ]

# Many of them wait for other processes now and then.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 3 / 2))}"
log=$(mktemp)
trap 'rm -f -- "$log" "$exporter_log"' EXIT
if cargo nextest --version >/dev/null 2>&1; then
    step "tests (cargo nextest)"
    cargo nextest run --workspace --color never 2>&1 | tee "$log"
    closing=$(grep -E '^ *Summary \[' "$log" | tail -n 1 || true)
else
    step "tests (cargo test; faster with cargo-nextest: cargo install --locked cargo-nextest)"
    cargo test --workspace --lib --bins --tests 2>&1 | tee "$log"
    closing=$(awk '/^test result:/ { passed += $4; failed += $6 } END { printf "%d passed, %d failed", passed, failed }' "$log")
fi

step "all checks passed"
printf '%s\n' "$closing"
