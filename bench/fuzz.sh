#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does any input crash a reader, the planner or the executor? Runs every fuzz target in turns for HOURS
# (a fraction will do), under AddressSanitizer and UndefinedBehaviorSanitizer, on one core. Inputs that
# reach new code are kept in WORK from one call to the next. Ends with 1 where something was found, and
# with 77 where clang is missing.
#
#     bench/fuzz.sh HOURS [TARGET...]     BUILD=build-fuzz WORK=BUILD/fuzz SLICE_S=300 CLANG=clang
#
# WORK/log.csv gets a line for each turn, WORK/TARGET/found-* is what crashed, leaked or took too long.
# GROW=N adds to each corpus of tests/fuzz/corpus the N inputs that reach most, each of at most 2 KiB.
# BUILT=1 uses the targets of BUILD as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
hours=${1:?usage: bench/fuzz.sh HOURS [TARGET...]}
shift
build=${BUILD:-build-fuzz}
work=${WORK:-$build/fuzz}
clang=${CLANG:-$(command -v clang || command -v clang-14 || true)}
if [ -z "${BUILT:-}" ]; then
    [ -n "$clang" ] || { echo "clang is missing; CLANG names another place"; exit 77; }
    [ -e "$build/CMakeCache.txt" ] || set_compiler=-DCMAKE_C_COMPILER=$clang
    cmake -B "$build" ${set_compiler:+"$set_compiler"} -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTW_TESTS=ON \
        -DSTW_CUDA=OFF -DSTW_MPI=OFF -DSTW_SHARED=OFF -DSTW_FUZZ=ON -DSTW_SANITIZE=address,undefined
    cmake --build "$build" --parallel "$(nproc)" --target fuzz_targets
fi
if [ $# = 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        target=$(basename "$source" .c)
        set -- "$@" "${target#fuzz_}"
    done
fi
export ASAN_OPTIONS="quarantine_size_mb=8:malloc_context_size=4:max_malloc_fill_size=0"
mkdir -p "$work"
log=$work/log.csv
[ -s "$log" ] || echo "date,target,seconds,cpu_s,executions,edges,features,inputs" >"$log"
TIMEFORMAT='cpu %U %S'
limit=$(awk -v hours="$hours" 'BEGIN {printf "%d", hours * 3600}')
slice=${SLICE_S:-300}
[ $((slice * $#)) -le "$limit" ] || slice=$((limit / $#))
[ "$slice" -ge 1 ] || slice=1

# max_len TARGET: somewhat more than the seeds have
max_len() {
    case $1 in
    plan_file) echo 8000 ;;
    run_spec | tree_json) echo 4096 ;;
    *) echo 2048 ;;
    esac
}

# A plan reaches thousands of edges: to weigh inputs by how rare theirs are takes longer than most plans.
options_of() { [ "$1" != execute ] || echo -entropic=0; }

# turn TARGET SECONDS
turn() {
    options=$(options_of "$1")
    mkdir -p "$work/$1/inputs"
    begin=$(date +%s)
    { time "$build/tests/fuzz_$1" -max_total_time="$2" -max_len="$(max_len "$1")" ${options:+"$options"} -timeout=20 \
        -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 -artifact_prefix="$work/$1/found-" \
        "$work/$1/inputs" "tests/fuzz/corpus/$1"; } >"$work/$1/last.log" 2>&1 || {
        bad=1
        grep -hE 'ERROR|violated|SUMMARY|No such' "$work/$1/last.log" | head -n 2 | sed "s/^/$1: /"
    }
    awk -v date="$(date +%FT%T)" -v target="$1" -v s=$(($(date +%s) - begin)) '
        /^stat::number_of_executed_units/ {n = $2}
        / cov: / {for (i = 1; i < NF; i++) {if ($i == "cov:") cov = $(i + 1)
            if ($i == "ft:") ft = $(i + 1); if ($i == "corp:") corp = $(i + 1) + 0}}
        /^cpu / {cpu = $2 + $3}
        END {printf "%s,%s,%d,%.1f,%d,%d,%d,%d\n", date, target, s, cpu, n, cov, ft, corp}' \
        "$work/$1/last.log" >>"$log"
}

bad=0
end=$(($(date +%s) + limit))
for target; do turn "$target" "$slice"; done
while [ "$(($(date +%s) + slice))" -le "$end" ]; do
    for target; do
        [ "$(($(date +%s) + slice))" -gt "$end" ] || turn "$target" "$slice"
    done
done

# Hostile values in place of every scalar of every kind of file; a part of them where time is short.
part=()
[ "$limit" -ge 600 ] || part=(-t $((limit / 8 + 1)) -s "$(date +%s)")
"$build/tests/mutate" "${part[@]}" models || bad=1

# The inputs that together reach all that was reached, those with most of it first.
if [ -n "${GROW:-}" ]; then
    for target; do
        corpus=tests/fuzz/corpus/$target cover=$work/$target/cover
        rm -rf "$cover"
        mkdir "$cover"
        "$build/tests/fuzz_$target" -set_cover_merge=1 -max_len=2048 "$cover" "$corpus" \
            "$work/$target/inputs" >"$work/$target/merge.log" 2>&1
        find "$cover" -type f -printf '%T@ %p\n' | sort -n | head -n "$GROW" | cut -d' ' -f2 |
            while read -r input; do
                cmp -s "$input" "$corpus/$(basename "$input")" || cp "$input" "$corpus/"
            done
        echo "$target: $(find "$corpus" -type f | wc -l) inputs in its corpus"
    done
fi

for target; do
    n=$(find "$work/$target" -maxdepth 1 -name 'found-*' | wc -l)
    [ "$n" = 0 ] || bad=1
    awk -F, -v target="$target" -v found="$n" '$2 == target {n += $5; s += $3; cpu += $4; edges = $6}
        END {printf "%-12s %12d executions %8.0f /s %8.0f per CPU second %6d edges %3d found\n", target,
            n, s ? n / s : 0, cpu ? n / cpu : 0, edges, found}' "$log"
done
awk -F, 'NR > 1 {n += $5} END {printf "%-12s %12d executions\n", "all", n}' "$log"
exit $bad
