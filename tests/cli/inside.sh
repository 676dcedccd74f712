#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stowage's optimizer in a job of FSDP2: planned, simulated, reported, compared with a recording, and refused by `run`.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
set -- --model tiny --cluster tiny.yaml --set engine=fsdp2 --set optimizer.implementation=stowage --set batch.seq_len=512 --set precision.params=bf16 \
    --set precision.grads=bf16 --set precision.master=fp32 --set update.resident=0.5 --set prefetch.bucket=1MiB --set prefetch.depth=2

"$STOWAGE" plan "$@" -v -o plan.json >plan.txt 2>/dev/null || fail "plan: exit code $?"
grep -q "GPU ring for streamed state: 2 x 1.00 MiB" plan.txt || fail "no ring: $(grep -i ring plan.txt)"
grep -q "resident" plan.txt && grep -q "stream" plan.txt || fail "no shares"
"$STOWAGE" simulate plan.json -v >simulate.txt || fail "simulate: exit code $?"
grep -Eq '^ *optimizer_step +stowage ' simulate.txt || fail "the step is not by stowage: $(grep optimizer_step simulate.txt)"
grep -Eq '^ *forward_backward +fsdp2 ' simulate.txt || fail "forward and backward are not by fsdp2"

code=0
"$STOWAGE" run plan.json --backend host --steps 1 >/dev/null 2>run.err || code=$?
[ $code = 7 ] || fail "run: exit code $code"
grep -q "works inside a job of fsdp2 (stowage.torch.AdamW(plan=...))" run.err || fail "run: $(cat run.err)"

# a recording of the job: its rows are compared as any framework's are
peak=$(sed -n '/^    "gpu_bytes"/,/}/s/^ *"forward_backward": *\([0-9]*\).*/\1/p' plan.json | head -n 1)
{
    echo time,rank,phase,metric,bytes
    echo "1,0,forward_backward,allocated,$((peak - 6000000))" # without page tables and what collectives take
} >job.csv
code=0
"$STOWAGE" validate plan.json job.csv >validate.txt 2>&1 || code=$?
[ $code = 0 ] || fail "validate: exit code $code, $(cat validate.txt)"
grep -q allocated validate.txt || fail "validate compares nothing: $(cat validate.txt)"

# the job's file says which optimizer it is, and the plan as settings of torch
cat >ppo.sh <<'EOP'
python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 \
  actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8 \
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 algorithm.adv_estimator=grpo \
  actor_rollout_ref.actor.optim.optimizer_impl=stowage.torch actor_rollout_ref.actor.optim.optimizer=AdamW \
  actor_rollout_ref.actor.fsdp_config.model_dtype=bf16 actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
EOP
"$STOWAGE" plan --from verl:ppo.sh --cluster h200-x8 -o ppo.json -v >ppo.txt 2>&1 || fail "verl: exit code $?, $(cat ppo.txt)"
grep -q '"implementation": "stowage"' ppo.json && grep -q '"master": "fp32"' ppo.json || fail "verl: another optimizer"
grep -q 'places its state itself' ppo.txt || fail "verl: nothing is said of the offload"
"$STOWAGE" plan "$@" --emit fsdp2:job.py >emit.txt 2>&1 || fail "--emit fsdp2: exit code $?, $(cat emit.txt)"
grep -q '^BUCKET, DEPTH = 1048576, 2 ' job.py || fail "--emit fsdp2: no ring"
grep -q 'stowage.torch.AdamW(model, clip_norm=MAX_NORM, overlap=False, gpu_memory=GPU_MEMORY,' job.py || fail "--emit fsdp2: another optimizer"
! grep -q clip_grad_norm_ job.py || fail "--emit fsdp2: clipped twice"
python3 -c 'import ast; ast.parse(open("job.py").read())' || fail "--emit fsdp2: not Python"

# state on NVMe: planned, and said with the folder that the job names
"$STOWAGE" plan "$@" --set update.resident=0 --set node.nvme.capacity=10GiB --set placement.moments=nvme --set placement.master=nvme \
    --emit fsdp2:nvme.py -o nvme.json >nvme.txt 2>&1 || fail "NVMe: exit code $?, $(cat nvme.txt)"
