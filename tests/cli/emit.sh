#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage plan --emit`: settings that --from reads back to the same plan, what they do not say, what changed.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
CLUSTER="$STW_SOURCE_DIR/models/examples/h100-80g-x8.yaml"
peaks() { sed -n 's/^ *"\(peak\|total\)": *\([0-9]*\),*$/\2/p' "$1"; }
again() { # FRAMEWORK FILE [--set ...]: plan, emit, plan again
    framework=$1 file=$2
    shift 2
    planned "$STOWAGE" plan --from "$framework:$file" --cluster "$CLUSTER" --set nodes=1 "$@" -o first.json \
        --emit "$framework:again.txt" >notes.txt 2>/dev/null
    planned "$STOWAGE" plan --from "$framework:again.txt" --cluster "$CLUSTER" --set nodes=1 -o second.json >/dev/null 2>&1
    peaks first.json >first.txt
    peaks second.json >second.txt
    [ -s first.txt ] || fail "$framework: no peaks"
    cmp -s first.txt second.txt || fail "$framework: other bytes after a round trip"
}
cat >gpt.sh <<'EOF'
--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 --swiglu \
--micro-batch-size 2 --global-batch-size 64 --use-distributed-optimizer --data-path a b --lr 1e-4
EOF
again megatron gpt.sh --set parallel.tp=2 --set recompute.granularity=selective
grep -q '^+ --tensor-model-parallel-size 2$' notes.txt || fail "no change is noted"
grep -q -e '--data-path a b ' again.txt || fail "a flag of the file is gone"
! grep -q 'do not say' notes.txt || fail "megatron says all of it"

# what a search keeps is no setting
again megatron gpt.sh --set parallel=auto
! grep -q 'tokens_per_step' notes.txt || fail "tokens are named, and the global batch says them"

# full recomputation needs a method and a number of layers: those that realise the plan
again megatron gpt.sh --set recompute.granularity=full
for flag in granularity:full method:uniform num-layers:1; do
    grep -q "^+ --recompute-${flag%:*} ${flag#*:}\$" notes.txt || fail "no --recompute-$flag"
done
! grep -q 'do not say' notes.txt || fail "full recomputation is not said"
cat >gpt8b.sh <<'EOF'
--num-layers 36 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 \
--swiglu --untie-embeddings-and-output-weights --micro-batch-size 8 --global-batch-size 64 --use-distributed-optimizer \
--tensor-model-parallel-size 2
EOF
again megatron gpt8b.sh --set recompute.granularity=auto
grep -q '^+ --recompute-method block$' notes.txt || fail "a part of the layers is not recomputed"
! grep -q 'treat all alike' notes.txt || fail "the layers are not treated alike"

# without a file settings go to stdout, notes to stderr; nothing changed
"$STOWAGE" plan --from megatron:gpt.sh --cluster "$CLUSTER" --set nodes=1 --emit megatron >out.txt 2>err.txt
grep -q '^--num-layers 8' out.txt || fail "no settings on stdout"
grep -q '^No changes against gpt.sh$' err.txt || fail "no notes on stderr"

# the verdict goes with them: on stderr, on stdout where the settings go to a file, with -q nowhere
grep -q '^  .* fits on 1 node' err.txt && grep -q '^  GPU  \[.* of 79.10 GiB each' err.txt && grep -q '^  host \[.* per node' err.txt &&
    grep -q '^  Iteration time: ' err.txt || fail "no verdict: $(cat err.txt)"
grep -q 'fits on\|GPU memory' out.txt && fail "a verdict among settings"
full() { "$STOWAGE" plan --from megatron:gpt.sh --cluster "$CLUSTER" --set nodes=1 --set node.gpu.memory=2GiB --emit "$@"; }
expect 4 ' does not fit on 1 node' full megatron
rc=0
full megatron:full.txt >out.txt 2>err.txt || rc=$?
[ $rc = 4 ] && grep -q ' does not fit on 1 node' out.txt && grep -q 'GPU memory is over by' out.txt || fail "no verdict: $(cat out.txt)"
! grep -q 'Iteration time' out.txt || fail "times of a plan that does not fit"
full megatron:full.txt -q >out.txt 2>err.txt || true
! grep -q ' fit ' out.txt err.txt || fail "a verdict in spite of -q"

