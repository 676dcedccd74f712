#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank that is stopped or killed in the first, a middle or the last piece of a weight sync: the others end with exit code 6 soon after
# the deadline and name operation, round, tensor and rank; a folder is the one of the step before, whole.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
needs_mpi
[ -r /proc/self/environ ] || exit 77
tiny_model
tiny_cluster 2
deadline=6
# In the odd rank the call number AT of a sync ends in a signal: MPI_Isend with the tag of messages, or pwrite of a folder's bytes.
cat >odd.c <<'EOF2'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static long calls;
static void called(const char *what) {
    const char *wanted = getenv("WHAT"), *at = getenv("AT"), *log = getenv("COUNT");
    if (wanted == NULL || wanted[0] != what[0]) return;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* several threads write a folder */
    pthread_mutex_lock(&lock);
    calls++;
    if (log != NULL && log[0] != '\0') {
        FILE *out = fopen(log, "w");
        fprintf(out, "%ld\n", calls);
        fclose(out);
    }
    if (at != NULL && atol(at) == calls) raise(atoi(getenv("SIGNAL")));
    pthread_mutex_unlock(&lock);
}
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    if (tag == 2) called("message");
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (real == NULL) real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    called("write");
    return real(fd, data, n, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwrite(fd, data, n, at); }
EOF2
command -v mpicc >/dev/null 2>&1 && mpicc -shared -fPIC -w -o odd.so odd.c 2>/dev/null || exit 77
cat >rank.sh <<'EOF2'
echo $$ >"pid.$OMPI_COMM_WORLD_RANK"
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD="$PWD/odd.so"
exec "$STOWAGE_RUN" plan.json --backend host --steps 2 --timeout "$DEADLINE" -q $ARGUMENTS >"out.$OMPI_COMM_WORLD_RANK" 2>&1
EOF2
export STOWAGE_RUN DEADLINE=$deadline WHAT='' AT='' SIGNAL='' COUNT='' ARGUMENTS=''

# begin WHAT AT SIGNAL
begin() {
    WHAT=$1 AT=$2 SIGNAL=$3
    rm -f pid.* out.*
    began=$(date +%s)
    code=0
    # a launcher ends the others of a rank that was killed before they notice; one that is stopped ends with them
    recovery=
    [ "$SIGNAL" != 9 ] || recovery=--enable-recovery
    # shellcheck disable=SC2086
    "$mpirun" $recovery -n 2 sh rank.sh >mpirun.txt 2>&1 &
    job=$!
}

# ended NAME WORD...: in time; rank 0 says all words
ended() {
    name=$1
    shift
    wait "$job" || code=$?
    [ "$SIGNAL" = 9 ] || [ "$code" = 6 ] || { cat mpirun.txt out.*; fail "$name: exit $code, expected 6"; }
    took=$(($(date +%s) - began))
    [ "$took" -le $((deadline + 60)) ] || fail "$name: it took $took s, expected at most $((deadline + 60))"
    for word in "stowage: error: rank 0: operation " "$@"; do
        grep -q -F -e "$word" out.0 || { cat mpirun.txt out.*; fail "$name: rank 0 does not say \"$word\""; }
    done
    echo "$name: $took s, exit $code: $(head -n 1 out.0)"
}

# pieces WHAT: calls of a run that is left alone
pieces() {
    COUNT=count.txt
    rm -f count.txt
    begin "$1" 0 0
    wait "$job" || { cat mpirun.txt out.*; fail "$1: the run fails by itself"; }
    COUNT=''
    n=$(cat count.txt)
    [ "$n" -gt 5 ] || fail "$1: found $n pieces, expected more than 5"
}

role="roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024, update_bucket: 1 MiB}]"
planned "$STOWAGE" plan -q --model tiny --cluster tiny.yaml --set "$role" -o plan.json >plan.txt 2>&1 || { cat plan.txt; fail "no plan"; }
pieces message
for at in 1 $((n / 4)) $((n / 2)); do # of the first sync: as many are of the second
    begin message "$at" 19
    ended "stopped in message $at of $((n / 2))" "(weight sync, round " "model." "is stopped" "rank 1 have not passed"
done
begin message "$((n / 2))" 9
ended "killed in the last message" "(weight sync, round " "has ended"

planned "$STOWAGE" plan -q --model tiny --cluster tiny.yaml --set "roles=[]" -o plan.json >plan.txt 2>&1 || { cat plan.txt; fail "no plan"; }
ARGUMENTS="--sync-to out"
pieces write
[ $((n % 2)) = 0 ] || fail "two equal steps made $n writes, expected an even number"
for at in $((n / 2 + 1)) $((3 * n / 4)) "$n"; do # of the second step
    rm -rf out out.writing-*
    signal=19
    [ "$at" != $((3 * n / 4)) ] || signal=9
    begin write "$at" "$signal"
    if [ "$signal" = 9 ]; then ended "killed in write $at of $n" "has ended"; else ended "stopped in write $at of $n" "is stopped"; fi
    [ "$(grep -a -l '"step": "1"' out/*.safetensors | wc -l)" = 2 ] || fail "the folder is not that of step 1"
    grep -q '"step": 1' out/model.safetensors.index.json || fail "the index is not that of step 1"
done
echo "sync_stopped: ok"
