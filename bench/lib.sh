#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder, which source it; it is no benchmark. They call `begin`, then
# `measure` and `row`, and `show` last. All take from the environment:
#
#     STOWAGE    the program, default build/bin/stowage
#     MODEL, STEPS
#     CLUSTER    a cluster.yaml of this machine; without it the script calibrates (--quick)
#     GPUS       ranks to use, default all that the cluster has
#     LAUNCH     how several ranks are started, default "mpirun -n GPUS --bind-to none"
#     BACKEND    cuda (default) or host
#     CEILING    the program, default bench/ceiling beside the folder of STOWAGE
#     RUN_OPTIONS  further options of `stowage run` and of `ceiling`, "--nvme /scratch" for one
#     BUDGET_S   seconds after which nothing new is started and what runs is ended, default 540
#     DATE, MACHINE, PYTHON
#
# The first argument is the folder for raw figures: NAME.plan.json, NAME.run.json, what was printed,
# and table.csv with the columns of results/table.csv. A figure that is not there is written "?".
# The scripts read the variables out, model, steps, gpus, launch, backend, python, failure and verdict;
# names that start with lib_ are this file's own.
# shellcheck disable=SC2034
set -eu

bench=$(dirname "$0")
python=${PYTHON:-python3}
STOWAGE=${STOWAGE:-build/bin/stowage}
CEILING=${CEILING:-$(dirname "$(dirname "$STOWAGE")")/bench/ceiling}
backend=${BACKEND:-cuda}
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# start OUT_FOLDER: the folder, an empty table and the deadline
start() {
    out=$1
    deadline=$(($(date +%s) + ${BUDGET_S:-540}))
    date=${DATE:-$(date +%F)}
    command="bench/$(basename "$0")"
    mkdir -p "$out"
    rm -f "$out/table.txt"
    echo "date,machine,model,what,predicted,measured,ceiling,unit,command" >"$out/table.csv"
    "$STOWAGE" --version
}

# begin OUT_FOLDER MODEL STEPS: start, and what plans need; MODEL and STEPS where the environment has
# none
begin() {
    start "$1"
    model=${MODEL:-$2}
    steps=${STEPS:-$3}
    if [ -n "${CLUSTER:-}" ]; then
        cmp -s "$CLUSTER" "$out/cluster.yaml" || cp "$CLUSTER" "$out/cluster.yaml"
    else
        bounded "$STOWAGE" calibrate --quick -o "$out/cluster.yaml"
    fi
    have=$(sed -n 's/^  gpus: *\([0-9]*\).*/\1/p' "$out/cluster.yaml" | head -n 1)
    gpus=${GPUS:-${have:-1}}
    rank_options=
    [ "$gpus" = "${have:-0}" ] || [ "$gpus" = 0 ] || rank_options="--set node.gpus=$gpus"
    [ "$gpus" != 0 ] || gpus=1 # the host backend plays one
    launch=${LAUNCH:-}
    [ -n "$launch" ] || [ "$gpus" = 1 ] || launch="mpirun -n $gpus --bind-to none"
    gpu=$(sed -n '/^  gpu:/,/^  host:/s/.*name: *"\{0,1\}\([^",}#]*[^",}# ]\).*/\1/p' "$out/cluster.yaml" | head -n 1)
    machine=${MACHINE:-"$gpus x ${gpu#NVIDIA }"}
}

# bounded COMMAND...: ended when the budget is spent; 124 then, and at once where it is spent already
bounded() {
    lib_left=$((deadline - $(date +%s)))
    [ "$lib_left" -gt 0 ] || return 124
    timeout -k 5 "$lib_left" "$@"
}

# logged FILE WHAT COMMAND...: bounded, its output in FILE; on failure `failure` says what and why
logged() {
    lib_log=$1
    lib_what=$2
    shift 2
    bounded "$@" >"$lib_log" 2>&1 && return 0
    lib_code=$?
    [ "$lib_code" != 9 ] || return 0 # a plan at risk, or of the state alone
    lib_says=$(grep 'stowage.*error:' "$lib_log" | head -n 1)
    [ -n "$lib_says" ] || lib_says=$(grep '[[:alnum:]]' "$lib_log" | tail -n 1)
    failure="$lib_what: exit $lib_code: $lib_says"
    [ "$lib_code" != 124 ] || failure="$lib_what: no time left"
    [ "$lib_code" != 4 ] || failure="$lib_what: exit 4: $(head -n 1 "$lib_log" | sed 's/^ *//')"
    return 1
}

