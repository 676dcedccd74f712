#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark program ceiling on a GPU: the copies of a step and every shape of the link have a rate.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
[ "${STW_WITH_CUDA:-OFF}" != OFF ] && [ "${STW_WITH_CUDA:-0}" != 0 ] || { echo "no CUDA in this build"; exit 77; }
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || { echo "no GPU"; exit 77; }
tiny_model
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=host --set optimizer.implementation=streamed \
    -o plan.json >/dev/null || fail "no plan"
"$STW_CEILING" plan.json --backend cuda --steps 3 -o run.json >run.txt || fail "ceiling"
[ "$(member run.json mismatched)" = 0 ] || fail "elements differ from the reference"
for figure in copies_s link_share; do
    found=$(member run.json $figure)
    awk -v x="$found" 'BEGIN { exit !(x + 0 > 0) }' || fail "$figure is $found"
done
[ "$(grep -c '"streams"' run.json)" = 12 ] || fail "found $(grep -c '"streams"' run.json) shapes of the link, expected 12"
"$STOWAGE" report run.json >report.txt || fail "no report"
[ "$(grep -c "Raw copies of" report.txt)" = 12 ] || fail "not every shape is reported"
echo "ceiling: ok"
