#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where activations are unknown, the state fits and nothing more is said: exit 9, verdict "unknown".
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
"$STOWAGE" inspect tiny --tensors tiny.csv >/dev/null
for engine in stowage fsdp2; do
    expect 9 "^  tiny: state fits on 1 node with 2 x pretend; forward and backward are unknown.$" \
        "$STOWAGE" plan --model tiny.csv --cluster tiny.yaml --set engine=$engine -o list.json
    ! grep -q "fits on" expect.out || ! grep -v "state fits on" expect.out | grep -q "fits on" || fail "$engine: it is said to fit"
    [ "$(member list.json verdict)" = unknown ] || fail "$engine: verdict $(member list.json verdict)"
done
expect 9 "state fits on .*; forward and backward are unknown" "$STOWAGE" simulate list.json
expect 0 "state fits on .*; forward and backward are unknown" "$STOWAGE" report list.json
expect 0 "Verdict: fits before, unknown after" sh -c '"$1" plan --model tiny --cluster tiny.yaml -q -o tiny.json && "$1" diff tiny.json list.json' sh "$STOWAGE"

# a state that does not fit does not, whatever is unknown
expect 4 "does not fit" "$STOWAGE" plan --model tiny.csv --cluster tiny.yaml --set node.gpu.memory=8MiB --set node.host.limit=140MiB --set node.nvme.capacity=0

# tables
expect 9 "the state fits; forward and backward are unknown" "$STOWAGE" size --model tiny.csv --gpus tiny.yaml -o size.csv
[ "$(tail -n 1 size.csv | cut -d, -f2)" = false ] || fail "size says that it fits"
[ "$(tail -n 1 size.csv | cut -d, -f20)" = unknown ] || fail "size: verdict"
rm -f sweep.json
expect 0 "2 combinations: 2 unknown" "$STOWAGE" sweep --model tiny.csv --cluster tiny.yaml --vary optimizer.implementation=auto,fused
rm -f sweep.json
"$STOWAGE" sweep --model tiny.csv --cluster tiny.yaml --vary nodes=1,2 -q -o sweep.json
"$STOWAGE" report sweep.json -o sweep.csv
[ "$(tail -n +2 sweep.csv | cut -d, -f2 | sort -u)" = unknown ] || fail "sweep: verdict"

# a run of it agrees with the state
planned "$STOWAGE" plan --model tiny.csv --cluster tiny.yaml --set node.gpus=1 -q -o one.json
"$STOWAGE" run one.json --backend host --steps 1 -o run.json >/dev/null
expect 0 "forward and backward are unknown, and are not compared" "$STOWAGE" validate one.json run.json
"$STOWAGE" validate one.json run.json --json | grep -q '"plan_verdict": "unknown"' || fail "validate --json"
echo "unknown: ok"
