#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Figures say what they are of: no seconds of what has no GPU, what an allocator reserves beside what is allocated, settings
# of imports that one GPU does not have, assumptions with value and key.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
cpu=$STW_SOURCE_DIR/models/examples/cpu-only.yaml
has() { grep -q -- "$2" "$1" || { cat "$1"; fail "$1 has no: $2"; }; }
lacks() { ! grep -- "$2" "$1" || fail "$1 has: $2"; }

# GPUs that are emulated train nothing, however many there are
"$STOWAGE" plan --model tiny --cluster "$cpu" --set batch.seq_len=64 --set node.gpus=2 --set node.nvlink=5GB/s -v -o two.json >two.txt 2>two.err ||
    fail "two emulated GPUs"
has two.txt "on 1 node without GPU (2 emulated in host memory)"
has two.txt "not predicted: the cluster has no GPU"
lacks two.txt "MFU\|-hours\|tokens/s\|Iteration time\|forward_backward .*[0-9] m\{0,1\}s"
"$STOWAGE" report --full two.json >two.report.txt
lacks two.report.txt "MFU\|-hours\|tokens/s\|Iteration time\|per iteration ("
[ "$(sed -n '/^  "time_s"/,/}/s/^ *"forward_backward": *//p' two.json)" = null, ] || fail "two.json times forward and backward"
has two.json '"alternatives": \[\]'
expect 3 "node.nvlink: found 0 with node.gpus 2, but there is no GPU: set node.nvlink .* nodes=2" \
    "$STOWAGE" plan --model tiny --cluster "$cpu" --set node.gpus=2 --set node.nvlink=0
"$STOWAGE" plan --model tiny --cluster "$cpu" --set node.gpus=2 --set node.nvlink=5GB/s --set node.gpu.bf16=100TFLOP/s >real.txt
has real.txt "on 1 node with 2 x GPU"

# the allocator's reserve is what runs out: the figure of the verdict stands beside the allocated bytes
"$STOWAGE" plan --model Qwen3-8B --cluster h100-80g-x8 --set engine=fsdp2 -q -o torch.json
"$STOWAGE" report --full torch.json >torch.txt
reserved=$(sed -n 's/^  GPU  \[.* used, \([0-9.]*\) reserved of 79.10 GiB each .*/\1/p' torch.txt)
most=$(sed -n 's/^  GPU reserved .* \([0-9.]*\) GiB  *79.10 GiB .*/\1/p' torch.txt | sort -n | tail -n 1)
[ -n "$reserved" ] || fail "no reserved bytes"
[ "$reserved" = "$most" ] || fail "reserved $reserved, the table has $most"
has torch.txt "Load method: rank0_broadcast (auto: the usual one)"
COLUMNS=200 "$STOWAGE" simulate torch.json >torch.short.txt
has torch.short.txt "Load method: rank0_broadcast (auto: the usual one)"
has torch.txt "Bottleneck: .*, busy for [0-9.]*% of forward_backward, which is [0-9.]*% of the iteration"
"$STOWAGE" plan --model tiny --cluster tiny.yaml >own.txt
lacks own.txt reserved

# keys of several ranks are not set for one; a user's own are refused as before
cat >lora.yaml <<'END'
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
template: qwen
cutoff_len: 1024
per_device_train_batch_size: 1
pure_bf16: true
END
printf 'swift sft --model Qwen/Qwen3-0.6B --train_type full --torch_dtype bfloat16 --fsdp fsdp2 --max_length 1024\n' >fsdp.sh
printf '{"bf16": {"enabled": true}, "communication_data_type": "fp32", "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}\n' >zero.json
for from in llamafactory:lora.yaml ms-swift:fsdp.sh "deepspeed:zero.json --model Qwen3-0.6B"; do
    # shellcheck disable=SC2086
    "$STOWAGE" plan --from $from --cluster h100-80g-x1 >import.txt 2>import.err || { cat import.err; fail "$from on one GPU"; }
done
expect 3 "precision.reduce: found bf16, which has no effect" \
    "$STOWAGE" plan --from llamafactory:lora.yaml --cluster h100-80g-x1 --set precision.reduce=bf16

# what is assumed: value and key
"$STOWAGE" plan --from deepspeed:zero.json --model Qwen3-0.6B --cluster h100-80g-x1 -v >zero.txt 2>zero.err
has zero.err "sequence length: not given; assumed 4,096 tokens (.*--set batch.seq_len="
has zero.err "gradient checkpointing: not given; assumed what the planner chooses (.*--set recompute.granularity="
lacks zero.err "assumed [a-z_]*\.[a-z_]* (not"
printf '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}\n' >cpu.json
"$STOWAGE" plan --from deepspeed:cpu.json --model Qwen3-8B --cluster h100-80g-x8 --set batch.seq_len=1024 >cpu.txt 2>/dev/null
has cpu.txt "Assumed: the optimizer has 1 thread of the CPU on each rank.*--set optimizer.cpu_threads=N"
"$STOWAGE" plan --from deepspeed:cpu.json --model Qwen3-8B --cluster h100-80g-x8 --set batch.seq_len=1024 --set optimizer.cpu_threads=1 >cpu.txt 2>/dev/null
lacks cpu.txt Assumed:

# state on NVMe is all that the files have
printf '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}}\n' >nvme.json
"$STOWAGE" plan --from deepspeed:nvme.json --model Qwen3-0.6B --cluster h100-80g-x8 --set node.nvme.capacity=8TB --set node.nvme.read=6GB/s --set node.nvme.write=6GB/s --set batch.seq_len=1024 --set recompute.granularity=full >nvme.txt 2>/dev/null
has nvme.txt "moments, master weights and fp32 gradients on NVMe"

# images without text; ranks of a role; whose hours; the shard of a rank
"$STOWAGE" plan --model Qwen3-VL-8B --cluster h100-80g-x8 --set batch.seq_len=1024 --set batch.image_tokens=1024 >images.txt
has images.txt "Warning: batch.image_tokens fill all 1024 tokens of a sequence"
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --run "$STW_SOURCE_DIR/models/examples/rl-qwen3-8b-hybrid.yaml" --set nodes=1 -o roles.json >roles.txt
has roles.txt "1000 iterations of the trainer take .* GPU-hours, without those of rollout\."
"$STOWAGE" report --full roles.json | sed -n '/^Peak memory by role/,/^$/p' >by_role.txt
has by_role.txt "^  rank 0  *load  *trainer"
has by_role.txt "^  ranks 1-7  *load  *trainer"
has by_role.txt "^  all 8 ranks  *forward_backward"
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --run "$STW_SOURCE_DIR/models/examples/deepspeed-zero2.yaml" -q -o shard.json
"$STOWAGE" report --full shard.json >shard.txt
has shard.txt "the largest rank holds .* parameters and updates .* of them"

# what a pattern chose needs no other
"$STOWAGE" clusters a100 >some.txt
lacks some.txt PATTERN
"$STOWAGE" clusters >all.txt
has all.txt "stowage clusters PATTERN"
echo "texts: ok"
