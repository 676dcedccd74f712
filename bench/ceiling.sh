#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How near does the streamed optimizer step come to what the links allow? After every step the program
# ceiling measures raw copies both ways in several shapes; the best of them is the ceiling.
# Moments in fp32 on the host (8 B each way per parameter), then bf16 parameters and gradients with
# fp32 master and moments on the host (12 B each way). With STEPS_LONG a long run follows: memory must
# not grow.
#
#     bench/ceiling.sh [OUT_FOLDER]      MODEL=Qwen3-4B STEPS=12 MODEL_LONG=Qwen3-0.6B STEPS_LONG=0
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/ceiling}" Qwen3-4B 12

# headline NAME WHAT OPTION...
headline() {
    headline=$1
    what=$2
    shift 2
    # shellcheck disable=SC2086
    if ! measure "$headline" "$steps" ceiling $streamed "$@"; then
        line "$what" "$failure"
        return 0
    fi
    params=$(planned "$headline" model.params)
    predicted=$(planned "$headline" time_s.optimizer_step)
    step=$(ran "$headline" time_s.optimizer_step)
    copies=$(ran "$headline" rates.copies_s)
    up=$(ran "$headline" rates.bytes_per_s_up)
    down=$(ran "$headline" rates.bytes_per_s_down)
    shape=$("$python" "$bench/figures.py" best "$out/$headline.run.json")
    share=$(ran "$headline" rates.link_share)
    link=${shape##* }
    stage=$(planned "$headline" ranks.0.phases.optimizer_step.components.stage)
    line "$what" ""
    line "  step: predicted, measured, its copies alone (s)" \
        "$(calc %.4f "$predicted"), $(calc %.4f "$step"), $(calc %.4f "$copies") ($(off "$predicted" "$step"))"
    line "  Gparam/s, all ranks" "$(calc %.3f "$params / $step / 1e9")"
    line "  GB/s up, down, per GPU" "$(calc %.2f "$up / 1e9"), $(calc %.2f "$down / 1e9")"
    line "  best raw copies (bytes, streams or ring, B/s each way)" "$shape"
    line "  share of the best raw copies" "$(calc %.1f%% "100 * $share")"
    line "  staging on a GPU (B), validate" "$stage, exit $verdict"
    step_rows "$headline" "$what" "$copies"
    row "$what: parameters per second" "$(calc %.3f "$params / $predicted / 1e9")" "$(calc %.3f "$params / $step / 1e9")" "" Gparam/s
    row "$what: each way per GPU" "$(calc %.2f "$up * $step / $predicted / 1e9")" "$(calc %.2f "$up / 1e9")" \
        "$(calc %.2f "$link / 1e9")" GB/s
    row "$what: share of the best raw copies" "" "$(calc %.4f "$share")" "1" ratio
    row "$what: staging on a GPU" "$(calc %.1f "$stage / 1048576")" \
        "$(calc %.1f "$(ran "$headline" ranks.0.phases.optimizer_step.components.stage) / 1048576")" "" MiB
}
headline moments "fp32 moments streamed"
# shellcheck disable=SC2086
headline master "bf16 with fp32 master and moments streamed" $with_master --set placement.master=host

if [ "${STEPS_LONG:-0}" -gt 0 ]; then
    model=${MODEL_LONG:-Qwen3-0.6B}
    # shellcheck disable=SC2086
    if measure long "$STEPS_LONG" run $streamed; then
        line "$STEPS_LONG steps of $model" ""
        line "  step, validate" "$(calc %.4f "$(ran long time_s.optimizer_step)") s, exit $verdict"
        for tier in gpu host; do
            grown=$(ran long "steady.${tier}_growth_bytes")
            line "  $tier memory grown after the first tenth of them (B)" "$grown"
            row "$STEPS_LONG steps streamed: growth of $tier memory" 0 "$grown" "" B
        done
    else
        line "$STEPS_LONG steps of $model" "$failure"
    fi
fi
show "the streamed step against the links, $machine"
