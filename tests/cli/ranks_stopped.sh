#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank that is stopped, killed or late is named by the others, with the operation in which they wait for
# it, soon after the deadline, while they join and while they step.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
[ -r /proc/self/environ ] || exit 77
tiny_model
deadline=8 # a rank of a busy machine keeps that

# A rank: it keeps its process id; the odd one does something amiss before it starts.
cat >rank.sh <<'EOF2'
echo $$ >"pid.$OMPI_COMM_WORLD_RANK"
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || eval "$BEFORE"
[ -z "$OWN_NODE" ] || export OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0
[ -z "$PRELOAD" ] || [ "$OMPI_COMM_WORLD_RANK" != 0 ] || export LD_PRELOAD="$PRELOAD"
exec "$STOWAGE_RUN" plan.json --backend host --steps 100000 --timeout "$DEADLINE" -q >"out.$OMPI_COMM_WORLD_RANK" 2>&1
EOF2
export STOWAGE_RUN DEADLINE=$deadline BEFORE='' OWN_NODE='' PRELOAD=''

# plan N: a streamed plan of N ranks
plan() {
    tiny_cluster "$1"
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set placement.moments=host --set optimizer.implementation=streamed \
        -o plan.json >/dev/null || fail "no plan"
}

# start N OPTION...: the ranks in the background
start() {
    ranks=$1
    shift
    rm -f pid.* out.*
    began=$(date +%s)
    "$mpirun" "$@" -n "$ranks" sh rank.sh >mpirun.txt 2>&1 &
    job=$!
}

# worked N: rank N has had a second of CPU time as stowage-run; to join and open takes much less of it, and
# who waits for a rank that gets none has it all the same
worked() {
    [ -s "pid.$1" ] && [ "$(cat "/proc/$(cat "pid.$1")/comm" 2>/dev/null)" = stowage-run ] &&
        awk -v hz="$(getconf CLK_TCK)" '{ exit !($14 + $15 > hz) }' "/proc/$(cat "pid.$1")/stat" 2>/dev/null
}

# steps NAME: until all ranks have joined and step, however long the machine takes for it
steps() {
    tries=0
    for rank in $(seq 0 $((ranks - 1))); do
        until worked "$rank"; do
            tries=$((tries + 1))
            [ "$tries" -lt 1200 ] && kill -0 "$job" 2>/dev/null || { cat mpirun.txt out.*; fail "$1: the ranks do not step"; }
            sleep 0.1
        done
    done
    began=$(date +%s)
}

# ended NAME CODES WORDS...: the job is over in time, with one of the exit codes (launchers differ); rank 0 says all words
ended() {
    name=$1 expected=$2
    shift 2
    code=0
    wait "$job" || code=$?
    took=$(($(date +%s) - began))
    echo "$expected" | grep -q -w -e "$code" || { cat mpirun.txt out.*; fail "$name: exit $code, expected $expected"; }
    # what takes seconds on an idle machine; a job that hangs takes for ever
    [ "$took" -le $((deadline + 60)) ] || fail "$name: it took $took s, expected at most $((deadline + 60))"
    for word in "$@"; do
        grep -q -F -e "$word" out.0 || { cat out.*; fail "$name: rank 0 does not say \"$word\""; }
    done
    for rank in 0 1 2 3; do # who died, or was ended by the launcher
        [ -s "pid.$rank" ] || continue
        ! grep -q -v -e ' (.*) Z ' "/proc/$(cat "pid.$rank")/stat" 2>/dev/null || fail "$name: rank $rank is still there"
    done
    echo "$name: $took s, exit $code: $(sed 's/^stowage: error: //' out.0)"
}

plan 4
start 4
steps "stopped"
kill -STOP "$(cat pid.1)"
ended "stopped" 6 "rank 0: operation " "rank 1 (process $(cat pid.1)) is stopped" "to continue it: kill -CONT $(cat pid.1) on $(uname -n)"
grep -q "rank 1 (process" out.2 out.3 || { cat out.*; fail "the other ranks do not name it"; }

plan 2
# Closing waits for ever, as a device can whose peer is stopped: here the last pause of a rank that failed.
cat >hang.c <<'EOF2'
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int nanosleep(const struct timespec *t, struct timespec *left) {
    while (t->tv_nsec == 300000000) pause();
    return (int)syscall(SYS_nanosleep, t, left);
}
EOF2
if "${CC:-cc}" -shared -fPIC -o hang.so hang.c 2>/dev/null && LD_PRELOAD=$PWD/hang.so "$STOWAGE_RUN" --version >/dev/null 2>&1; then
    PRELOAD=$PWD/hang.so start 2
    steps "closing hangs"
    kill -STOP "$(cat pid.1)"
    ended "closing hangs" 6 "rank 0: operation " "rank 1 (process $(cat pid.1)) is stopped" "closing after the failure takes longer than 4 s"
fi

start 2 --enable-recovery # else the launcher ends the others before they notice
steps "killed"
kill -KILL "$(cat pid.1)"
ended "killed" "0 6" "rank 0: operation " "rank 1 (process $(cat pid.1)) has ended"

start 2
steps "killed"
kill -KILL "$(cat pid.1)"
ended "killed, and the launcher ends the others" 137 "rank 0 is ended in operation " "rank 1 (process $(cat pid.1)) has ended before"
tr '\n' ' ' <mpirun.txt | grep -q "process rank 1 .*signal 9" || { cat mpirun.txt; fail "mpirun does not name the rank"; }

OWN_NODE=1 start 2 # ranks that do not see each other's processes tell each other what they see
steps "stopped on another node"
kill -STOP "$(cat pid.1)"
ended "stopped on another node" 6 "rank 0: operation " "rank 1 on another node does not answer"

# shellcheck disable=SC2016
BEFORE='kill -STOP $$' start 2
ended "stopped before it joins" 6 "rank 0: operation 1 (joining): " ") is stopped"
BEFORE='sleep 60' start 2
ended "late" 6 "rank 0: operation 1 (joining): " ") has not joined"
echo "ranks_stopped: ok"
