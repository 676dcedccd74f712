#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How fast are Stowage's optimizer steps beside those of torch, on the same tensors and machine?
# Resident: torch's fused and foreach AdamW. Streamed: a per-layer step as trainers write it, with
# torch's fused kernel. CPU: torch's fused, default and foreach AdamW on host tensors, with all cores,
# against update.cpu=1 with parameters, gradients and moments on the host, so that nothing is copied.
# fp32, no clipping. On several GPUs torch runs under torchrun and each rank has its rows; CPU peers
# then are left out.
#
#     bench/peers.sh [OUT_FOLDER]      MODEL=Qwen3-1.7B STEPS=8 TORCH_BUDGET_S=200 TORCH_DEVICE=cuda
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/peers}" Qwen3-1.7B 8
torch_budget=${TORCH_BUDGET_S:-200}
device=${TORCH_DEVICE:-cuda}
torchrun=
[ "$gpus" = 1 ] || torchrun="-m torch.distributed.run --nproc-per-node $gpus"

"$STOWAGE" inspect "$model" --tensors "$out/tensors.csv" >/dev/null

gparam() { calc %.3f "$1 / 1e9"; }
mib() { calc %.0f "$1 / 1048576"; }

# torch_peers NAME WHAT COMMAND...
torch_peers() {
    name=$1
    what=$2
    shift 2
    logged "$out/$name.txt" torch "$@" "$bench/peers_torch.py" --tensors "$out/tensors.csv" --steps "$steps" \
        --device "$device" --budget-s "$torch_budget" --what "$what" -o "$out/$name.json" || echo "$name: $failure"
    for peer in $(echo "$what" | tr , ' '); do
        rate=$(figure "$out/$name.json" "peers.$peer.params_per_s")
        if [ "$rate" = "?" ]; then
            line "torch $peer" "?" "?" "?" "?" "$(figure "$out/$name.json" "peers.$peer.error")"
            continue
        fi
        line "torch $peer" "$(gparam "$rate")" "$(calc %.4f "$(figure "$out/$name.json" "peers.$peer.step_s")")" \
            "$(mib "$(figure "$out/$name.json" "peers.$peer.gpu_extra_bytes")")" \
            "$(calc %.1f "$(figure "$out/$name.json" "peers.$peer.setup_s")")"
        row "torch $peer per rank" "" "$(gparam "$rate")" "" Gparam/s
    done
}

# own NAME OPTION...
own() {
    own=$1
    shift
    if ! measure "$own" "$steps" run --set optimizer.clip_norm=none "$@"; then
        line "stowage $own" "?" "?" "?" "?" "$failure"
        return 0
    fi
    stage=$(ran "$own" ranks.0.phases.optimizer_step.components.stage)
    [ "$stage" != "?" ] || stage=0
    step=$(ran "$own" time_s.optimizer_step)
    line "stowage $own" "$(gparam "$(ran "$own" rates.params_per_s)")" "$(calc %.4f "$step")" "$(mib "$stage")" \
        "$(calc %.1f "$(ran "$own" time_s.load)")" "predicted $(calc %.4f "$(planned "$own" time_s.optimizer_step)"), validate $verdict"
    row "$own per rank" "$(calc %.3f "$(ran "$own" rates.params_per_s) * $step / $(planned "$own" time_s.optimizer_step) / 1e9")" \
        "$(gparam "$(ran "$own" rates.params_per_s)")" "" Gparam/s
}

# against NAME FILE PEER: the ratio of a row of Stowage's to torch's
against() {
    ratio=$(calc %.3f "$(ran "$1" rates.params_per_s) / $(figure "$out/$2.json" "peers.$3.params_per_s")")
    line "stowage $1 / torch $3" "$ratio"
    row "$1 over torch $3" "" "$ratio" "" ratio
}

line "what, per rank" Gparam/s "step (s)" "GPU beside its state (MiB)" "set-up or load (s)"
# shellcheck disable=SC2086
own resident $on_gpu --set placement.moments=gpu --set optimizer.implementation=fused
# shellcheck disable=SC2086
own stream $streamed
# shellcheck disable=SC2086
torch_peers torch-gpu fused,foreach,streamed "$python" $torchrun
# shellcheck disable=SC2086
own cpu $on_host --set optimizer.implementation=cpu --set update.cpu=1
if [ "$gpus" = 1 ]; then
    torch_peers torch-cpu cpu_fused,cpu_default,cpu_foreach "$python"
    against cpu torch-cpu cpu_fused
    against cpu torch-cpu cpu_default
fi
against resident torch-gpu fused
against stream torch-gpu streamed
show "optimizer steps of $model beside torch $(figure "$out/torch-gpu.json" torch), $machine"
[ "$gpus" != 1 ] || figure "$out/torch-cpu.json" threads cores threads_by_default | while read -r threads cores default; do
    echo "torch on the CPU: $threads threads on $cores cores ($default by default)"
done
