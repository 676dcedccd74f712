#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs with roles: what they cost, the same in every command, and roles that cannot be.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml --set nodes=2 --set engine=fsdp2 --set "node.gpu.memory=8 GiB" "$@"; }

# GPUs of a role's own nodes are paid for, too
plan --set 'roles=[{name: a, with: none, update_bucket: 32 MiB}]' -o own.json >own.txt
grep -q "1000 iterations .* on 4 GPUs" own.txt || fail "GPUs of a role's own node are left out"
"$STOWAGE" report own.json -o own.csv
# files say what a role holds: the figures of the table "Roles"
weights=$(sed -n 's/^own.json,role,a,,weights_bytes,\([0-9]*\),B$/\1/p' own.csv)
[ -n "$weights" ] && [ "$(member own.json weights_bytes)" = "$weights" ] || fail "weights of a role: $weights"
peak=$(sed -n 's/^own.json,gpu_peak,.*,rollout,rollout_weights,\([0-9]*\),B$/\1/p' own.csv)
[ "$peak" = "$weights" ] || fail "a role holds $weights of weights, its peak has $peak"
grep -q "^own.json,role,a,,sequences,[1-9][0-9]*,count" own.csv || fail "sequences of a role in its cache"
sed "s/\"weights_bytes\": $weights/\"weights_bytes\": 7/" own.json >changed.json
expect 3 "weights_bytes of role a: found the number 7" "$STOWAGE" report changed.json
iteration=$(member own.json iteration)
hours=$(sed -n 's/^own.json,headline,.*gpu_hours_per_1000_iterations,\([^,]*\),.*/\1/p' own.csv)
awk -v i="$iteration" -v h="$hours" 'BEGIN { exit !(h > i * 4 / 3.6 * 0.999 && h < i * 4 / 3.6 * 1.001) }' ||
    fail "$hours GPU-hours of 1000 iterations of $iteration s on 4 GPUs"
rm -f sweep.json
"$STOWAGE" sweep --model tiny --cluster tiny.yaml --set nodes=2 --set engine=fsdp2 \
    --set "node.gpu.memory=8 GiB" --vary 'roles=[{name: a, update_bucket: 32 MiB}],[{name: a, with: none, update_bucket: 32 MiB}]' -o sweep.json -q
[ "$(grep -c '"gpus": 4,' sweep.json)" = 2 ] || fail "GPUs of a sweep's rows"
plan --set 'roles=[{name: a, update_bucket: 32 MiB}]' -o shared.json -q
"$STOWAGE" diff shared.json own.json >diff.txt
each=$(sed -n 's/.*per GPU \([0-9,]*\) instead of.*/\1/p' diff.txt | tr -d ,)
all=$(sed -n 's/.*Throughput[a-z ]*: \([0-9,]*\) instead of.*/\1/p' diff.txt | tr -d ,)
[ $((each * 4 - all)) -lt 4 ] && [ $((all - each * 4)) -lt 4 ] || fail "$all tokens/s are not $each of each of 4 GPUs"

# what is refused names the role
expect 3 "did you mean .roles.0.gpu_memory_utilization" plan --set 'roles=[{name: a, mem_fraction_static: 0.5}]'
expect 3 "did you mean .roles.0.max_num_seqs" plan --set 'roles=[{name: a, max_running_requests: 5}]'
expect 2 "keys of roles have their number: roles.0.name" plan --set roles.name=a
expect 2 "keys of roles have their number: roles.0.name" plan --set 'roles[0].name=a'
expect 3 "roles.0.builds_trainer_model: the trainer's model on the role's nodes: .*does not divide" \
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set nodes=3 --set engine=megatron --set parallel.tp=2 --set parallel.pp=2 \
    --set precision.params=bf16 --set precision.master=fp32 \
    --set 'roles=[{name: a, with: none, nodes: 1, builds_trainer_model: true}]'
expect 3 "roles.0, on the role's nodes: .*cp 4 does not divide" \
    plan --set nodes=3 --set parallel.cp=4 --set 'roles=[{name: a, kind: critic, with: none, nodes: 1}]'
echo "roles: ok"