grep -q '^  NVMe \[' nvme.txt || fail "NVMe: no bytes: $(cat nvme.txt)"
"$STOWAGE" simulate nvme.json -v >simulate.txt || fail "NVMe: simulate: exit code $?"
grep -q 'disk, busy' simulate.txt || fail "NVMe: the step waits for something else: $(grep -i bottleneck simulate.txt)"
grep -q '^HOST_MEMORY = [0-9]* ' nvme.py && grep -q '^def adamw(model, nvme, ' nvme.py && grep -q 'nvme=nvme, host_memory=HOST_MEMORY' nvme.py ||
    fail "--emit fsdp2: NVMe: $(cat nvme.py)"
python3 -c 'import ast; ast.parse(open("nvme.py").read())' || fail "--emit fsdp2: NVMe: not Python"
"$STOWAGE" plan "$@" --set precision.exp_avg=bf16 --set precision.exp_avg_sq=bf16 --set optimizer.overlap=true \
    --set 'optimizer.groups=[{match: [1d], weight_decay: 0}, {match: ["*embed*", "lm_head.*"], lr: 0.25}]' --emit fsdp2:job.py >emit.txt 2>&1 ||
    fail "--emit fsdp2 with groups: exit code $?, $(cat emit.txt)"
cat >run_job.py <<'EOP'
import sys
import types


class Module:  # what groups() and adamw() use of torch and of a model
    def __init__(self, **sizes):
        self.sizes = sizes

    def named_parameters(self):
        return [(n.replace("__", "."), types.SimpleNamespace(dim=lambda d=d: d)) for n, d in self.sizes.items()]


class Optimizer:
    def __init__(self, params, **arguments):
        self.params, self.arguments, self.hidden = params, arguments, None

    def hide_behind(self, model):
        self.hidden = model


class Anything(types.ModuleType):
    def __getattr__(self, name):
        return Optimizer if name == "AdamW" else name


for name in ["torch", "stowage", "stowage.torch", "torch.distributed", "torch.distributed.algorithms", "torch.distributed.device_mesh",
             "torch.distributed.algorithms._checkpoint", "torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "torch.distributed.fsdp"]:
    sys.modules[name] = Anything(name)
sys.modules["stowage"].torch = sys.modules["stowage.torch"]
import job

model = Module(model__embed_tokens__weight=2, model__layers__0___checkpoint_wrapped_module__norm__weight=1, model__layers__0__mlp__weight=2)
optimizer = job.adamw(model, lr=1e-3)
found = [([name for name, _ in g["params"]], g.get("lr"), g.get("weight_decay")) for g in optimizer.params]
assert found == [(["model.layers.0.mlp.weight"], None, None), (["model.layers.0.norm.weight"], None, 0),
                 (["model.embed_tokens.weight"], 0.25, None)], found
assert optimizer.arguments["moments"] == "bfloat16" and optimizer.arguments["overlap"] is False, optimizer.arguments
assert optimizer.hidden is model
EOP
python3 -B run_job.py || fail "--emit fsdp2 with groups does something else"

# torch's optimizer finds no room where this one does
small="--model Qwen3-8B --cluster h200-x1 --set engine=fsdp2 --set precision.params=bf16 --set precision.grads=bf16 --set node.gpu.memory=60GiB --set node.host.memory=256GiB --set node.host.limit=256GiB"
code=0
"$STOWAGE" plan $small --set precision.exp_avg=bf16 --set precision.exp_avg_sq=bf16 --set optimizer.implementation=fused -o torch.json >/dev/null || code=$?
[ $code = 4 ] || fail "torch's AdamW: exit code $code"
"$STOWAGE" plan $small --set precision.master=fp32 --set optimizer.implementation=stowage -o inside.json >/dev/null || fail "stowage.torch.AdamW: exit code $?"
echo "inside: ok"
