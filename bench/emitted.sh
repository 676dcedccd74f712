#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs of torch FSDP2 and DeepSpeed with the settings that `plan --emit` wrote, recorded and validated.
#
#     GPUS=2 CASES="mixed offload zero3 zero2" bench/emitted.sh OUT
#
# writes OUT/cluster.yaml (stowage calibrate; an existing one is kept), and for each case the plan, the emitted settings,
# the recording, and what validate says. STOWAGE names the program, PYTHON a python3 with torch, transformers, deepspeed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?folder}
gpus=${GPUS:-2}
stowage=${STOWAGE:-$here/../build/bin/stowage}
python=${PYTHON:-python3}
mkdir -p "$out"
[ -e "$out/cluster.yaml" ] || "$stowage" calibrate -q -o "$out/cluster.yaml" || exit 1

# run NAME SETTINGS "ARGUMENTS OF emitted_torch.py" ARGUMENTS OF plan...
run() {
    case " ${CASES:-mixed offload zero3 zero2} " in *" $1 "*) ;; *) return ;; esac
    name=$1 settings=$out/$1.$2 loop=$3
    shift 3
    "$stowage" plan --cluster "$out/cluster.yaml" "$@" -o "$out/$name.plan.json" >"$out/$name.plan.txt" 2>&1
    "$stowage" plan --cluster "$out/cluster.yaml" "$@" --emit "$engine:$settings" >>"$out/$name.plan.txt" 2>&1
    allocator=
    grep -q '^# Start with PYTORCH_CUDA_ALLOC_CONF' "$settings" && allocator=expandable_segments:True
    # shellcheck disable=SC2086 # several arguments
    PYTORCH_CUDA_ALLOC_CONF=$allocator "$stowage" record -q -o "$out/$name.run.json" -- "$python" -m torch.distributed.run \
        --nproc-per-node "$gpus" "$here/emitted_torch.py" $loop "$settings" >"$out/$name.log" 2>&1 </dev/null ||
        { echo "$name: FAILED"; tail -n 15 "$out/$name.log"; return; }
    echo "== $name"
    "$stowage" validate "$out/$name.plan.json" "$out/$name.run.json" | tee "$out/$name.validate.txt"
}

engine=fsdp2
run mixed py "--model Qwen3-4B" --model Qwen3-4B --set engine=fsdp2 --set batch.micro_batch=5 --set batch.seq_len=4096 \
    --set node.host.memory=7GiB --set allocator.expandable_segments=true
run offload py "--model Qwen3-1.7B" --model Qwen3-1.7B --set engine=fsdp2 --set fsdp.offload_policy=true --set batch.seq_len=4096 \
    --set recompute.granularity=full --set batch.grad_accumulation=2 --set fsdp.sync_each_micro_batch=false
engine=deepspeed
cat >"$out/z3.json" <<'EOF'
{"zero_optimization": {"stage": 3, "reduce_bucket_size": 2e8}, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
EOF
cat >"$out/z2.json" <<'EOF'
{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}, "bf16": {"enabled": true},
 "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 1}
EOF
run zero3 json "--model Qwen3-4B --seq 4096 --recompute" --from "deepspeed:$out/z3.json" --model Qwen3-4B --set batch.seq_len=4096 \
    --set recompute.granularity=full
run zero2 json "--model Qwen3-0.6B --seq 4096 --recompute --steps 4" --from "deepspeed:$out/z2.json" --model Qwen3-0.6B \
    --set batch.seq_len=4096 --set recompute.granularity=full
