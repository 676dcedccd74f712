#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SIGKILL at random moments of runs that save after every step, on 1 and 2 ranks: a complete checkpoint whose hashes are right
# is always there once there was one, and going on from it ends in the digests of the run that was not killed.
# KILLS: how many (bench/kills.sh has 300); SEED: of the moments.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
kills=${KILLS:-12}
steps=$((20 + kills))
model=moe
moe_model
state=${SEED:-1}
draw() { state=$(((state * 1103515245 + 12345) % 2147483648)) && drawn=$((state / 65536 % $1)); }

# newest: step and path of the newest complete checkpoint, 0 if there is none
newest() {
    newest_step=0 newest_path=
    [ -d kills ] || return 0
    "$STOWAGE" state list kills --json >list.json
    newest_path=$(awk -F'"' '/"path"/ { path = $4 } /"complete": true/ { last = path } END { print last }' list.json)
    [ -z "$newest_path" ] || newest_step=$(echo "$newest_path" | sed 's/.*step-0*\([0-9]*\).*/\1/')
}

# one_run RANKS: ranks whose process ids are in pid.RANK
one_run() {
    rm -f pid.*
    resume=
    [ "$newest_step" = 0 ] || resume="--resume kills"
    # shellcheck disable=SC2016,SC2086
    launched='echo $$ >pid.${OMPI_COMM_WORLD_RANK:-0}; exec "$STOWAGE" run "$0" --backend host "$@"'
    if [ "$1" = 1 ]; then
        sh -c "$launched" plan-k1.json --steps "$steps" --checkpoint kills --every 1 --keep 2 $resume >run.txt 2>&1 &
    else
        $mpirun -n "$1" sh -c "$launched" plan-k2.json --steps "$steps" --checkpoint kills --every 1 --keep 2 $resume >run.txt 2>&1 &
    fi
    job=$!
}

plan_of k1 1 precision.params=bf16 precision.master=fp32 placement.moments=host
plan_of k2 2 precision.params=bf16 precision.master=fp32 placement.moments=host parallel.ep=2
most=1
if [ "${STW_WITH_MPI:-0}" != 0 ] && [ "${STW_WITH_MPI:-OFF}" != OFF ]; then
    mpirun=${STW_MPIEXEC:-mpirun}
    command -v "$mpirun" >/dev/null 2>&1 && most=2
fi
rm -rf kills
run_of k1 1 --steps "$steps" || { cat run-k1.txt; fail "uninterrupted"; }
reference=$(all_digests run-k1.json)
newest
before=0 resumed=0 slow=1 i=0
while [ $i -lt "$kills" ]; do
    i=$((i + 1))
    ranks=$((i % most + 1))
    one_run "$ranks"
    draw 1200
    sleep "$(awk -v ms="$drawn" -v slow="$slow" 'BEGIN { print 0.3 * slow + ms / 1000 }')"
    for pid in pid.*; do [ ! -f "$pid" ] || kill -KILL "$(cat "$pid")" 2>/dev/null || true; done
    kill -KILL $job 2>/dev/null || true # a launcher may wait for ever for ranks that were killed
    wait $job 2>/dev/null || true
    newest
    [ "$newest_step" -ge "$before" ] || { cat list.json; fail "kill $i: step $newest_step, there was $before"; }
    [ "$newest_step" = 0 ] || "$STOWAGE" state verify "$newest_path" >verify.txt 2>&1 || { cat verify.txt; fail "kill $i"; }
    if [ "$newest_step" -gt "$before" ]; then
        resumed=$((resumed + 1)) slow=1
    else
        slow=$((slow + 1)) # a busy machine
    fi
    before=$newest_step
done
[ "$before" -gt 0 ] || fail "no checkpoint came to its end"
run_of k1 1 --steps "$steps" --checkpoint kills --resume kills || { cat run-k1.txt; fail "the last run"; }
found=$(all_digests run-k1.json)
[ "$found" = "$reference" ] || fail "$found, expected $reference"
[ "$(find kills -name '.step*' | wc -l)" = 0 ] || fail "something is left: $(ls -a kills)"
echo "checkpoint_kills: $kills kills, $resumed runs came further, step $before before the last one; ok"
