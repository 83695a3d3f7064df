#!/usr/bin/env bash
# The candidates for decoding JPEGs, and Pillow with torchvision, in one run on the same images.
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."

images=$(mktemp --directory)
trap 'rm -rf -- "$images"' EXIT
tools/python benches/decoders/pillow.py draw "$images"
cargo build --release --manifest-path benches/decoders/Cargo.toml
binary=$(cargo metadata --manifest-path benches/decoders/Cargo.toml --format-version 1 --no-deps |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/decoders
results=benches/results/$(date +%F)-decoders.jsonl
{
    "$binary" "$images"
    tools/python benches/decoders/pillow.py time "$images"
} | tee "$results"
