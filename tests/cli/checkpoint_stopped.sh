#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rank 1 is stopped as it begins a save: rank 0's files are done in the usual time, and the checkpoint is complete as soon as rank 1
# goes on. The run then ends as always.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
tiny_model
# mkdir of a save's folder, in rank 1: the first thing that a save does there
cat >stop.c <<'EOS'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    if (strstr(path, ".partial") != NULL) raise(SIGSTOP);
    return real(path, mode);
}
EOS
${STW_CC:-cc} -shared -fPIC -w -o stop.so stop.c -ldl 2>/dev/null || exit 77
cat >rank.sh <<'EOS'
echo $$ >"pid.$OMPI_COMM_WORLD_RANK"
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || [ -z "$STOPS" ] || export LD_PRELOAD="$PWD/stop.so"
exec "$STOWAGE_RUN" plan-stopped.json --backend host --steps 2 --timeout 300 -v --checkpoint "$FOLDER" -o "run-$FOLDER.json" >"out.$OMPI_COMM_WORLD_RANK" 2>&1
EOS
export STOWAGE_RUN FOLDER='' STOPS=''
plan_of stopped 2 precision.params=bf16 precision.master=fp32 placement.moments=host

# seconds: what rank 0's part of the save took
seconds() { sed -n 's/.*checkpoint of step 2: rank 0 wrote .* in \([0-9.]*\) s; .*/\1/p' out.0; }

FOLDER=usual
rm -rf usual held pid.* out.*
"$mpirun" -n 2 sh rank.sh >mpirun.txt 2>&1 || { cat mpirun.txt out.*; fail "the usual run"; }
usual=$(seconds)
[ -n "$usual" ] || { cat out.0; fail "the usual run says no seconds"; }

FOLDER=held STOPS=1
rm -f pid.* out.*
"$mpirun" -n 2 sh rank.sh >mpirun.txt 2>&1 &
job=$!
for _ in $(seq 600); do
    [ ! -f held/.step-00000002.*.partial/rank-00000.done ] || break
    kill -0 "$job" 2>/dev/null || { cat mpirun.txt out.*; fail "the run has ended"; }
    sleep 0.1
done
[ -f held/.step-00000002.*.partial/rank-00000.done ] || { ls -AR held; cat out.*; fail "rank 0's files are not done"; }
grep -q '^State:.*T' "/proc/$(cat pid.1)/status" || fail "rank 1 is not stopped"
[ ! -e held/.step-00000002.*.partial/rank-00001.done ] || fail "rank 1 has saved"
[ ! -e held/step-00000002 ] || fail "complete without rank 1"
for _ in $(seq 100); do # rank 0's call has ended, too, and says how long it took
    [ -z "$(seconds)" ] || break
    sleep 0.1
done
stopped=$(seconds)
grep -q '^State:.*T' "/proc/$(cat pid.1)/status" || fail "rank 1 is not stopped any more"
awk -v a="$usual" -v b="${stopped:-1e9}" 'BEGIN { exit !(b <= 5 * a + 5) }' || fail "rank 0's part took $stopped s, usually $usual s"
kill -CONT "$(cat pid.1)"
wait "$job" || { cat mpirun.txt out.*; fail "the run, after rank 1 went on"; }
"$STOWAGE" state verify held/step-00000002 >verify.txt || { cat verify.txt; fail "verify"; }
[ "$(all_digests run-held.json)" = "$(all_digests run-usual.json)" ] || fail "other bits"
echo "checkpoint_stopped: rank 0's part took $usual s, and $stopped s with rank 1 stopped"
