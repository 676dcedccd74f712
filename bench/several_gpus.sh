#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several GPUs of one node: the streamed step under mpirun and under torchrun; rank 0 alone reads the
# weights and broadcasts them. Keep NCCL_NVLS_ENABLE=0 where NVLink multicast is not wanted.
#
#     bench/several_gpus.sh [OUT_FOLDER]         GPUS=2 MODEL=Qwen3-4B STEPS=8 STOWAGE=build/bin/stowage
set -eu
stowage=${STOWAGE:-build/bin/stowage}
model=${MODEL:-Qwen3-4B}
gpus=${GPUS:-2}
steps=${STEPS:-8}
out=${1:-bench/results/several_gpus}
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

digests() { grep -A 4 '"digest"' "$1" | grep -E '"(params|exp_avg|exp_avg_sq)"' | tr -d ' ,\n'; }
code() { "$@" >"$out/last.txt" 2>&1 && echo 0 || echo $?; }

"$stowage" calibrate --quick -o "$out/cluster.yaml"
cat "$out/cluster.yaml"
# shellcheck disable=SC2086
"$stowage" plan --model "$model" --cluster "$out/cluster.yaml" --set placement.params=gpu --set placement.grads=gpu \
    --set placement.moments=host --set optimizer.implementation=streamed --set load.method=rank0_broadcast ${RING:-} -o "$out/plan.json"

under() {
    name=$1
    shift
    "$@" "$stowage" run "$out/plan.json" --backend cuda --steps "$steps" --ceiling -o "$out/$name.json" >"$out/$name.txt" 2>&1 || {
        echo "$name: exit $?"
        tail -n 20 "$out/$name.txt"
        return 0
    }
    "$stowage" validate "$out/plan.json" "$out/$name.json" >"$out/$name.validate" || echo "validate $name: exit $?"
    cat "$out/$name.validate"
}
under mpirun mpirun -n "$gpus" --bind-to none
under torchrun torchrun --nproc-per-node "$gpus" --no-python

echo
echo "== $gpus GPUs, $model, moments streamed =="
for name in mpirun torchrun; do
    [ -f "$out/$name.json" ] || continue
    echo "$name: step $(sed -n 's/^ *"optimizer_step": *\([0-9]*\.[0-9e-]*\),\{0,1\}$/\1/p' "$out/$name.json" | head -n 1) s measured, $(sed -n 's/^ *"optimizer_step": *\([0-9]*\.[0-9e-]*\),\{0,1\}$/\1/p' "$out/plan.json" | head -n 1) s planned, digest $(digests "$out/$name.json"), validate $(code "$stowage" validate "$out/plan.json" "$out/$name.json")"
done
