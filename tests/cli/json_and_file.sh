#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --json with -o FILE: JSON on stdout and the file written, by every command alike; -o - writes it once.
. "$(dirname "$0")/_lib.sh"
command -v python3 >/dev/null 2>&1 || exit 77
tiny_model
tiny_cluster 1
"$STOWAGE" plan --model tiny --cluster tiny.yaml -q -o plan.json
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set optimizer.lr=0.5 -q -o other.json
"$STOWAGE" run plan.json --backend host --steps 1 -q -o run.json

# both KIND COMMAND...: stdout is one JSON document; KIND same: the file has the same bytes, else its run is another one
both() {
    kind=$1
    shift
    rm -f both.json
    code=0
    "$@" --json -o both.json >both.out 2>both.err || code=$?
    case $code in 0 | 4 | 8 | 9) ;; *) fail "exit $code: $*: $(cat both.err)" ;; esac
    python3 -c 'import json, sys; json.load(open("both.out")); json.load(open("both.json"))' || fail "no JSON in both places: $*"
    [ "$kind" != same ] || cmp both.out both.json || fail "stdout and file differ: $*"
    "$@" --json -o - >once.out 2>both.err || true
    python3 -c 'import json; json.load(open("once.out"))' || fail "-o - does not write once: $*"
    "$@" --json -o /dev/stdout >once.out 2>both.err || true
    python3 -c 'import json; json.load(open("once.out"))' || fail "-o /dev/stdout does not write once: $*"
}
both same "$STOWAGE" plan --model tiny --cluster tiny.yaml
both same "$STOWAGE" plan --model tiny --cluster tiny.yaml -q
both same "$STOWAGE" simulate plan.json
both same "$STOWAGE" report plan.json
both same "$STOWAGE" inspect tiny
both same "$STOWAGE" validate plan.json run.json
both same "$STOWAGE" diff plan.json other.json
both same "$STOWAGE" sweep --model tiny --cluster tiny.yaml --vary batch.micro_batch=1,2
both same "$STOWAGE" size --model tiny --gpus tiny.yaml
both same "$STOWAGE" models
both same "$STOWAGE" clusters
both same "$STOWAGE" clusters --show h100-80g-x8
both same "$STOWAGE" keys lr
both same "$STOWAGE" run plan.json --backend host --steps 1
both same "$STOWAGE_RUN" plan.json --backend host --steps 1
both other "$STOWAGE_RUN" --probe
mkdir -p state
both same "$STOWAGE" state list state

expect 2 "stdout is the command's own" "$STOWAGE" record --json -o record.json -- true
for command in plan simulate report inspect validate diff sweep size models clusters keys run; do
    "$STOWAGE" $command --help | grep -q -e '--json .*stdout, also beside -o FILE' || fail "$command --help does not say it"
done