# plan NAME OPTION...: $out/NAME.plan.json
plan() {
    lib_name=$1
    shift
    failure=
    # shellcheck disable=SC2086
    logged "$out/$lib_name.plan.txt" plan \
        "$STOWAGE" plan --model "$model" --cluster "$out/cluster.yaml" $rank_options "$@" -o "$out/$lib_name.plan.json"
}

# execute NAME STEPS PROGRAM: $out/NAME.run.json by `stowage run` (run) or bench/ceiling.c (ceiling)
execute() {
    lib_name=$1
    lib_count=$2
    lib_program="$STOWAGE run"
    [ "$3" = run ] || lib_program=$CEILING
    failure=
    rm -f "$out/$lib_name.run.json"
    # shellcheck disable=SC2086
    logged "$out/$lib_name.run.txt" run \
        $launch $lib_program "$out/$lib_name.plan.json" --backend "$backend" --steps "$lib_count" ${RUN_OPTIONS:-} \
        -o "$out/$lib_name.run.json"
}

# measure NAME STEPS PROGRAM OPTION...: plan, execute, validate. Leaves validate's exit code in
# `verdict`. Where it cannot, says so, and `failure` why.
measure() {
    lib_measured=$1
    lib_count=$2
    lib_with=$3
    shift 3
    verdict="?"
    if plan "$lib_measured" "$@" && execute "$lib_measured" "$lib_count" "$lib_with"; then
        verdict=0
        bounded "$STOWAGE" validate "$out/$lib_measured.plan.json" "$out/$lib_measured.run.json" \
            >"$out/$lib_measured.validate.txt" 2>&1 || verdict=$?
        return 0
    fi
    echo "$lib_measured: $failure"
    return 1
}

# figure FILE PATH...: values of a JSON file by dotted path, "?" where there is none
figure() { "$python" "$bench/figures.py" get "$@"; }
planned() { figure "$out/$1.plan.json" "$2"; }
ran() { figure "$out/$1.run.json" "$2"; }

# calc FORMAT EXPRESSION: "?" where a figure is missing or the result is no number
calc() {
    case $2 in
    *\?*) echo "?" ;;
    *) awk "BEGIN { printf \"$1\\n\", $2 }" 2>/dev/null || echo "?" ;;
    esac
}
gib() { calc %.2f "$1 / 1073741824"; }
# off PREDICTED MEASURED: difference in percent of what was measured
off() { calc %+.1f%% "100 * ($1 - $2) / $2"; }

# row WHAT PREDICTED MEASURED CEILING UNIT [MODEL]: a line of table.csv
row() {
    printf '%s,%s,%s,"%s",%s,%s,%s,%s,%s\n' "$date" "$machine" "${6:-$model}" "$1" "$2" "$3" "$4" "$5" "$command" |
        sed 's/,?\{1,\},/,,/g; s/,?,/,,/g' >>"$out/table.csv"
}

# line COLUMN...: a line of the table for people; columns are aligned by `show`
line() {
    for lib_column; do printf '%s\t' "$lib_column"; done >>"$out/table.txt"
    echo >>"$out/table.txt"
}

# show TITLE: the table, last
show() {
    echo
    echo "== $1 =="
    [ ! -f "$out/table.txt" ] || "$python" "$bench/figures.py" align "$out/table.txt"
}

# step_rows NAME WHAT CEILING [MODEL]: step and memory of a measured plan
step_rows() {
    row "$2: optimizer step" "$(planned "$1" time_s.optimizer_step)" "$(ran "$1" time_s.optimizer_step)" "$3" s "${4:-$model}"
    for lib_tier in gpu host; do
        row "$2: $lib_tier memory in the step" "$(gib "$(planned "$1" "peaks.${lib_tier}_bytes.optimizer_step")")" \
            "$(gib "$(ran "$1" "peaks.${lib_tier}_bytes.optimizer_step")")" "" GiB "${4:-$model}"
    done
}

# Placements that several questions are about.
on_gpu="--set placement.params=gpu --set placement.grads=gpu"
streamed="$on_gpu --set placement.moments=host --set optimizer.implementation=streamed"
with_master="--set precision.params=bf16 --set precision.grads=bf16 --set precision.master=fp32"
on_host="--set placement.params=host --set placement.grads=host --set placement.moments=host"
