#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where GPU memory is short, is the planner's choice faster than streaming everything and than all on
# the CPU? At caps that are shares of what the all-resident plan needs, in percent, or sizes ("14GiB"):
# predicted and measured step of the three, each under the same cap.
#
#     bench/caps.sh [OUT_FOLDER]      MODEL=Qwen3-1.7B STEPS=12 CAPS="50 65 85" SEQ_LEN=512
#                                     PLANS="choice stream cpu"
#
# Forward and backward are planned and not run; a short sequence keeps their activations small.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/caps}" Qwen3-1.7B 12
caps=${CAPS:-50 65 85}
sequence="--set batch.seq_len=${SEQ_LEN:-512}"

# shellcheck disable=SC2086
plan resident $sequence --set placement.params=gpu --set placement.grads=gpu --set placement.moments=gpu || {
    echo "resident: $failure"
    exit 1
}
need=$(planned resident peaks.gpu_bytes.peak)
echo "all resident: $(gib "$need") GiB of GPU memory at its peak"

options_of() {
    case $1 in
    choice) ;;
    stream) echo "--set optimizer.implementation=streamed --set placement.moments=host" ;;
    cpu) echo "--set optimizer.implementation=cpu --set placement.moments=host" ;;
    esac
}

line cap GiB plan "step: predicted" measured off "over choice" validate updates
for cap in $caps; do
    case $cap in
    *GiB) bytes=$(calc %.0f "${cap%GiB} * 1073741824") label=$cap ;;
    *) bytes=$(calc %.0f "$need * $cap / 100") label="$cap%" ;;
    esac
    choice="?"
    for what in ${PLANS:-choice stream cpu}; do
        # shellcheck disable=SC2046,SC2086
        if ! measure "$what-$cap" "$steps" run $sequence --set "node.gpu.memory=${bytes}B" $(options_of $what); then
            line "$label" "$(gib "$bytes")" "$what" "$failure"
            continue
        fi
        predicted=$(planned "$what-$cap" time_s.optimizer_step)
        measured=$(ran "$what-$cap" time_s.optimizer_step)
        [ "$what" != choice ] || choice=$measured
        line "$label" "$(gib "$bytes")" "$what" "$(calc %.4f "$predicted")" "$(calc %.4f "$measured")" \
            "$(off "$predicted" "$measured")" "$(calc %.2f "$measured / $choice")" "exit $verdict" \
            "$("$python" "$bench/figures.py" updates "$out/$what-$cap.plan.json")"
        step_rows "$what-$cap" "$what at a cap of $label" ""
    done
done
show "the planner's choice against streaming everything and all on the CPU, $model, $machine"
