#!/usr/bin/env bash
# What each part costs, compared with the last time; then the ratios that Forebay claims, measured in one
# run, which are also written to benches/results/.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

cargo build --release
cargo bench --quiet --bench parts
binary=$(cargo metadata --format-version 1 --no-deps --offline |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/forebay
results=benches/results/$(date +%F)-cpu-$(nproc)-cores.jsonl
{
    cargo bench --quiet --bench embedding
    cargo bench --quiet --bench lengths
    cargo bench --quiet --bench operators
    cargo bench --quiet --bench vectors
    cargo bench --quiet --bench cluster
    cargo bench --quiet --bench flight
    tools/python benches/start.py "$binary"
    tools/python benches/memory.py "$binary"
    tools/python benches/linear.py "$binary"
    tools/python benches/compiled.py "$binary"
} | tee "$results"
printf 'written to %s\n' "$results"

# What is for a machine with a GPU, on this one: that it runs, in less than three minutes.
packed=$(mktemp -d)
trap 'rm -rf -- "$packed"' EXIT
ln -s -- "$binary" "$packed/forebay"
ln -s -- "$(readlink -f .forebay/libforebay_torch.so)" "$packed/libforebay_torch.so"
cp .forebay/models/all-minilm-l6-v2/tokenizer.json "$packed/"
(git describe --always --dirty || echo unknown) > "$packed/checkout"
tools/python benches/device/run.py "$packed" --output benches/results --minutes 3
