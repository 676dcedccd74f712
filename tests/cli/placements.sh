#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Placement does not change results: every placement gives the same digests after 5 clipped steps.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1

reference=
check() {
    name=$1
    updates=$2
    shift 2
    planned "$STOWAGE" plan --model tiny --cluster tiny.yaml --set load.method=rank0_broadcast "$@" -o "$name.json" >"$name.txt" ||
        fail "$name: no plan"
    for update in $updates; do
        grep -q "\"update\": \"$update\"" "$name.json" || fail "$name: no $update in the plan"
    done
    "$STOWAGE" run "$name.json" --backend host --steps 5 --allow-tmpfs -o "$name.run.json" >/dev/null || fail "$name: run"
    [ "$(member "$name.run.json" mismatched)" = 0 ] || fail "$name: elements differ from the reference"
    found=$(digests "$name.run.json")
    [ -n "$found" ] || fail "$name: no digests"
    : "${reference:=$found}"
    [ "$found" = "$reference" ] || fail "$name: digests $found, expected $reference"
    echo "$name: $found"
}

check resident resident --set placement.moments=gpu
check streamed stream --set placement.moments=host --set optimizer.implementation=streamed
check streamed-params stream --set placement.moments=host --set placement.params=host --set placement.grads=host --set optimizer.implementation=streamed
check cpu cpu --set placement.moments=host --set optimizer.implementation=cpu
check direct direct --set optimizer.implementation=direct --set update.direct=1
check shares "resident stream direct cpu" --set update.resident=0.2 --set update.stream=0.3 --set update.direct=0.1 --set update.cpu=0.4
check nvme stream --set placement.moments=nvme
check nvme-two-copies stream --set placement.moments=nvme --set placement.nvme_copies=2
# a GPU that holds part of the state, hosts that hold the rest or part of it
check mixed "resident stream" --set optimizer.implementation=fused --set node.gpu.memory=160MiB --set batch.seq_len=64
check mixed-nvme "resident stream" --set optimizer.implementation=fused --set node.gpu.memory=160MiB --set batch.seq_len=64 --set node.host.memory=176MiB --set node.host.limit=176MiB
grep -q "\"moments\": \"nvme\"\|\"exp_avg\": \"nvme\"" mixed-nvme.json || fail "mixed-nvme: nothing on NVMe"
check load-sharded "" --set load.method=sharded_read
check load-all "" --set load.method=all_ranks
echo "placements: ok"
