#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Keys that engines list as turns: what is `auto` is set and written by --emit; what a launch means without a flag is told; a launch that is read stays.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
export COLUMNS=0
plan() { name=$1; shift; code=0; "$STOWAGE" plan "$@" >"$name.txt" 2>"$name.err" || code=$?; case $code in 0 | 9) ;; *) fail "$name: exit $code: $(cat "$name.err")" ;; esac; }
has() { grep -q -- "$2" "$1" || fail "$1 does not say \"$2\": $(cat "$1")"; }
hasnt() { ! grep -q -- "$2" "$1" || fail "$1 says \"$2\""; }

# modules of torch's checkpointing are set and told; a key that is given stays
set -- --model Qwen3-0.6B --cluster l40s-x8 --set engine=fsdp2 --set batch.seq_len=4096 --set batch.grad_accumulation=4 --set node.gpu.memory=18.7GiB
plan set "$@" -v -o set.json
has set.txt "Set by the planner: recompute.granularity=selective recompute.modules=\[mlp,layernorm\]; without it an iteration takes"
has set.txt "Faster with --set fsdp.sync_each_micro_batch=false: [0-9.]*% (1.[0-9]* s instead of 1.[0-9]* s), at risk."
has set.json '"granularity": "selective"'
has set.json '"rule": "setting"'
"$STOWAGE" report set.json >report.txt || fail "the plan is not read"
has report.txt "Set by the planner: recompute.granularity=selective"
"$STOWAGE" report set.json -o report.csv || fail "no CSV"
has report.csv "turned,.*recompute.granularity=selective recompute.modules=\[mlp,layernorm\]"
plan given "$@" -v --set recompute.granularity=none
hasnt given.txt "Set by the planner"
plan emitted "$@" --emit fsdp2
has emitted.txt "\"post_attention_layernorm\", \"mlp\"]  # of every layer"
has emitted.txt "name, checkpoint_wrapper(part))"
"$STOWAGE" plan "$@" --emit verl >/dev/null 2>other.err && fail "verl's defaults are said to be this plan"
has other.err "recompute.granularity: planned auto" # nothing is set that verl cannot say

# operations: the policy is written
plan ops --model Qwen3-1.7B --cluster h200-x1 --set engine=fsdp2 --set batch.seq_len=24576 --set node.gpu.memory=87.2GiB --accept at_risk --emit fsdp2
has ops.txt ", context_fn=contexts)"
if command -v python3 >/dev/null; then
    for file in ops emitted; do python3 -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" $file.txt || fail "$file.txt is no Python"; done
fi

# flags of Megatron-LM: a share of offloaded state where offload was asked for; overlap is told
set -- --model Qwen3-14B --cluster h200-x4 --set engine=megatron --set batch.seq_len=16384 --set parallel.pp=4 --set batch.grad_accumulation=16 \
    --set megatron.optimizer_cpu_offload=true --set node.gpu.memory=125.4GiB --set megatron.transformer_impl=transformer_engine --set megatron.precision_aware=true
plan share "$@" -v
share=$(sed -n 's/.*Set by the planner: .*optimizer_offload_fraction=\(0.[0-9]*\).*/\1/p' share.txt)
[ -n "$share" ] || fail "no share of offloaded state was set: $(cat share.txt)"
plan flags "$@" --emit megatron:flags.sh
has flags.sh "--optimizer-offload-fraction $share"
sed "s/--optimizer-offload-fraction $share//" flags.sh >plain.sh
plan launch --from megatron:plain.sh --cluster h200-x4 --set node.gpu.memory=125.4GiB -v
hasnt launch.txt "Set by the planner"
has launch.txt "Faster with --set megatron.optimizer_offload_fraction="
plan overlap --model Qwen3-4B --cluster b200-x8 --set engine=megatron --set batch.seq_len=6144 --set node.gpu.memory=42.4GiB -v
has overlap.txt "Faster with --set megatron.overlap_grad_reduce=true --set megatron.overlap_param_gather=true: 1[0-9.]*% ([0-9]* ms instead of 210 ms)"

# few inputs of blocks are kept where that makes room for state
plan inputs --model Qwen3-1.7B --cluster h200-x1 --set engine=megatron --set batch.seq_len=32768 --set megatron.optimizer_cpu_offload=true \
    --set node.gpu.memory=54GiB -v
has inputs.txt "Set by the planner: megatron.optimizer_offload_fraction=0.[0-9]* .*recompute.method=uniform recompute.num_layers=4"

# DeepSpeed, optimizer on the host: the smallest share is at risk with small sub-groups; the same share by itself fits, and no slower one of the same keys is told
plan host --model Phi-4 --cluster h200-x4 --set engine=deepspeed --set batch.seq_len=8192 --set deepspeed.offload_optimizer=cpu
has host.txt "Faster with --set deepspeed.ratio=0.1: 6[0-9.]*% (.* s instead of .* s), fits."
hasnt host.txt "deepspeed.ratio=0.6"
