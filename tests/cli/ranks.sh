#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 1, 2 and 4 ranks under mpirun on the host backend: the same digests; the wrong number is refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
tiny_model
reference=
for ranks in 1 2 4; do
    tiny_cluster "$ranks"
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=host --set optimizer.implementation=streamed \
        --set load.method=rank0_broadcast -o "plan-$ranks.json" >/dev/null
    "$mpirun" -n "$ranks" "$STOWAGE" run "plan-$ranks.json" --backend host --steps 5 -o "run-$ranks.json" >"run-$ranks.txt" 2>&1 ||
        { cat "run-$ranks.txt"; fail "$ranks ranks"; }
    found=$(digests "run-$ranks.json")
    : "${reference:=$found}"
    [ "$found" = "$reference" ] || fail "$ranks ranks: $found, expected $reference"
    "$STOWAGE" validate "plan-$ranks.json" "run-$ranks.json" >validate.txt || { cat validate.txt; fail "validate, $ranks ranks"; }
    echo "$ranks ranks: $found"
done
expect 6 "2" "$STOWAGE" run plan-2.json --backend host
echo "ranks: ok"
