#!/usr/bin/env bash
# Packs what benches/device/run.py takes to another machine: the release binary and its library,
# stripped and compressed, the tokenizer of the demo's model, and the commit of this checkout.
#
#     benches/device/pack.sh FOLDER [path/to/forebay]
set -euo pipefail
folder=$(mkdir -p -- "$1" && cd -- "$1" && pwd)
binary=${2:-}
cd -- "$(dirname -- "$0")/../.."

if [ -z "$binary" ]; then
    cargo build --release
    binary=$(cargo metadata --format-version 1 --no-deps --offline |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/forebay
fi
strip -o "$folder/forebay" "$binary"
strip -o "$folder/libforebay_torch.so" .forebay/libforebay_torch.so
xz --force --threads=0 "$folder/forebay" "$folder/libforebay_torch.so"
cp .forebay/models/all-minilm-l6-v2/tokenizer.json "$folder/"
(git describe --always --dirty || echo unknown) > "$folder/checkout"
du --bytes --total "$folder"/* | tail -n 1 | awk '{ printf "%.1f MB in all\n", $1 / 1e6 }'
