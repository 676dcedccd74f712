#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does any failing call crash a command, leave half a file or a leak? Builds the programs of
# tests/faults/ under AddressSanitizer and UndefinedBehaviorSanitizer and lets every call of every
# case fail in turn; planning without forced decisions makes too many, of which 300 of each kind are
# taken. Several processes share the work (JOBS, all cores by default). The last table: case, call,
# calls that an undisturbed run makes, those that were walked, and what came of them. Ends with 1
# where something is wrong.
#
#     bench/fault_walk.sh [OPTIONS OF walk]     BUILD=build-faults JOBS=2
#         -m MOST, -d DENSE (all numbers up to it, then as many more), -t SECONDS, -c CASE, -f CALL
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build-faults}
cmake -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTW_TESTS=ON -DSTW_CUDA=OFF -DSTW_SHARED=OFF \
    -DSTW_SANITIZE=address,undefined
cmake --build "$build" --parallel "$(nproc)" --target stowage-faults stowage-run-faults fault_walk
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
walk=$PWD/$build/tests/faults/fault_walk bin=$PWD/$build/faults/bin models=$PWD/models
cd "$scratch"
jobs=${JOBS:-$(nproc)} bad=0 pids=()
for ((i = 0; i < jobs; i++)); do
    mkdir "$i"
    (cd "$i" && exec "$walk" "$@" -p "$i/$jobs" "$bin" "$models" >out) &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || bad=1; done

# The tables of all, added up; a case has up to 18 characters, a call up to 24.
grep -hv ' [0-9]* *[0-9]* *[0-9]* *[0-9]* *[0-9]*$' ./*/out | grep -v 'calls failed in turn' || true
cat ./*/out | awk '
    {key = $0; sub(/( +[0-9]+)+ *$/, "", key); key = sprintf("%-43s", key)}
    NF >= 8 && $(NF - 5) ~ /^[0-9]+$/ && $NF ~ /^[0-9]+$/ {
        if (!(key in calls)) order[++n] = key
        calls[key] = $(NF - 5)
        for (i = 0; i < 5; i++) sums[key, i] += $(NF - 4 + i)
    }
    END {
        printf "%-18s %-24s %7s %7s %7s %7s %7s %7s\n", "case", "call", "calls", "walked", "clean", "same",
            "other", "wrong"
        for (k = 1; k <= n; k++) {
            key = order[k]
            printf "%s %7d", key, calls[key]
            for (i = 0; i < 5; i++) printf " %7d", sums[key, i]
            print ""
            all += calls[key]; walked += sums[key, 0]; wrong += sums[key, 4]; whole += sums[key, 0] >= calls[key]
        }
        printf "%d of %d calls failed in turn, all numbers of %d of %d rows, %d wrong\n", walked, all, whole, n, wrong
    }'
exit $bad
