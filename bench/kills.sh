#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Do runs that are killed leave anything that nobody names, or that is called whole and is not? Runs with state on NVMe
# (--keep-state, every third one without), of 1 and 4 ranks, on the host backend, end by SIGTERM, SIGINT or SIGKILL at
# a random moment, loads included. Prints one line per run and the sums.
#
#   bench/kills.sh FOLDER [KILLS]     KILLS: 300 by default; FOLDER: on a disk, made
#
# Environment: STOWAGE (build/bin/stowage), MPIEXEC (mpirun).
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?a folder}
kills=${2:-300}
stowage=${STOWAGE:-$here/build/bin/stowage}
mpiexec=${MPIEXEC:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$out" || exit 1
STW_SOURCE_DIR=$here
. "$here/tests/cli/_lib.sh"
set +e
tiny_model
sed -i 's/"hidden_size": 256/"hidden_size": 128/; s/"vocab_size": 8000/"vocab_size": 2000/; s/"intermediate_size": 768/"intermediate_size": 256/' tiny/config.json
for ranks in 1 4; do
    tiny_cluster $ranks
    "$stowage" plan --model tiny --cluster tiny.yaml --set placement.moments=nvme -o "plan-$ranks.json" >/dev/null || exit 1
done

random() { echo $(($(od -An -N4 -tu4 /dev/urandom) % $1)); } # below $1

files() { find state -type f | sort; }

# What a run left is named by the run itself, or by the next one and by `state list`.
unnamed_of() { # unnamed_of SIGNAL
    for path in $(files); do
        if [ "$1" != KILL ] && ! grep -q "kept in state/$(basename "$path");" run.txt; then
            # A launcher may have killed the rank before it could say so: as SIGKILL.
            late=$((late + 1))
        fi
        grep -q "$path" list.txt && grep -q "runs that ended left state on NVMe" next.txt || echo "$path"
    done
}

# How long a few steps take: moments are chosen up to three times that.
now() { echo $(($(date +%s%N) / 1000000)); }
rm -rf state && mkdir state
begun=$(now)
"$stowage" run plan-1.json --backend host --nvme state --steps 3 -q -o next.json || exit 1
one=$(($(now) - begun)) begun=$(now)
"$mpiexec" -n 4 "$stowage" run plan-4.json --backend host --nvme state --steps 3 -q -o next.json || exit 1
four=$(($(now) - begun))
echo "three steps take $one ms on 1 rank, $four ms on 4"

steps=$((1000000 + $$)) # tells the runs of two of these scripts apart
late=0 total=0 left=0 whole=0 verified=0 unnamed=0 wrong=0 silent=0 alive=0
while [ $total -lt "$kills" ]; do
    ranks=$(((total % 2) * 3 + 1))
    case $((total / 2 % 3)) in 0) signal=TERM ;; 1) signal=INT ;; 2) signal=KILL ;; esac
    keep=--keep-state
    [ $((total / 6 % 3)) != 2 ] || keep=
    [ $ranks = 1 ] && after=$(random $((3 * one))) || after=$(random $((3 * four)))
    set -- "$stowage" run "plan-$ranks.json" --backend host --nvme state --steps $steps --timeout 20 -q $keep
    [ $ranks = 1 ] || set -- "$mpiexec" -n $ranks "$@"
    # A shell has SIGINT ignored in what it starts in the background, until env has set it back.
    env --default-signal=INT "$@" >run.txt 2>&1 &
    pid=$!
    while grep -q -x -E 'sh|dash|bash|env' "/proc/$pid/comm" 2>/dev/null; do :; done
    sleep "$((after / 1000)).$(printf %03d $((after % 1000)))"
    victim=$pid
    if [ $ranks -gt 1 ] && [ $signal = KILL ]; then # one of the ranks
        victim=$(pgrep -P $pid -x stowage-run | sed -n "$(($(random 4) + 1))p")
        : "${victim:=$pid}"
    fi
    kill -$signal $victim
    code=0
    wait $pid || code=$?
    [ $code -gt 0 ] || silent=$((silent + 1))
    # A launcher that is killed leaves its ranks to end by themselves.
    for i in $(seq 100); do
        pgrep -f "plan-$ranks.json --backend host --nvme state --steps $steps" >/dev/null || break
        sleep 0.1
    done
    pgrep -f "plan-$ranks.json --backend host --nvme state --steps $steps" >/dev/null && alive=$((alive + 1))
    "$stowage" state list state >list.txt 2>&1
    "$stowage" state list state --json >list.json 2>&1
    "$stowage" state verify state --json >verify.json 2>verify.txt || wrong=$((wrong + 1))
    "$stowage" run plan-1.json --backend host --nvme state --steps 1 -q -o next.json 2>next.txt >/dev/null
    lost=$(unnamed_of $signal)
    n=$(files | wc -l)
    good=$(grep -c '"whole": true' list.json)
    right=$(grep -c '"damaged": false' verify.json)
    left=$((left + n)) whole=$((whole + good)) verified=$((verified + right))
    [ -z "$lost" ] || { unnamed=$((unnamed + 1)) && echo "not named: $lost"; }
    [ "$good" -le "$right" ] || wrong=$((wrong + 1))
    total=$((total + 1))
    echo "$total: $ranks rank(s), SIG$signal after $after ms${keep:+, }$keep: exit $code, $n file(s), $good whole, $right verified"
    "$stowage" state remove state >remove.txt 2>&1
    [ -z "$(files)" ] || { echo "not removed: $(files)"; wrong=$((wrong + 1)); rm -f state/*; }
done
echo "$total kills: $left files left, $whole of them whole, $verified verified; $unnamed runs left a file that nobody names, $wrong runs" \
    "left a file called whole that does not verify, $alive runs went on; $late files were named by the next run alone"
[ $unnamed = 0 ] && [ $wrong = 0 ] && [ $alive = 0 ] && [ $silent = 0 ]
