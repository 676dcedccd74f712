#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All figures of a node with several GPUs in two calls: its calibration against the ceilings of the same
# run, the streamed step, plans under caps, loads, and digests against one GPU's.
#
#     bench/four_gpus.sh steps OUT_FOLDER     calibrate (full and quick), ceiling.sh, caps.sh
#     bench/four_gpus.sh loads OUT_FOLDER     loads.sh; digests of four ranks and of one
#
# MODEL=Qwen3-4B MODELS="Qwen3-8B Qwen3-30B-A3B" BUDGET_S=540
set -eu
part=${1:?"steps or loads"}
out=${2:?"a folder for raw figures"}
here=$(dirname "$0")
STOWAGE=${STOWAGE:-build/bin/stowage}
export STOWAGE
budget_end=$(($(date +%s) + ${BUDGET_S:-540}))
mkdir -p "$out"

# left SHARE: seconds of what is left of the budget
left() { echo $(((budget_end - $(date +%s)) * $1 / 100)); }
# calibrated NAME OPTION...: NAME.yaml, and how long it took
calibrated() {
    name=$1
    shift
    from=$(date +%s)
    "$STOWAGE" calibrate "$@" -o "$out/$name.yaml" >/dev/null
    echo "calibrate $name: $(($(date +%s) - from)) s"
}

case $part in
steps)
    calibrated quick --quick
    calibrated full
    grep -E 'pcie|dma|bandwidth|nvlink|hbm|cpu_adamw' "$out/quick.yaml" "$out/full.yaml" | grep -v '#' || true
    CLUSTER=$out/full.yaml BUDGET_S=$(left 45) "$here/ceiling.sh" "$out/ceiling" || echo "ceiling.sh: exit $?"
    CLUSTER=$out/full.yaml MODEL=${MODEL:-Qwen3-4B} BUDGET_S=$(left 95) "$here/caps.sh" "$out/caps" || echo "caps.sh: exit $?"
    ;;
loads)
    calibrated quick --quick
    CLUSTER=$out/quick.yaml MODELS=${MODELS:-Qwen3-8B Qwen3-30B-A3B} BUDGET_S=$(left 75) "$here/loads.sh" "$out/loads" ||
        echo "loads.sh: exit $?"
    for gpus in 1 "$(sed -n "s/^  gpus: *\([0-9]*\).*/\1/p" "$out/quick.yaml")"; do
        CLUSTER=$out/quick.yaml GPUS=$gpus PLANS="stream cpu-25" STEPS=10 MODEL=Qwen3-1.7B BUDGET_S=$(left 60) \
            "$here/plans.sh" "$out/plans$gpus" || echo "plans.sh: exit $?"
    done
    cmp "$out/plans1/digest.Qwen3-1.7B" "$out/plans$gpus/digest.Qwen3-1.7B" && echo "digests of one GPU and of all are equal"
    ;;
*)
    echo "four_gpus.sh: found '$part', expected steps or loads" >&2
    exit 2
    ;;
esac
