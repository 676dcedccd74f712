#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How fast does `stowage run` save, beside direct writes of as many bytes by as many processes, and how long does the next step wait,
# beside the plan? bf16 with fp32 master and moments on the host; a save every second step. No forward lies between steps: the next one
# comes at once. The plan has the write rate that was measured just before.
#
#     bench/saves.sh [OUT_FOLDER]      MODEL=Qwen3-0.6B SAVES=/tmp COPIES="0 2GiB" GPUS=2 LAUNCH="torchrun --nproc-per-node 2 --no-python"
#
# SAVES is a folder on the disk in question: it takes two checkpoints, of 14 bytes for each parameter.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/saves}" Qwen3-0.6B 6
folder=${SAVES:-${TMPDIR:-/tmp}}/stowage-saves
trap 'rm -rf "$folder"' EXIT
rm -rf "$folder"
mkdir -p "$folder"

# of_log NAME EXPRESSION: the largest figure of all ranks in what they said of step 4's save: it begins behind the one before it, and a step follows
of_log() {
    grep "checkpoint of step 4: rank" "$out/$1.run.txt" | sed -n "s/.*$2.*/\\1/p" | sort -g | tail -n 1 | grep . || echo "?"
}

# saving NAME OPTION...: its plan
saving() {
    # shellcheck disable=SC2086
    plan "$@" $streamed $with_master --set placement.master=host --set checkpoint.every=2 --set node.nvme.capacity="1 TB"
}

saving saves_size || { echo "$failure"; exit 1; }
params=$(planned saves_size model.params)
bytes=$(calc %.0f "14 * $params")
rate=$(bounded "$python" "$bench/saves_disk.py" "$folder" "$bytes" "$gpus")
line copies "save: planned (s)" "measured" "off" "GB/s" "direct GB/s" "share" "stopped: planned (s)" "measured" "off"
for copies in ${COPIES:-0 2GiB}; do
    name=saves_$copies
    if ! saving "$name" --set checkpoint.copies="$copies" --set node.nvme.write="$(calc %.4f "$rate / 1e9") GB/s" ||
        ! RUN_OPTIONS="${RUN_OPTIONS:-} -v --no-digest --checkpoint $folder --keep 1" execute "$name" "$steps" run; then
        line "$copies" "$failure"
        continue
    fi
    planned_s=$(planned "$name" time_s.save)
    stop_s=$(planned "$name" time_s.checkpoint)
    seconds=$(of_log "$name" ' in \([0-9.]*\) s; the')
    began=$(of_log "$name" 'waited \([0-9.]*\) s to begin')
    waited=$(of_log "$name" 'begin and \([0-9.]*\) s in')
    stopped=$(calc %.3f "$began + $waited")
    line "$copies" "$(calc %.3f "$planned_s")" "$seconds" "$(off "$planned_s" "$seconds")" "$(calc %.3f "$bytes / $seconds / 1e9")" \
        "$(calc %.3f "$rate / 1e9")" "$(calc %.1f%% "100 * $bytes / $seconds / $rate")" "$(calc %.3f "$stop_s")" "$stopped" \
        "$(off "$stop_s" "$stopped")"
    row "save with $copies of copies" "$planned_s" "$seconds" "$(calc %.4f "$bytes / $rate")" s
    row "save with $copies of copies: training stopped" "$stop_s" "$stopped" "" s
done
show "$gpus GPUs, $model, saves of stowage run, $machine"