# what a framework has no setting for is refused before anything is written
refused() { # FRAMEWORK TEXT OPTION...: no settings, no plan, no file
    framework=$1 text=$2
    shift 2
    rm -f refused.json refused.out
    rc=0
    "$STOWAGE" plan --cluster "$CLUSTER" --set nodes=1 "$@" -o refused.json --emit "$framework" >out.txt 2>err.txt || rc=$?
    [ $rc = 7 ] || fail "$framework $*: exit $rc, expected 7"
    "$STOWAGE" plan --cluster "$CLUSTER" --set nodes=1 "$@" --emit "$framework:refused.out" >>out.txt 2>/dev/null && fail "not refused"
    [ ! -s out.txt ] && [ ! -e refused.json ] && [ ! -e refused.out ] || fail "$framework $*: something is written"
    grep -q "^stowage: error: --emit $framework: .*nothing is written" err.txt && grep -q -e "$text" err.txt ||
        fail "$framework $*: expected \"$text\", found $(cat err.txt)"
}
cat >ppo.sh <<'EOF'
python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 \
  actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8 \
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 algorithm.adv_estimator=grpo
EOF
again verl ppo.sh --set park.params=host --set roles.0.parallel.tp=4
grep -q '^+ actor_rollout_ref.actor.fsdp_config.param_offload true$' notes.txt || fail "no offload"
refused verl 'Use --set fsdp.sync_each_micro_batch=true, or --emit fsdp2' --from verl:ppo.sh --set fsdp.sync_each_micro_batch=false

# the machine of the plan, not that of the file; variables of the shell stay what they are
cat >launch.sh <<'EOF'
python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 data.train_files=$HOME/a.parquet \
  'data.val_files=${data.train_files}' actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp2 algorithm.adv_estimator=grpo \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
EOF
"$STOWAGE" plan --from verl:launch.sh --cluster "$CLUSTER" --set nodes=2 --emit verl:again.sh -o first.json >notes.txt 2>/dev/null
grep -q '^+ trainer.nnodes 2$' notes.txt || fail "the nodes are those of the file"
grep -q 'data.train_files=$HOME/a.parquet ' again.sh || fail "a variable of the shell is quoted"
grep -q "'data.val_files=\${data.train_files}'" again.sh || fail "a reference of Hydra's is not quoted"
"$STOWAGE" plan --from verl:again.sh --cluster "$CLUSTER" --set nodes=2 -o second.json >/dev/null 2>&1
"$STOWAGE" diff first.json second.json >diff.txt
grep -q 'The plans are the same' diff.txt || fail "other nodes: $(cat diff.txt)"

# packed sequences of a step on other GPUs, with the micro batches that they take there: the step stays
sed 's/ppo_mini_batch_size=64/ppo_mini_batch_size=48/; s/actor.ppo_micro_batch_size_per_gpu=4/actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048 data.train_batch_size=96/' launch.sh >packed.sh
for passes in 2 4; do
    planned "$STOWAGE" plan --from verl:packed.sh --cluster "$CLUSTER" --set nodes=2 --set batch.grad_accumulation=$passes --emit verl:again.sh \
        -o first.json >notes.txt 2>/dev/null
    mini=$(grep -o 'ppo_mini_batch_size=[0-9]*' again.sh) all=$(grep -o 'train_batch_size=[0-9]*' again.sh)
    [ "$passes $mini $all" = "2 ppo_mini_batch_size=48 train_batch_size=96" ] ||
        [ "$passes $mini $all" = "4 ppo_mini_batch_size=128 train_batch_size=256" ] || fail "$passes micro batches: $mini $all"
done

# a fused loss that a search finds computes in fp32, as verl's does: its settings say the plan
printf '%s data.max_prompt_length=1024 data.max_response_length=7168\n' "$(cat launch.sh)" >long.sh
planned "$STOWAGE" plan --from verl:long.sh --model Qwen3-8B --cluster "$CLUSTER" --set nodes=1 --set parallel=auto -o first.json --emit verl:again.sh >notes.txt 2>err.txt
grep -q '^+ actor_rollout_ref.model.use_fused_kernels true$' notes.txt || fail "no fused loss is found: $(cat notes.txt err.txt)"
"$STOWAGE" plan --from verl:again.sh --model Qwen3-8B --cluster "$CLUSTER" --set nodes=1 -o second.json >/dev/null 2>&1
[ "$(peaks first.json)" = "$(peaks second.json)" ] || fail "verl, parallel=auto: other bytes after a round trip"

