#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# State on NVMe that a run with --keep-state left is resumed from, on 1 and 2 ranks: the bits of a run that was not stopped.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
moe_model
model=moe
for ranks in 1 2; do
    plan_of kept "$ranks" precision.params=bf16 precision.master=fp32 placement.moments=nvme placement.master=nvme \
        placement.nvme_copies=2
    rm -rf left
    mkdir left
    launch=
    [ "$ranks" = 1 ] || launch="$mpirun -n $ranks"
    # shellcheck disable=SC2086
    $launch "$STOWAGE" run plan-kept.json --backend host --nvme left --allow-tmpfs --keep-state --steps 1000000 -q >left.txt 2>&1 &
    pid=$!
    for wait in $(seq 300); do
        [ "$(find left -type f | wc -l)" -lt "$ranks" ] || break
        sleep 0.1
    done
    sleep 0.3
    kill -TERM $pid
    wait $pid && fail "the run did not end" || true
    step=$("$STOWAGE" state list left --json | sed -n 's/^ *"step": \([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$step" ] || { cat left.txt; fail "$ranks ranks left nothing after $wait"; }
    run_of kept "$ranks" --nvme . --allow-tmpfs --keep-state --steps $((step + 3)) --resume left || { cat run-kept.txt; fail "resume"; }
    grep -q "resumed from left/.*step $step of run" run-kept.txt || { cat run-kept.txt; fail "from step $step"; }
    found=$(all_digests run-kept.json)
    run_of kept "$ranks" --nvme . --allow-tmpfs --keep-state --steps $((step + 3)) || { cat run-kept.txt; fail "uninterrupted"; }
    [ "$found" = "$(all_digests run-kept.json)" ] || fail "$ranks ranks: $found, expected $(all_digests run-kept.json)"
    echo "$ranks ranks from step $step: $found"
    [ "$ranks" = 1 ] || continue
    # moments of another place went with the run; damage is named
    plan_of other 1 precision.params=bf16 precision.master=fp32 placement.moments=host
    expect 3 "holds no state of rank 0 of 1 of this plan" "$STOWAGE" run plan-other.json --backend host --resume left
    file=$(find left -name '*.state')
    printf x | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 100000)) conv=notrunc 2>/dev/null
    printf x | dd of="$file" bs=1 seek=$(($(wc -c <"$file") / 2 - 100000)) conv=notrunc 2>/dev/null
    expect 8 "is damaged" "$STOWAGE" run plan-kept.json --backend host --nvme . --allow-tmpfs --keep-state --steps $((step + 3)) --resume left
done
echo "resume_kept: ok"
