#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lists of models and clusters; clusters by name, with a number of nodes; memory of a host that is
# set alone. A model is planned on every cluster that has a name.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
plan() { "$STOWAGE" plan --model tiny "$@"; }

# models
"$STOWAGE" models -v >models.txt 2>/dev/null
for path in "$STW_SOURCE_DIR"/models/zoo/*.json; do
    name=$(basename "$path" .json)
    grep -q "^  $name  *[0-9.]*  " models.txt || fail "models does not list $name"
done
"$STOWAGE" models qwen3-0 >one.txt
[ "$(grep -c Qwen3 one.txt)" = 1 ] || fail "a part of a name does not select"
"$STOWAGE" models 'qwen3-*b' --json >some.json
[ "$(member some.json schema)" = stowage.models/1 ] || fail "models' schema"
"$STOWAGE" inspect Qwen3-30B-A3B --json >inspect.json
"$STOWAGE" models Qwen3-30B-A3B --json >model.json
for key in params active_params tensors model_type; do
    [ "$(member model.json $key)" = "$(member inspect.json $key)" ] || fail "models and inspect differ in $key"
done
"$STOWAGE" inspect Qwen3-30B-A3B >inspect.txt
stored=$(sed -n 's/.*tensors, \([0-9.]* GiB\) as stored.*/\1/p' inspect.txt)
"$STOWAGE" models Qwen3-30B-A3B | grep -q "30.5  *3.35  *$stored  *BF16  *MoE  *40,960" || fail "the line of Qwen3-30B-A3B"
"$STOWAGE" models -o models.csv
[ "$(wc -l <models.csv)" = "$(($(find "$STW_SOURCE_DIR/models/zoo" -name '*.json' | wc -l) + 1))" ] || fail "models as CSV"
expect 3 "did you mean \"Qwen3-4B\"?" "$STOWAGE" models Qwen3-4C

# clusters: every row of the table, each with its source, each able to hold a plan
"$STOWAGE" clusters -o clusters.csv
sed 1d clusters.csv | cut -d, -f1 >names.txt
rows=$(grep -c '^[A-Za-z]' "$STW_SOURCE_DIR/models/clusters/nodes.csv")
[ "$(wc -l <names.txt)" = "$((rows - 1))" ] || fail "clusters does not list every row"
[ "$(sort names.txt | uniq -d | wc -l)" = 0 ] || fail "a name stands twice"
for name in a100-40g-x8 a100-80g-pcie-x4 h100-80g-x1 h200-x8 b200-x8 l40s-x4 p4d.24xlarge p4de.24xlarge p5.48xlarge \
    p5e.48xlarge p5en.48xlarge p6-b200.48xlarge g6e.48xlarge a2-highgpu-8g a2-ultragpu-8g a3-highgpu-8g a3-megagpu-8g \
    rtx-3090-x2 rtx-4090-x8 rtx-5090-x1 rtx-pro-6000-x4 rtx-a6000-x1 rtx-6000-ada-x2 a10-x1 l4-x8 l20-x4 l40s-x2 h20-x8 h800-80g-x8 \
    a800-80g-x8 h100-pcie-x4 h100-nvl-x2 gh200-x1 gb200-x4 gb200-nvl72 b300-x8 gb300-nvl72 v100-16g-x4 v100-32g-x8 mi250x-x8 mi300x-x8 \
    mi325x-x8 mi350x-x8 mi355x-x8 g5.48xlarge g6.12xlarge p3.16xlarge p3dn.24xlarge p6-b300.48xlarge g2-standard-96 g4-standard-384 \
    a3-highgpu-1g Standard_NC24ads_A100_v4 Standard_NC40ads_H100_v5 Standard_ND96isr_MI300X_v5 gpu_8x_h100_sxm5 a10g-x4 \
    a3-ultragpu-8g a4-highgpu-8g Standard_ND96asr_v4 Standard_ND96isr_H100_v5 Standard_ND96isr_H200_v5 cpu-only; do
    grep -q -x -F "$name" names.txt || fail "clusters does not list $name"
done
awk -F, 'NR > 1 && $NF == "" { print; bad = 1 } END { exit bad }' clusters.csv || fail "a cluster names no source"
while read -r name; do
    plan --cluster "$name" -o plan.json >plan.txt || { cat plan.txt; fail "plan --cluster $name"; }
    [ "$(member plan.json nodes)" = 1 ] || fail "$name is not one node"
    case $name in
    h200-x[124]) grep -q "not measured" plan.txt && fail "$name is measured" ;;
    cpu-only) grep -q "are not measured" plan.txt || fail "$name says that it is measured" ;;
    *) grep -q "from data sheets, not measured" plan.txt || fail "$name does not say that it is not measured" ;;
    esac