# an optimizer step that was left to the planner, and that torch does not have
refused verl 'The plan that it can say, with --set optimizer.implementation=foreach, does not fit.*is streamed' --from verl:launch.sh --model Qwen3-8B --set node.gpus=2 \
    --set roles.0.gpu_memory_utilization=0.5 --set optimizer.implementation=auto

# changes of what does not fit: those that the file's framework can say come first, in the others the key is named
cat >tuned.yaml <<'EOF'
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
EOF
fixes() { # FRAMEWORK:FILE [--set ...]: its changes, one a line
    expect 4 '' "$STOWAGE" plan --cluster "$CLUSTER" --set nodes=1 --from "$@" -o unfit.json
    python3 - <<'EOP'
import json
for fix in json.load(open("unfit.json"))["infeasible"]["fixes"]:
    print(" ".join(c["set"] + "=" + str(c["value"]) for c in fix["changes"]), "|", fix["why"])
EOP
}
fixes llamafactory:tuned.yaml --set node.gpu.memory=20GiB >fixes.txt
grep -q '^fsdp.offload_policy=true | .*; settings of LLaMA-Factory cannot say it (fsdp.offload_policy)$' fixes.txt ||
    fail "LLaMA-Factory and offload_policy: $(cat fixes.txt)"
! head -1 fixes.txt | grep -q 'cannot say' || fail "it comes first: $(cat fixes.txt)"
grep -q '^loss.fused=true | .*; settings of LLaMA-Factory say it with loss.chunk=64$' fixes.txt || fail "Liger: $(cat fixes.txt)"
fixes verl:launch.sh --model Qwen3-8B --set node.gpus=2 --set roles.0.gpu_memory_utilization=0.5 >fixes.txt
! head -1 fixes.txt | grep -q 'settings of' || fail "it comes first: $(cat fixes.txt)"
grep -q '^optimizer.implementation=auto | .*; settings of verl cannot say it (optimizer.implementation)$' fixes.txt ||
    fail "verl and a streamed step: $(cat fixes.txt)"

# another framework's settings for the same engine, and facts for torch
torch() { "$STOWAGE" plan --model Qwen3-0.6B --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --set batch.seq_len=1024 \
    --emit fsdp2 "$@" 2>err.txt; }
torch --set recompute.granularity=full >settings.py
grep -q 'MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)' settings.py || fail "no policy"
grep -q '^RECOMPUTED = {0, 1, .*, 26, 27}$' settings.py || fail "not all layers are recomputed"
! grep -q 'do not say' err.txt || fail "the module says all, found $(cat err.txt)"
python3 -c 'import ast; ast.parse(open("settings.py").read())' || fail "not Python"
torch --set recompute.granularity=none --set fsdp.offload_policy=true --set batch.grad_accumulation=3 \
    --set fsdp.sync_each_micro_batch=false >settings.py
