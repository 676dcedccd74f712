#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `--emit` makes of a launch script gives the launcher the same arguments and environment under bash as the script
# does, but for what the plan changes.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
CLUSTER="$STW_SOURCE_DIR/models/examples/h100-80g-x8.yaml"
command -v bash >/dev/null || exit 77
mkdir -p bin
cat >bin/torchrun <<'EOS'
#!/bin/sh
{
    for word in "$@"; do printf '<%s>\n' "$word"; done
    env | grep -E '^(CUDA_DEVICE_MAX_CONNECTIONS|NCCL_|WANDB|OWN)' | sort
} >"$ARGUMENTS"
EOS
cp bin/torchrun bin/python3
chmod +x bin/*
SIZES='--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16
  --micro-batch-size 2 --global-batch-size 64 --use-distributed-optimizer'
cat >one.sh <<EOF2
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG="\${NCCL_DEBUG:-WARN}"
MASTER_ADDR=\${MASTER_ADDR:-localhost}
NODE_RANK=\${NODE_RANK:-0}
OUT=\$1
TOKENIZER="\$2"
DATA=\$3
DIST=(--nproc_per_node 8 --nnodes 1 --node_rank \$NODE_RANK --master_addr \$MASTER_ADDR --master_port \${MASTER_PORT:-6000})
ARGS=($SIZES)
torchrun \${DIST[@]} pretrain_gpt.py "\${ARGS[@]}" --save \$OUT --tokenizer-model "\$TOKENIZER/model file" --data-path \$DATA \\
  --lr \${LR:-1e-4} --wandb-exp-name 'costs \$5 a "day"' --tensorboard-dir "\$OUT/logs" --vocab-file it\\'s\\\$x
EOF2
cat >two.sh <<EOF2
export NCCL_IB_TIMEOUT=22 WANDB_NAME="run of \$USER_NAME"
DATA=(--data-path \$3 --split 99,1,0)
OWN_SECRET=no
TEXT="$(echo $SIZES)"
TEXT="\$TEXT --save \$1/ckpt"
torchrun --nproc_per_node=8 pretrain_gpt.py \$TEXT "\${DATA[@]}" --tensorboard-dir=\$2 --load="\$1 x" "\$@"
EOF2
cat >three.sh <<EOF2
FILE=\$1/a.bin
FOLDER=\$(dirname "\$FILE")
export OWN_NAME=x.y
NCCL_P2P_LEVEL=NVL torchrun --nproc_per_node \${GPUS:-8} tools/pretrain_gpt.py $(echo $SIZES) --save \`echo a b\` --load "\$(echo c  d)" \\
  --data-path \${DATA_PATH:-/data/x} --vocab-file "\${VOCAB:-/v}" --merge-file "\$MERGES" --tensorboard-dir "\${FILE%.bin}/\${OWN_NAME%.y}" --wandb-save-dir "\${FOLDER#o}"
EOF2
cat >four.sh <<'EOF2'
set -x
export WANDB_MODE=offline
model=${MODEL_PATH:-Qwen/Qwen3-0.6B}
python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 data.train_files=$DATA_PATH/a.parquet \
  'data.val_files=${data.train_files}' actor_rollout_ref.model.path=$model actor_rollout_ref.rollout.name=vllm \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp2 algorithm.adv_estimator=grpo \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  trainer.logger='["console","wandb"]' +trainer.extra="$1" trainer.experiment_name="a b $2" $@
EOF2
cat >five.sh <<'EOF2'
FILES="['$DATA_PATH/a.parquet', '$DATA_PATH/b.parquet']"
python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 data.train_files="$FILES" \
  actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8 trainer.nnodes=1 \
  actor_rollout_ref.actor.strategy=fsdp2 algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  trainer.default_local_dir=${1:-out} trainer.project_name=\$literal "${@}"
EOF2
arguments() { # SCRIPT OUT: what the launcher gets
    env PATH="$PWD/bin:$PATH" ARGUMENTS="$PWD/$2" USER_NAME='a  b' DATA_PATH='/d 1' MERGES='m  n' NODE_RANK=3 MASTER_ADDR=host7 LR=5 \
        bash "$1" 'out dir' 'tok x' 'p q' 'extra=y' >/dev/null 2>&1 || fail "$1 does not run: $(cat "$1")"
}
for case in megatron:one megatron:two megatron:three verl:four verl:five; do
    framework=${case%:*} name=${case#*:}
    planned "$STOWAGE" plan --from "$framework:$name.sh" --cluster "$CLUSTER" --set nodes=1 --emit "$framework:$name.emitted.sh" \
        >notes.txt 2>err.txt || fail "$name: $(cat err.txt)"
    grep -q '^No changes' notes.txt || fail "$name: $(cat notes.txt)"
    arguments "$name.sh" before.txt
    arguments "$name.emitted.sh" after.txt
    # flags may be written in another order, and --flag=value as --flag value; words of each flag stay together
    for side in before after; do
        sed 's/^<\(--[a-z_-]*\)=/<\1>\n</' $side.txt | awk '/^<--/ || /^<[+a-z_.]*=/ || !/^</ { printf "\n" } { printf "%s", $0 }' | sort >$side.sorted
    done
    cmp -s before.sorted after.sorted || fail "$name: $(diff before.sorted after.sorted) $(cat "$name.emitted.sh")"
done
# characters that the reader keeps for itself are no script
printf 'torchrun pretrain_gpt.py --num-layers 8 --save "\004"\n' >marks.sh
expect 3 'marks.sh:1:1: found control character 4, expected text' "$STOWAGE" plan --from megatron:marks.sh --cluster "$CLUSTER"
# on four nodes each has its rank, and a change is the plan's
planned "$STOWAGE" plan --from megatron:one.sh --cluster "$CLUSTER" --set nodes=4 --set parallel.tp=2 --emit megatron:again.sh >/dev/null 2>&1
arguments again.sh again.txt
tr '\n' ' ' <again.txt >words.txt
grep -q '<--nnodes> <4> <--node_rank> <3> <--master_addr> <host7> <--master_port> <6000>' words.txt || fail "nodes: $(cat words.txt)"
grep -q '<--tensor-model-parallel-size> <2>' words.txt || fail "no change: $(cat words.txt)"
# a launch of one node has no ranks of nodes, or those of the machine that it was written on
sed -i 's/^NODE_RANK=.*/NODE_RANK=0/; s/^MASTER_ADDR=.*/MASTER_ADDR=localhost/' one.sh
planned "$STOWAGE" plan --from megatron:one.sh --cluster "$CLUSTER" --set nodes=4 --emit megatron:again.sh >/dev/null 2>&1
grep -q -e '--node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR"' again.sh || fail "ranks: $(cat again.sh)"
planned "$STOWAGE" plan --from megatron:three.sh --cluster "$CLUSTER" --set nodes=4 --emit megatron:again.sh >/dev/null 2>&1
grep -q -e '--nnodes 4 --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port 29500 tools' again.sh ||
    fail "no ranks: $(cat again.sh)"
