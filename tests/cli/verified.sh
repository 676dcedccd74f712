#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# validate says what a run verified, exits with 8 where elements differed from their replay, and where a
# digest differs from that of other runs of the same model, seed and steps, whatever their placement.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1

# run_of NAME STEPS SETTING...: NAME.json, NAME.run.json
run_of() {
    name=$1 steps=$2
    shift 2
    "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" -o "$name.json" >/dev/null || fail "no plan $name"
    "$STOWAGE" run "$name.json" --backend host --steps "$steps" --nvme . --allow-tmpfs -o "$name.run.json" -q || fail "no run $name"
}

run_of gpu 2 --set placement.moments=gpu
run_of host 2 --set placement.moments=host
run_of nvme 2 --set placement.moments=nvme
run_of longer 3 --set placement.moments=host
run_of rate 2 --set placement.moments=host --set optimizer.lr=0.5

expect 0 "elements checked, none differs" "$STOWAGE" validate gpu.json gpu.run.json
sed 's/"mismatched": 0/"mismatched": 5/' gpu.run.json >wrong.json
expect 3 "wrong.json:[0-9]*:[0-9]*: verify: was changed since the file was written" "$STOWAGE" validate gpu.json wrong.json
"$STW_SEAL" wrong.json
expect 8 "5 of 10560 checked elements differ" "$STOWAGE" validate gpu.json wrong.json
grep -q "Verification FAILED: 5 of 10,560 checked elements differ" expect.out || { cat expect.out; fail "the report does not say it"; }
expect 8 '"mismatched": 5' "$STOWAGE" validate gpu.json wrong.json --json
expect 8 "wrong.json: verification failed" "$STOWAGE" validate gpu.json gpu.run.json wrong.json
sed 's/"checked": [0-9]*/"checked": 3/' wrong.json >more.json # members that contradict each other are told first
expect 3 "mismatched" "$STOWAGE" validate gpu.json more.json
"$STOWAGE" run gpu.json --backend host --steps 2 --no-digest -o without.json -q
expect 0 "no element was checked" "$STOWAGE" validate gpu.json without.json

# Runs of plans with other placements.
expect 0 "The digests of all 3 runs are equal" "$STOWAGE" validate gpu.json gpu.run.json host.run.json nvme.run.json
sed 's/\("exp_avg": "[0-9a-f]*\)[0-9a-f]\{4\}"/\10000"/' host.run.json >other.json
if cmp -s other.json host.run.json; then fail "no digest was changed"; fi
"$STW_SEAL" other.json
expect 8 "other.json: exp_avg: the digest differs" "$STOWAGE" validate gpu.json gpu.run.json other.json nvme.run.json
grep -q "The digest of exp_avg of other.json DIFFERS" expect.out || { cat expect.out; fail "the report does not say it"; }
expect 8 "other.json: exp_avg" "$STOWAGE" validate host.json other.json gpu.run.json nvme.run.json
"$STOWAGE" validate gpu.json gpu.run.json other.json --json >json.txt 2>/dev/null || [ $? = 8 ] || fail "exit of --json"
grep -q '"differs": \["exp_avg"\]' json.txt || { cat json.txt; fail "the JSON does not say it"; }

# What cannot be compared.
expect 3 "2 steps with seed 1 as in gpu.run.json" "$STOWAGE" validate gpu.json gpu.run.json longer.run.json
expect 3 "another model, optimizer" "$STOWAGE" validate gpu.json gpu.run.json rate.run.json
expect 3 "no digests" "$STOWAGE" validate gpu.json gpu.run.json without.json
echo "verified: ok"
