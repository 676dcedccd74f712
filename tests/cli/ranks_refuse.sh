#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What all ranks refuse for the same reason is said once, with their number, also where no plan could be read;
# what one of them refuses is told to all. A process among the ranks that is none is named while they wait for it.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
tiny_model
tiny_cluster 2
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme -o nvme.json >/dev/null
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=host -o plan.json >/dev/null
head -c 2000 plan.json >cut.json

# once CODE RANKS WORD ARGUMENT...: all ranks refuse; one line says WORD and how many they are
once() {
    code=0 expected=$1 n=$2 word=$3
    shift 3
    "$mpirun" -n "$n" "$STOWAGE_RUN" --backend host --steps 2 --timeout 20 "$@" >once.txt 2>&1 || code=$?
    [ "$code" = "$expected" ] || { cat once.txt; fail "$word: exit $code, expected $expected"; }
    [ "$(grep -c 'stowage: error: ' once.txt)" = 1 ] || { cat once.txt; fail "$word: it is not said once"; }
    ! grep -q "no result is written" once.txt || { cat once.txt; fail "$word: ranks whose refusal is told speak of signals"; }
    grep 'stowage: error: ' once.txt | grep -F -e "$word" | grep -q "$n ranks refuse for the same reason" || { cat once.txt; fail "$word: not said"; }
    sed -n 's/^stowage: error: //p' once.txt
}
once 3 2 "/dev/null: it is not a folder" nvme.json --nvme /dev/null
once 3 2 "nowhere" nvme.json --nvme nowhere
once 3 2 "cut.json" cut.json
once 3 4 "none.json" none.json
once 3 2 "missing" plan.json --weights missing
once 6 3 "the plan is for 2 ranks" plan.json
once 2 2 "steps" plan.json --steps 0

# One rank alone cannot read its plan: all say so.
cat >rank.sh <<'EOF2'
plan=plan.json code=0
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || plan=cut.json
"$STOWAGE_RUN" "$plan" --backend host --steps 2 --timeout 20 >"out.$OMPI_COMM_WORLD_RANK" 2>&1 || code=$?
echo "$code" >"code.$OMPI_COMM_WORLD_RANK"
EOF2
export STOWAGE_RUN
"$mpirun" -n 2 sh rank.sh >mpirun.txt 2>&1 || { cat mpirun.txt; fail "one plan: mpirun"; }
for rank in 0 1; do
    [ "$(cat "code.$rank")" = 3 ] || { cat out.*; fail "one plan: rank $rank exits with $(cat "code.$rank")"; }
    grep -q "error: rank 1: cut.json" "out.$rank" || { cat out.*; fail "one plan: rank $rank does not name it"; }
done

# A process that is no rank. The first line comes after half of a short limit, 10 s of a long one.
[ -r /proc/self/environ ] || exit 0
code=0 began=$(date +%s)
cat >sleeps.sh <<'EOF2'
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 300
exec "$STOWAGE_RUN" plan.json --backend host --timeout 4
EOF2
"$mpirun" -n 2 sh sleeps.sh >waits.txt 2>&1 || code=$?
took=$(($(date +%s) - began))
[ "$code" = 6 ] || { cat waits.txt; fail "no rank: exit $code, expected 6"; }
[ "$took" -le 60 ] || fail "no rank: $took s"
grep -q "warning: waiting for 1 of 2 ranks to start: rank 1 (process [0-9]*) has not joined: it runs sleep" waits.txt || { cat waits.txt; fail "no rank: nothing is said while rank 0 waits"; }
grep -q "the deadline is 4 s" waits.txt || { cat waits.txt; fail "no rank: the deadline is not said"; }
grep -q "error: rank 0: operation 1 (joining): .* within 4 s (MPI): rank 1 (process [0-9]*) has not joined: it runs sleep" waits.txt ||
    { cat waits.txt; fail "no rank: the error does not name it"; }
grep -e waiting -e error: waits.txt
echo "ranks_refuse: ok"
