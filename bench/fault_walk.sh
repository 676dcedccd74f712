#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does any failing call crash a command, leave half a file or a leak? Builds the programs of
# tests/faults/ under AddressSanitizer and UndefinedBehaviorSanitizer and lets every call of every
# case fail in turn; planning without forced decisions makes too many, of which 500 of each kind are
# taken. About an hour on one core. The last table: case, call, calls that an undisturbed run makes,
# those that were walked, and what came of them. Ends with 1 where something is wrong.
#
#     bench/fault_walk.sh [OPTIONS OF walk]     BUILD=build-faults (-m MOST, -t SECONDS, -c CASE, -f CALL)
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
"$walk" "$@" "$bin" "$models"
[ $# -gt 0 ] || "$walk" -c calibrate "$bin" "$models"
