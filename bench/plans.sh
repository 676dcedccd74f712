#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Do plans of every kind cost what they predict? Shares of the parameters updated resident, streamed,
# by kernels in page-locked memory (direct), by the CPU and from NVMe, each planned, run and validated:
# step time, GPU and host memory, predicted against measured. Digests of runs of one model and
# precision must be equal.
#
#     bench/plans.sh [OUT_FOLDER]      MODEL=Qwen3-1.7B MODEL_SMALL=Qwen3-0.6B STEPS=12 GPUS=1
#                                      PLANS="resident stream-75 ..." (default: all)
#
# MODEL_SMALL is for all of it on NVMe (one GPU alone; needs node.nvme.capacity). "calibrate" among the
# PLANS calibrates anew there (--quick): memory and disks of shared machines change within minutes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/plans}" Qwen3-1.7B 12
large=$model
small=${MODEL_SMALL:-Qwen3-0.6B}
[ "$gpus" = 1 ] && nvme=nvme || nvme=
plans=${PLANS:-resident stream-25 stream-50 stream-75 stream direct cpu-10 cpu-25 cpu-50 cpu cpu-host $nvme bf16}

# shares RESIDENT STREAM CPU
shares() { echo "$on_gpu --set update.resident=$1 --set update.stream=$2 --set update.cpu=$3"; }

# options_of PLAN: as words
options_of() {
    case $1 in
    resident) shares 1 0 0 ;;
    stream-25) shares 0.75 0.25 0 ;;
    stream-50) shares 0.5 0.5 0 ;;
    stream-75) shares 0.25 0.75 0 ;;
    stream) echo "$streamed" ;;
    direct) echo "$on_gpu --set optimizer.implementation=direct --set update.direct=1" ;;
    cpu-10) shares 0 0.9 0.1 ;;
    cpu-25) shares 0 0.75 0.25 ;;
    cpu-50) shares 0 0.5 0.5 ;;
    cpu) shares 0 0 1 ;;
    cpu-host) echo "$on_host --set optimizer.implementation=cpu" ;;
    nvme) echo "$on_gpu --set placement.moments=nvme" ;;
    bf16) echo "$streamed $with_master --set placement.master=host" ;;
    *) echo "--set update.unknown=$1" ;;
    esac
}

# same_digests PLAN: "first", or whether they are those of the first run of its model and precision
same_digests() {
    key=$(echo "$model" | tr / _)
    [ "$1" != bf16 ] || key=$key-bf16
    "$python" "$bench/figures.py" digests "$out/$1.run.json" >"$out/digest.last"
    if [ ! -f "$out/digest.$key" ]; then
        mv "$out/digest.last" "$out/digest.$key"
        echo first
    elif cmp -s "$out/digest.last" "$out/digest.$key"; then
        echo equal
    else
        echo DIFFER
    fi
}

rm -f "$out"/digest.*
line plan "step: predicted" measured off "GPU GiB" measured off "host GiB" measured off validate digests updates
for plan in $plans; do
    if [ "$plan" = calibrate ]; then
        bounded "$STOWAGE" calibrate --quick -o "$out/cluster.yaml" || echo "calibrate: exit $?"
        continue
    fi
    model=$large
    [ "$plan" != nvme ] || model=$small
    # shellcheck disable=SC2046
    if ! measure "$plan" "$steps" run $(options_of "$plan"); then
        line "$plan" "$failure"
        continue
    fi
    cells="$plan"
    for path in time_s.optimizer_step peaks.gpu_bytes.optimizer_step peaks.host_bytes.optimizer_step; do
        predicted=$(planned "$plan" "$path")
        measured=$(ran "$plan" "$path")
        case $path in
        time_s.*) cells="$cells	$(calc %.4f "$predicted")	$(calc %.4f "$measured")	$(off "$predicted" "$measured")" ;;
        *) cells="$cells	$(gib "$predicted")	$(gib "$measured")	$(off "$predicted" "$measured")" ;;
        esac
    done
    line "$cells	exit $verdict	$(same_digests "$plan")	$("$python" "$bench/figures.py" updates "$out/$plan.plan.json"), $model"
    step_rows "$plan" "$plan" "" "$model"
done
show "plans, predicted and measured, $machine, $steps steps"