! grep -q checkpoint_wrapper\( settings.py || fail "layers are recomputed"
grep -q '"offload_policy": CPUOffloadPolicy()' settings.py || fail "no offload"
grep -q 'set_requires_gradient_sync(index == MICRO_BATCHES - 1)' settings.py || fail "reduced after each micro batch"
torch --set parallel.tp=2 --set park.moments=host >settings.py
grep -q '^  parallel.tp: 2$' err.txt || fail "tensor parallelism is not named"
grep -q '^  park.moments: host$' err.txt || fail "parking is not named"
# layers are where the model's class has them; a list of tensors has no such names
# what the module lacks stands in its docstring, and is a warning
for limit in 'Qwen3-0.6B cp context' 'Qwen3-30B-A3B ep expert' 'Qwen3-0.6B tp tensor'; do
    set -- $limit
    "$STOWAGE" plan --model "$1" --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --set batch.seq_len=1024 --set "parallel.$2=2" --emit fsdp2:limit.py \
        >/dev/null 2>err.txt || fail "$2: $(cat err.txt)"
    grep -q "warning: --emit fsdp2: the plan has parallel.$2 2, and the module that is written has no $3 parallelism" err.txt || fail "$2: no warning: $(cat err.txt)"
    sed '/^import/q' limit.py | grep -q "Limit: the plan has parallel.$2 2, and this module has no $3 parallelism" || fail "$2: no limit: $(head -20 limit.py)"
    [ "$(grep -c 'Limit:' limit.py)" = 1 ] || fail "$2: other limits"
    python3 -c 'import ast; ast.parse(open("limit.py").read())' || fail "$2: no Python"
done

layers_of() { "$STOWAGE" plan --model "$1" --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --emit fsdp2 2>/dev/null | grep '    lists = '; }
at=$(layers_of GPT-2)
[ "$at" = '    lists = [model.get_submodule(name) for name in ["transformer.h"]]' ] || fail "layers of GPT-2: $at"
at=$(layers_of Qwen3-VL-8B)
[ "$at" = '    lists = [model.get_submodule(name) for name in ["model.visual.blocks", "model.language_model.layers"]]' ] || fail "layers of Qwen3-VL: $at"
printf 'name,shape,dtype\nfirst,"[64, 64]",BF16\nsecond,"[64, 64]",BF16\n' >list.csv
layers_of list.csv | grep -q ModuleList || fail "layers of a list of tensors: $(layers_of list.csv)"
"$STOWAGE" plan --model GPT-2 --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --set recompute.granularity=selective \
    --set 'recompute.modules=[mlp, layernorm]' --emit fsdp2 >settings.py 2>err.txt || fail "GPT-2: $(cat err.txt)"
grep -q '^PARTS = \["ln_1", "ln_2", "mlp"\]' settings.py || fail "parts of GPT-2: $(grep PARTS settings.py)"
# settings with other steps in an iteration are none of the plan
torch --set batch.mini_batches=4 >settings.py && fail "a module has one optimizer step"
grep -q 'batch.mini_batches: the plan has 4, its settings 1' err.txt || fail "the steps: $(cat err.txt)"
[ ! -s settings.py ] || fail "settings of another step are printed"
# a name from a file is text of the module, not code: it does not end the string or the line
name=$(printf 'a"""\nimport os\n"""\\N{b}\\')
mkdir -p "$name"
cp "$STW_SOURCE_DIR/models/zoo/Qwen3-0.6B.json" "$name/config.json"
"$STOWAGE" plan --model "$name/config.json" --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --emit fsdp2:named.py >/dev/null 2>&1 ||
    fail "exit $?"
python3 - <<'EOP' || fail "the model's name is code"
import ast
tree = ast.parse(open("named.py").read())
assert [a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names] == ["torch"]
assert 'for a"""\\nimport os\\n"""\\N{b}\\ on ' in ast.get_docstring(tree), ast.get_docstring(tree)
EOP
printf '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}' >ds.json
ds() { "$STOWAGE" plan --from deepspeed:ds.json --model Qwen3-0.6B --cluster "$CLUSTER" --set nodes=1 --set batch.seq_len=1024 \
    --set recompute.granularity=full "$@"; }
refused llamafactory 'Use --set deepspeed.reduce_bucket=1048576' --from deepspeed:ds.json --model Qwen3-0.6B --set batch.seq_len=1024 \
    --set recompute.granularity=full
ds --emit deepspeed >out.txt 2>err.txt || fail "no settings of DeepSpeed"
grep -q '^  batch.seq_len: 1024$' err.txt || fail "what the program says is not named"

"$STOWAGE" plan --from deepspeed:ds.json --model Qwen3-0.6B --cluster "$CLUSTER" --set nodes=1 --set batch.seq_len=1024 \
    --emit deepspeed >out.txt 2>err.txt || fail "no settings of DeepSpeed"
grep -q '^  recompute.granularity: of the planned blocks 28 keep activations' err.txt || fail "what the planner chose is not named"
refused fsdp2 'with --set optimizer.implementation=fused, does not fit' --model Qwen3-8B --set node.gpus=1 --set engine=fsdp2 --set batch.seq_len=1024

# state on NVMe is said, or refused by files that have no word for it
nvme="--set node.nvme.capacity=10TB --set node.nvme.read=10GB/s --set node.nvme.write=5GB/s"
for set in "deepspeed.offload_optimizer=nvme" "deepspeed.offload_optimizer=nvme deepspeed.offload_param=cpu" \
    "deepspeed.offload_optimizer=nvme deepspeed.offload_param=nvme deepspeed.param_buffer_size=2e8 deepspeed.optimizer_buffer_count=5" \
    "deepspeed.offload_optimizer=cpu deepspeed.offload_param=nvme deepspeed.param_buffer_size=2e8 deepspeed.max_in_cpu=0" \
    "deepspeed.offload_optimizer=cpu deepspeed.ratio=0.3 deepspeed.sub_group_size=1e8"; do
    sets=
    case $set in *=nvme*) ;; *) nvme= ;; esac
    for key in $set; do sets="$sets --set $key"; done
    ds $nvme $sets -o first.json --emit deepspeed:nvme.json >/dev/null 2>err.txt || fail "$set: exit $?, $(cat err.txt)"
    "$STOWAGE" plan --from deepspeed:nvme.json --model Qwen3-0.6B --cluster "$CLUSTER" --set nodes=1 --set batch.seq_len=1024 \
        --set recompute.granularity=full $nvme -o second.json >/dev/null 2>&1 || fail "$set: what is emitted cannot be planned"
    peaks first.json >first.txt
    peaks second.json >second.txt
    cmp -s first.txt second.txt || fail "$set: other bytes after a round trip"
