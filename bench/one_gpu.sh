#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One GPU, what no other script asks: has the host backend the bits of CUDA, what does a user get who
# asks for nothing, and does `validate` find falsified plans (one made with twice the bandwidth, one
# with a byte count 5% off)? Moments are streamed.
#
#     bench/one_gpu.sh [OUT_FOLDER]          MODEL=Qwen3-4B STEPS=5
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
GPUS=1
begin "${1:-bench/results/one_gpu}" Qwen3-4B 5

# digests_line NAME
digests_line() { line "digests, $1" "$("$python" "$bench/figures.py" digests "$out/$1.run.json")"; }
# times_line NAME
times_line() {
    predicted=$(planned "$1" time_s.optimizer_step)
    measured=$(ran "$1" time_s.optimizer_step)
    line "step, $1: predicted, measured (s)" \
        "$(calc %.4f "$predicted"), $(calc %.4f "$measured") ($(off "$predicted" "$measured")), validate exit $verdict"
    step_rows "$1" "$1" ""
}
# verdict_of PLAN RUN: validate's exit code
verdict_of() { bounded "$STOWAGE" validate "$1" "$2" >"$out/last.txt" 2>&1 && echo 0 || echo $?; }
# found_line WHAT EXPECTED EXIT
found_line() {
    line "validate: $1" "exit $3 (expected $2)"
    row "validate's exit code: $1" "$2" "$3" "" ""
}

# shellcheck disable=SC2086
if measure streamed "$steps" run $streamed; then
    times_line streamed
    digests_line streamed
    cp "$out/streamed.plan.json" "$out/host.plan.json"
    backend=host
    if execute host "$steps" run; then digests_line host; else line "host backend" "$failure"; fi
    backend=${BACKEND:-cuda}

    sed 's/\(both\|h2d\|d2h\|dma\|dma_up\|dma_down\|bandwidth\): [0-9.]* [GM]B/\1: 500 GB/g' "$out/cluster.yaml" >"$out/falsified.yaml"
    bucket=$(planned streamed prefetch.bucket_bytes)
    depth=$(planned streamed prefetch.depth)
    # shellcheck disable=SC2086
    bounded "$STOWAGE" plan --model "$model" --cluster "$out/falsified.yaml" $rank_options $streamed \
        --set "prefetch.bucket=$bucket" --set "prefetch.depth=$depth" -o "$out/fast.plan.json" >"$out/last.txt" 2>&1 ||
        echo "fast: plan: exit $?"
    allocated=$(planned streamed ranks.0.phases.optimizer_step.allocated)
    sed "s/\"allocated\": $allocated/\"allocated\": $((allocated + allocated / 20))/" "$out/streamed.plan.json" >"$out/bytes.plan.json"
    found_line genuine 0 "$(verdict_of "$out/streamed.plan.json" "$out/streamed.run.json")"
    found_line "falsified bandwidth" 8 "$(verdict_of "$out/fast.plan.json" "$out/streamed.run.json")"
    found_line "falsified bytes" 3 "$(verdict_of "$out/bytes.plan.json" "$out/streamed.run.json")"
else
    line streamed "$failure"
fi
if measure default "$steps" run; then
    times_line default
    digests_line default
else
    line default "$failure"
fi
show "one GPU, $model, $machine"
