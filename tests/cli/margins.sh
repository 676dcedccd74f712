#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A plan is at risk where measured runs of its engine exceeded their prediction by more than is left; engine stowage has no such margin.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
plan() { planned "$STOWAGE" plan -q --model Qwen3-0.6B --cluster h200-x4 "$@" 2>&1; }
verdict() { sed -n 's/.*"verdict": "\([a-z_]*\)".*/\1/p' | head -1; }

for engine in fsdp2 stowage; do
    plan --set engine=$engine --json >$engine.json
    host=$(sed -n 's/^ *"host": \([0-9][0-9]*\),*$/\1/p' $engine.json | sort -n | tail -1)
    [ -n "$host" ] || fail "no host bytes in the plan of $engine"
    plan --set engine=$engine --set "node.host.limit=$((host / 100 * 104)) B" --json >$engine.tight.json
    plan --set engine=$engine --set "node.host.limit=$((host / 100 * 104)) B" >$engine.txt
done
[ "$(verdict <fsdp2.tight.json)" = at_risk ] || fail "fsdp2 with 4% left: $(verdict <fsdp2.tight.json)"
grep -q "measured runs of engine fsdp2 held up to 6.3% more than was predicted" fsdp2.txt || fail "the reason is missing"
[ "$(verdict <stowage.tight.json)" = fits ] || fail "stowage with 4% left: $(verdict <stowage.tight.json)"