done
nvme="--set node.nvme.capacity=10TB --set node.nvme.read=10GB/s --set node.nvme.write=5GB/s"
ds $nvme --set deepspeed.offload_optimizer=nvme --emit deepspeed >out.txt 2>err.txt
grep -q '"device": "nvme"' out.txt && grep -q 'nvme_path: /local_nvme is assumed' err.txt || fail "no device"
refused llamafactory 'deepspeed.offload_optimizer: planned nvme, these settings none' --model Qwen3-0.6B --set engine=deepspeed \
    --set batch.seq_len=1024 $nvme --set deepspeed.offload_optimizer=nvme

# a load that the framework has no setting for is none of its settings; the usual one has the same bytes
echo 'NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --torch_dtype bfloat16 --deepspeed zero3 --max_length 1024 --tuner_type full' >swift.sh
for load in sharded_read all_ranks; do
    refused ms-swift "Use --set load.method=auto.* load.method: planned $load, these settings auto; host memory in load: planned" \
        --from ms-swift:swift.sh --set load.method=$load
done
again ms-swift swift.sh --set load.method=rank0_broadcast
# where the program that trains says it, the output names it
ds --set load.method=all_ranks --emit deepspeed >out.txt 2>err.txt
grep -q '^  load.method: all_ranks$' err.txt || fail "the load is not named: $(cat err.txt)"

# a model of the zoo: the command of Megatron-LM with the model's arguments, which has the same bytes
allocated() { sed -n 's/^ *"allocated": *\([0-9]*\),*$/\1/p' "$1" | sort -n | tail -1; }
zoo() { # MODEL OPTION...: a plan of engine megatron, its settings, and a plan of these
    model=$1
    shift
    "$STOWAGE" plan --model "$model" --cluster "$CLUSTER" --set nodes=2 "$@" --set engine=megatron --set batch.seq_len=1024 \
        --set megatron.transformer_impl=transformer_engine --set recompute.granularity=full \
        --set allocator.expandable_segments=true --emit megatron:zoo.sh -o first.json >notes.txt 2>err.txt || [ $? = 4 ] ||
        fail "$model: $(cat err.txt)"
    "$STOWAGE" plan --from megatron:zoo.sh --cluster "$CLUSTER" --set nodes=2 -o second.json >/dev/null 2>err.txt || [ $? = 4 ] ||
        fail "$model: what is emitted cannot be planned: $(cat err.txt)"
    one=$(allocated first.json) two=$(allocated second.json)
    [ -n "$one" ] && [ $((one > two ? one - two : two - one)) -le $((one / 500)) ] || fail "$model: planned $one, emitted $two"
}
zoo Qwen3-30B-A3B --set parallel.ep=8
sed -n 1,2p zoo.sh | tr '\n' ' ' >head.txt
grep -q '^PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True . torchrun --nproc_per_node 8 --nnodes 2 .* pretrain_gpt.py' head.txt ||
    fail "no launch: $(cat head.txt)"
