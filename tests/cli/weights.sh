#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Weights from sharded safetensors give the digests of a run with seeded weights. A truncated file and
# a file of another model are refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
rm -rf weights odd
"$STW_WRITE_SAFETENSORS" tiny weights 7 "4 MiB" 2>/dev/null
[ "$(find weights -name '*.safetensors' | wc -l)" -gt 1 ] || fail "the weights are not sharded"
[ "$("$STOWAGE" inspect weights --json | sed -n 's/^ *"params": *\([0-9]*\),.*/\1/p' | head -n 1)" = \
    "$("$STOWAGE" inspect tiny --json | sed -n 's/^ *"params": *\([0-9]*\),.*/\1/p' | head -n 1)" ] ||
    fail "the files have other parameters than the config"
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set load.method=rank0_broadcast -o plan.json >/dev/null
"$STOWAGE" run plan.json --backend host --steps 2 --seed 7 -o seeded.json >/dev/null
"$STOWAGE" run plan.json --backend host --steps 2 --seed 7 --weights weights -o read.json >/dev/null
[ -n "$(digests read.json)" ] && [ "$(digests read.json)" = "$(digests seeded.json)" ] || fail "file and seed differ"

# a plan from the files' tensors alone: no forward-backward, and it says so
planned "$STOWAGE" plan --model weights --cluster tiny.yaml -o tensors.json >tensors.txt
"$STOWAGE" run tensors.json --backend host --steps 2 --seed 7 -o tensors.run.json >/dev/null

cp -r weights cut
for file in cut/model-00002-*; do
    head -c 100000 "$file" >cut.tmp && mv cut.tmp "$file"
done
expect 3 "model-00002" "$STOWAGE" run plan.json --backend host --steps 1 --weights cut
sed 's/"num_hidden_layers": 4/"num_hidden_layers": 5/' tiny/config.json >five.json
"$STOWAGE" plan --model five.json --cluster tiny.yaml -o five.plan.json >/dev/null
expect 3 "model.layers.4" "$STOWAGE" run five.plan.json --backend host --steps 1 --weights weights

# NaN in what is sampled: the tensor and the count
cp -r weights odd
file=$(find odd -name 'model-00001*.safetensors')
dd if=/dev/zero bs=1000 count=1 2>/dev/null | tr '\000' '\377' >ones.bin
dd if=ones.bin of="$file" bs=1000 seek=$(($(stat -c %s "$file") - 1000)) oflag=seek_bytes conv=notrunc 2>/dev/null
"$STOWAGE" run plan.json --backend host --steps 1 --weights odd >odd.txt 2>&1 || true
grep -q "warning: weights: model[a-z0-9_.]*: [1-9][0-9]* of the [1-9][0-9]* elements that were sampled are NaN or infinite" odd.txt ||
    { cat odd.txt; fail "NaN in the weights is not said"; }
"$STOWAGE" run plan.json --backend host --steps 1 --weights weights 2>&1 | grep -q "NaN" && fail "finite weights are called NaN"
echo "weights: ok"
