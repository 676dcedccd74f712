#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several GPUs of one node: is the streamed step the same under mpirun and under torchrun? Rank 0 alone
# reads the weights and broadcasts them. Keep NCCL_NVLS_ENABLE=0 (the default here) where NVLink
# multicast is not wanted.
#
#     bench/several_gpus.sh [OUT_FOLDER]         MODEL=Qwen3-4B STEPS=8 GPUS=2
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/several_gpus}" Qwen3-4B 8

line launcher "step: predicted" "measured" "off" "copies alone" validate digests
for launcher in mpirun torchrun; do
    case $launcher in
    mpirun) launch="mpirun -n $gpus --bind-to none" ;;
    torchrun) launch="torchrun --nproc-per-node $gpus --no-python" ;;
    esac
    # shellcheck disable=SC2086
    if ! measure "$launcher" "$steps" ceiling $streamed --set load.method=rank0_broadcast; then
        line "$launcher" "$failure"
        continue
    fi
    predicted=$(planned "$launcher" time_s.optimizer_step)
    measured=$(ran "$launcher" time_s.optimizer_step)
    copies=$(ran "$launcher" rates.copies_s)
    line "$launcher" "$(calc %.4f "$predicted")" "$(calc %.4f "$measured")" "$(off "$predicted" "$measured")" "$(calc %.4f "$copies")" \
        "exit $verdict" "$("$python" "$bench/figures.py" digests "$out/$launcher.run.json")"
    step_rows "$launcher" "moments streamed under $launcher" "$copies"
done
show "$gpus GPUs, $model, moments streamed, $machine"