for flag in 'num-layers 48' 'hidden-size 2048' 'num-query-groups 4' 'kv-channels 128' 'rotary-base 1000000' qk-layernorm swiglu \
    'normalization RMSNorm' untie-embeddings-and-output-weights 'num-experts 128' 'moe-ffn-hidden-size 768' 'moe-router-topk 8' \
    'vocab-size 151935' 'expert-model-parallel-size 8' 'train-iters 100'; do
    grep -q -e "^--$flag\( .\)*\$" zoo.sh || fail "no --$flag"
done
for flag in attention hidden; do # Megatron-LM's defaults are 0.1
    grep -q -e "^--$flag-dropout 0 " zoo.sh || fail "no --$flag-dropout 0"
done
"$STOWAGE" plan --model Qwen3-30B-A3B --cluster "$CLUSTER" --set engine=megatron --set parallel.ep=8 \
    --set megatron.transformer_impl=transformer_engine --emit megatron:zoo.sh >notes.txt 2>err.txt || [ $? = 9 ] || fail "exit $?"
grep -q '^Read back, these settings plan to other .* nothing to set' notes.txt || fail "other bytes are not said: $(cat notes.txt)"
! grep -q '^  .*: planned' notes.txt || fail "bytes among what is to be set"
zoo Qwen2.5-0.5B --set parallel.tp=2 --set checkpoint.every=200
grep -q '^CUDA_DEVICE_MAX_CONNECTIONS=1' zoo.sh && grep -q '^--add-qkv-bias' zoo.sh && grep -q '^--save-interval 200' zoo.sh &&
    ! grep -q '^--untie' zoo.sh || fail "Qwen2.5: $(cat zoo.sh)"
zoo Llama-3.2-1B
zoo DeepSeek-V2-Lite --set parallel.ep=8
grep -q "^--moe-layer-freq '(\[0\]\*1+\[1\]\*26)'" zoo.sh && grep -q '^--kv-lora-rank 512' zoo.sh || fail "DeepSeek-V2: $(cat zoo.sh)"
zoo GPT-2
grep -q '^--position-embedding-type learned_absolute' zoo.sh || fail "GPT-2: $(cat zoo.sh)"
refused megatron 'transformer_engine' --model Qwen3-0.6B --set engine=megatron --set batch.seq_len=1024
local_layers='Warning: local layers of Megatron-LM have no flash'
"$STOWAGE" plan --model Qwen3-0.6B --cluster "$CLUSTER" --set engine=megatron --set batch.seq_len=1024 >out.txt 2>&1 || [ $? = 9 ] || fail "exit $?"
grep -q "$local_layers" out.txt || fail "no warning"
for set in megatron.transformer_impl=transformer_engine attention=eager; do
    "$STOWAGE" plan --model Qwen3-0.6B --cluster "$CLUSTER" --set engine=megatron --set batch.seq_len=1024 --set $set >out.txt 2>&1 || true
    ! grep -q "$local_layers" out.txt || fail "a warning with $set"
done
refused megatron 'type "gemma2"' --model Gemma-2-2b --set engine=megatron --set batch.seq_len=1024

# the launch of a script stays, on the plan's GPUs; what it does not know of goes on
cat >launch8.sh <<'EOF'
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
DIST=(--nproc_per_node ${GPUS:-8} --nnodes 1 --rdzv_endpoint $HOST:29500)
ARGS=(--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 --use-distributed-optimizer
  --micro-batch-size 2 --global-batch-size 64 --save $OUT --save-interval 50 --data-path "$DATA")
torchrun ${DIST[@]} tools/pretrain_gpt.py "${ARGS[@]}"
EOF
again megatron launch8.sh --set parallel.tp=2
sed '1d; s/ --tensor-model-parallel-size 2$//' again.txt | cmp -s - launch8.sh || fail "other lines than the change's: $(cat again.txt)"
[ "$(sed -n 1p again.txt)" = 'export CUDA_DEVICE_MAX_CONNECTIONS=1' ] && grep -q '^CUDA_DEVICE_MAX_CONNECTIONS=1 is exported' notes.txt ||
    fail "not said: $(cat notes.txt)"
