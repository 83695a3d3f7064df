#!/usr/bin/env bash
# The demo's model by libtorch and by ONNX Runtime, in turns: seconds of whole processes, and how far the
# embeddings are apart.
#
#     benches/onnx.sh FOREBAY ONNX_FOLDER [ROUNDS]
#
# FOREBAY is an executable of the profile that is to be measured, ONNX_FOLDER the model with onnx/model.onnx.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."
forebay=$1 folder=$2 rounds=${3:-3}
FOREBAY_CATALOG=$(mktemp -d)
export FOREBAY_CATALOG
trap 'rm -rf -- "$FOREBAY_CATALOG"' EXIT

"$forebay" model add torch .forebay/models/all-minilm-l6-v2 >/dev/null
"$forebay" model add onnx "$folder" >/dev/null
# Texts of many lengths, all of them different.
texts="SELECT value AS id, repeat(concat('a note of ', value, ' words, '), 1 + CAST(value % 17 AS INT)) AS text
       FROM generate_series(1, 1500)"
ask() { "$forebay" shell -q --format csv -c "$1" | tail -n 1; }

for round in $(seq "$rounds"); do
    for model in torch onnx; do
        start=$(date +%s.%N)
        ask "SELECT count(embedding) FROM ml_predict(($texts), MODEL $model, DESCRIPTOR(text))" >/dev/null
        awk -v name="$model" -v from="$start" -v to="$(date +%s.%N)" -v round="$round" \
            'BEGIN { printf "round %d  %-6s %.2f s\n", round, name, to - from }'
    done
done
printf 'largest cosine distance: '
ask "SELECT max(cosine_distance(a.embedding, b.embedding))
     FROM ml_predict(($texts), MODEL torch, DESCRIPTOR(text)) a
     JOIN ml_predict(($texts), MODEL onnx, DESCRIPTOR(text)) b ON a.id = b.id"
