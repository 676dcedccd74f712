#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What do the checksums of state on NVMe cost in a step? A plan with all moments on NVMe is run with -v, whose last line
# says how long threads computed checksums, and how long while nothing else of the same transfer was under way: the most
# by which they can have delayed the run. With BEFORE, another build of the program (one without checksums), both
# run in turns, and their medians are compared.
#
#     bench/nvme_checksums.sh [OUT_FOLDER]      MODEL=Qwen3-0.6B STEPS=8 ROUNDS=3 BEFORE=/other/bin/stowage
#                                               RUN_OPTIONS="--nvme /scratch"
#
# GPUS ranks share the disk. Needs node.nvme.capacity.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
begin "${1:-bench/results/nvme_checksums}" Qwen3-0.6B 8
rounds=${ROUNDS:-3}
now=$STOWAGE
options=${RUN_OPTIONS:-}

# run_one NAME PROGRAM
run_one() {
    STOWAGE=$2
    RUN_OPTIONS="$options -v --no-digest"
    plan "$1" $on_gpu --set placement.moments=nvme --set placement.nvme_copies=1 && execute "$1" "$steps" run || echo "$1: $failure"
    STOWAGE=$now
}

# spent NAME FIELD: of the line "checksums of NVMe state: BYTES bytes in SECONDS s, DELAY s of it ...", all ranks
spent() { awk -v f="$2" '/checksums of NVMe state/ { for (i = 1; i < NF; i++) if ($i == "bytes") { s += f == "bytes" ? $(i - 1) : f == "seconds" ? $(i + 2) : $(i + 4); n++ } } END { if (n) printf "%.6f", s / n; else printf "?" }' "$out/$1.run.txt"; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else print "?" }'; }

line run step checksums "GB/s of a thread" "delay of a step, at most" share
for i in $(seq "$rounds"); do
    run_one "after-$i" "$now"
    step=$(ran "after-$i" time_s.optimizer_step)
    rate=$(calc %.1f "$(spent "after-$i" bytes) / $(spent "after-$i" seconds) / 1e9")
    delay=$(calc %.6f "$(spent "after-$i" delay) / $steps")
    echo "$step" >>"$out/after.steps"
    echo "$delay" >>"$out/delays"
    line "after-$i" "$step" "$(calc %.4f "$(spent "after-$i" seconds) / $steps")" "$rate" "$delay" "$(calc %.2f%% "100 * $delay / $step")"
    [ -n "${BEFORE:-}" ] || continue
    run_one "before-$i" "$BEFORE"
    step=$(ran "before-$i" time_s.optimizer_step)
    echo "$step" >>"$out/before.steps"
    line "before-$i" "$step" "" "" "" ""
done
after=$(median <"$out/after.steps")
delay=$(median <"$out/delays")
row "step with state on NVMe: seconds, with checksums" "" "$after" "" s
row "step with state on NVMe: delay by checksums, at most" "" "$delay" "" s
line median "$after" "" "" "$delay" "$(calc %.2f%% "100 * $delay / $after")"
if [ -n "${BEFORE:-}" ]; then
    before=$(median <"$out/before.steps")
    row "step with state on NVMe: seconds, without checksums" "" "$before" "" s
    line "with / without" "$(calc %.4f "$after / $before")" "" "" "" ""
fi
rm -f "$out/after.steps" "$out/before.steps" "$out/delays"
show "checksums of state on NVMe, $machine, $steps steps"
