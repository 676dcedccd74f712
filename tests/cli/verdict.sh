#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The verdict: memory that the allocator splits up, an optimizer step that torch lacks, and a
# headline that is no remedy.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
plan() { code=0; "$STOWAGE" plan -v --cluster h100-80g-x8 --set engine=fsdp2 "$@" >out 2>/dev/null || code=$?; }
needs="It needs a streamed optimizer step (optimizer.implementation: streamed), which torch's AdamW does not have; AReaL does, and stowage.torch.AdamW has one of its own (optimizer.implementation: stowage)."

# torn: the first sentence says so, the second what to try
torn="--model Gemma-3-12b --set batch.seq_len=8192 --accept at_risk"
plan $torn
[ $code = 9 ] || fail "torn: exit code $code"
sed -n 2,3p out | tr -s ' \n' ' ' | grep -q "Gemma-3-12b is at risk on .*: it may run out of GPU memory; [0-9.]* GiB per GPU and .* stay free\." || fail "torn: headline"
tr -s ' \n' ' ' <out >flat
grep "In forward_backward .* finds no room for [0-9.]* GiB" flat | grep -q "Try --set allocator.expandable_segments=true." ||
    fail "torn: reason, and what to try"
! grep -q "streamed optimizer" out || fail "a resident update needs no streamed step"
plan $torn --set allocator.expandable_segments=true
! grep -q "finds no room" out || fail "expandable segments do not tear"

# a streamed step: only where no plan with torch's own optimizers fits
for gib in 27 27.9; do
    plan --model Qwen3-1.7B --set node.gpus=1 --set node.gpu.memory=${gib}GiB --set batch.seq_len=2048 \
        --set recompute.granularity=full --set allocator.expandable_segments=true
    cp out $gib
done
grep -q "^  *gpu .* stream " 27 && grep -qF "$needs" 27 || fail "27 GiB need a streamed step"
grep -q "^  *gpu .* resident " 27.9 || fail "a resident update fits in 27.9 GiB"
! grep -qF "$needs" 27.9 || fail "torch can do a resident update"
plan --model Qwen3-8B --set node.gpus=1 --set recompute.granularity=full
grep -q "^  *gpu .* stream " out || fail "the case does not stream"
grep -qF "$needs" out || fail "the streamed step is not named"
! grep -q "taken as AdamW" out || fail "AdamW cannot stream"
plan --model Qwen3-8B --set node.gpus=1 --set recompute.granularity=full --set optimizer.implementation=streamed
! grep -qF "$needs" out || fail "the user asked for it"