"$STOWAGE" plan --from megatron:launch8.sh --cluster "$CLUSTER" --set nodes=2 --set checkpoint.every=0 --emit megatron >again.txt 2>/dev/null
grep -q -e '--nproc_per_node 8 --nnodes 2' again.txt && ! grep -q save-interval again.txt || fail "the launch is not the plan's"
refused areal 'roles: planned 1, these settings 0' --from verl:ppo.sh

expect 2 'expected megatron, deepspeed' "$STOWAGE" plan --from verl:ppo.sh --cluster "$CLUSTER" --emit torch
expect 2 'has no settings for engine fsdp2' "$STOWAGE" plan --from verl:ppo.sh --cluster "$CLUSTER" --set nodes=1 --emit megatron
expect 2 'ppo.sh: --emit would replace the file of --from; name another file' "$STOWAGE" plan --from verl:ppo.sh --cluster "$CLUSTER" --emit verl:ppo.sh
# a new file has the permissions of the one that it comes from; one that is there keeps its own
cp ppo.sh run.sh
chmod 755 run.sh
rm -f new.sh
for mode in 755 640; do
    planned "$STOWAGE" plan --from verl:run.sh --cluster "$CLUSTER" --set nodes=1 --emit verl:new.sh -q >/dev/null 2>err.txt || fail "$(cat err.txt)"
    [ "$(stat -c %a new.sh)" = $mode ] || fail "permissions $(stat -c %a new.sh), expected $mode"
    chmod 640 new.sh
done
# rollouts on nodes of their own, and DeepEP: what was read is written again
echo 'python -m recipe.fully_async_policy.fully_async_main model_engine=megatron algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.rollout.name=vllm actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_token_dispatcher_type=flex \
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_enable_deepep=True \
    trainer.nnodes=2 trainer.n_gpus_per_node=8 rollout.nnodes=1 rollout.n_gpus_per_node=8' >own.sh
"$STOWAGE" plan --from verl:own.sh --cluster h200-x8 --set nodes=3 --emit verl:own.txt >own.notes 2>own.err
grep -q "^python -m recipe.fully_async_policy.fully_async_main" own.txt || fail "another program: $(cat own.err)"
for setting in trainer.nnodes=2 rollout.nnodes=1 moe_token_dispatcher_type=flex moe_enable_deepep=; do
    grep -q "$setting" own.txt || fail "no $setting"
done
grep "do not say" own.notes && fail "settings that are not said: $(cat own.notes)"
echo 'torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-0.6B' >sft.sh
expect 7 "settings of verl.trainer.sft_trainer: not implemented" "$STOWAGE" plan --from verl:sft.sh --cluster h200-x8 --emit verl

# verl's default strategy stays where it suffices: FSDP1 wraps no embeddings (a model whose head is not tied).
cat >usual.sh <<'EOT'
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=512 \
    data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True trainer.n_gpus_per_node=8 trainer.nnodes=1
EOT
planned "$STOWAGE" plan --from verl:usual.sh --cluster h100-80g-x8 --emit verl:same.sh >same.txt 2>&1 || fail "usual.sh"
grep -q "No changes against usual.sh" same.txt || { cat same.txt >&2; fail "usual.sh changed"; }
planned "$STOWAGE" plan --from verl:usual.sh --cluster h100-80g-x8 --set park.params=host --emit verl:parked.sh >parked.txt 2>&1 ||
    { cat parked.txt >&2; fail "usual.sh, parked"; }
grep -qi "param_offload=true" parked.sh || { cat parked.sh >&2; fail "parked.sh"; }
if grep -q "strategy=fsdp2" parked.sh; then fail "parked.sh: another strategy"; fi

# what the settings leave to the framework is named as that
planned "$STOWAGE" plan --model Qwen3-8B --cluster h200-x8 --set engine=fsdp2 --set parallel.dp_shard=8 --set batch.seq_len=4096 \
    --emit fsdp2:train.py >left.txt 2>&1 || fail "fsdp2"
grep -q "parallel.dp_shard: the plan has 8; these settings do not set it; same bytes" left.txt || { cat left.txt >&2; fail "left.txt"; }
