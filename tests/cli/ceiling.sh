#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark program ceiling: it runs a plan with the results of stowage-run, and writes the time of
# a step's copies. The host backend has no link to measure.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1

# is_positive TEXT: a number above 0
is_positive() { awk -v x="$1" 'BEGIN { exit !(x + 0 > 0) }'; }

check() {
    name=$1
    shift
    "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" -o "$name.json" >/dev/null || fail "$name: no plan"
    "$STOWAGE" run "$name.json" --backend host --steps 3 --nvme . --allow-tmpfs -o "$name.run.json" >/dev/null || fail "$name: run"
    "$STW_CEILING" "$name.json" --backend host --steps 3 --nvme . --allow-tmpfs -o "$name.ceiling.json" >"$name.txt" || fail "$name: ceiling"
    [ "$(digests "$name.ceiling.json")" = "$(digests "$name.run.json")" ] || fail "$name: digests differ from those of a run"
    "$STOWAGE" validate "$name.json" "$name.ceiling.json" >validate.txt || { cat validate.txt; fail "$name: validate"; }
    copies=$(member "$name.ceiling.json" copies_s)
    is_positive "$copies" || fail "$name: copies_s is $copies"
    grep -q "The copies of an optimizer step alone" "$name.txt" || fail "$name: copies are not reported"
    [ "$(member "$name.run.json" copies_s)" = null ] || fail "$name: stowage-run writes copies_s"
    if grep -q '"streams"' "$name.ceiling.json"; then fail "$name: links on the host backend"; fi
    echo "$name: copies $copies s"
}

master="--set precision.params=bf16 --set precision.grads=bf16 --set precision.master=fp32"
streamed="--set placement.moments=host --set optimizer.implementation=streamed"
# shellcheck disable=SC2086
check streamed $streamed
# shellcheck disable=SC2086
check master $streamed $master
# parameters that the step only writes, on the host
# shellcheck disable=SC2086
check master-params $streamed $master --set placement.params=host --set placement.grads=host --set placement.master=host
check cpu --set placement.moments=host --set optimizer.implementation=cpu
check nvme --set placement.moments=nvme
expect 2 "PLAN" "$STW_CEILING"
expect 2 "steps" "$STW_CEILING" streamed.json --steps 0

if [ "${STW_WITH_MPI:-OFF}" != OFF ] && [ "${STW_WITH_MPI:-0}" != 0 ] && command -v "${STW_MPIEXEC:-mpirun}" >/dev/null; then
    tiny_cluster 2
    # shellcheck disable=SC2086
    "$STOWAGE" plan --model tiny --cluster tiny.yaml $streamed -o two.json >/dev/null || fail "two: no plan"
    "${STW_MPIEXEC:-mpirun}" -n 2 "$STW_CEILING" two.json --backend host --steps 2 -o two.run.json >two.txt 2>&1 ||
        { cat two.txt; fail "two ranks"; }
    is_positive "$(member two.run.json copies_s)" || fail "two ranks: no copies_s"
    [ "$(member two.run.json mismatched)" = 0 ] || fail "two ranks: elements differ from the reference"
fi
echo "ceiling: ok"