done <names.txt

# GPUs without a type of products; GPUs that can only be planned for
plan --cluster v100-32g-x8 -o v100.json >/dev/null 2>v100.err || fail "v100-32g-x8"
grep -q "Tesla V100-SXM2-32GB has products of fp16 and none of bf16" v100.err || fail "bf16 on V100 is not warned of"
plan --cluster v100-32g-x8 --set precision.compute=fp16 -o v100.json >/dev/null 2>v100.err || fail "fp16 on V100"
grep -q "bf16" v100.err && fail "fp16 on V100 is warned of"
plan --cluster mi300x-x8 -o mi300x.json >/dev/null 2>mi300x.err || fail "mi300x-x8"
grep -q "AMD Instinct MI300X is a planning target: stowage-run has no backend" mi300x.err || fail "MI300X is not said to be a target"
for name in a100-80g-x8 v100-32g-x8 mi250x-x8 rtx-3090-x8; do
    expect 3 "has no fp8 products" "$STOWAGE" plan --model Qwen3-0.6B --cluster $name --set engine=megatron --set megatron.transformer_impl=transformer_engine --set megatron.fp8=hybrid
done
for name in h100-pcie-x8 rtx-4090-x8 mi300x-x8 gb200-x4; do
    "$STOWAGE" plan --model Qwen3-0.6B --cluster $name --set engine=megatron --set megatron.transformer_impl=transformer_engine --set megatron.fp8=hybrid -o fp8.json >/dev/null 2>&1 ||
        fail "fp8 on $name"
done

# by name, in any case, with a number of nodes
plan --cluster "4 x h100-80g-x8" -o four.json >/dev/null
[ "$(member four.json nodes)" = 4 ] || fail "4 x h100-80g-x8 is not four nodes"
plan --cluster 4xH100-80G-X8 -o again.json >/dev/null
[ "$(member four.json hash)" = "$(member again.json hash)" ] || fail "4xNAME and 4 x NAME differ"
plan --cluster p5en -o family.json >/dev/null || fail "p5en is not p5en.48xlarge"
plan --cluster "2 x nd96isr_h200_v5" -o azure.json >/dev/null || fail "nd96isr_h200_v5"
plan --cluster "$STW_SOURCE_DIR/models/examples/h200-x1.yaml" -o file.json >/dev/null
plan --cluster h200-x1 -o name.json >/dev/null
[ "$(member file.json hash)" = "$(member name.json hash)" ] || fail "h200-x1 and h200-x1.yaml differ"
"$STOWAGE" clusters --show "3 x l40s-x4" -o shown.yaml
plan --cluster shown.yaml -o shown.json >/dev/null || fail "the cluster.yaml of --show does not read back"
[ "$(member shown.json nodes)" = 3 ] || fail "--show lost the number of nodes"
expect 3 "did you mean h100-80g-x8" plan --cluster h100-80gb-x8
expect 3 "did you mean p5.4xlarge, p5.48xlarge, p5e.48xlarge or p5en.48xlarge?" plan --cluster p5
expect 3 "nodes" plan --cluster "0 x h200-x1"
expect 3 "no-such.yaml" plan --cluster no-such.yaml

# node.host.memory alone: the limit keeps its share of it
host() { sed -n '/"host": {/,/}/s/^ *"'"$2"'": "*\([0-9A-Za-z ]*\)"*,*/\1/p' "$1" | head -n 1; }
plan --cluster h200-x1 --set "node.host.memory=250 GiB" -o more.json >/dev/null || fail "node.host.memory alone"
[ "$(host more.json limit)" = 261993005056 ] || fail "the limit is $(host more.json limit), expected 244 GiB of 250"
plan --cluster h200-x1 --set "node.host.memory=50 GiB" -o less.json >/dev/null || fail "less memory than the limit"
plan --cluster h200-x1 --set "node.host.limit=100 GiB" --set "node.host.memory=250 GiB" -o set.json >/dev/null
[ "$(host set.json limit)" = 107374182400 ] || fail "the limit that was set has moved"
echo "clusters: ok"
