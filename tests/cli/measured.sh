#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage validate` reads what frameworks log of their memory: which lines it takes, what it says
# of them, and what it says was not measured.
. "$(dirname "$0")/_lib.sh"
corpus=$STW_SOURCE_DIR/tests/fuzz/corpus/measured
tiny_model
tiny_cluster 2
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 -q -o plan.json

# has LINE: the last table has a line that matches
has() { grep -Eq "$1" table.txt || { cat table.txt >&2; fail "no line \"$1\""; }; }
# table CODE FILE
table() {
    code=0
    "$STOWAGE" validate -v plan.json "$2" >table.txt 2>err.txt || code=$?
    [ "$code" = "$1" ] || { cat table.txt err.txt >&2; fail "$2: exit $code, expected $1"; }
}

table 8 "$corpus/megatron.log"
has 'GPU allocated peak +rank 1 .* 310.50 MiB .*OUTSIDE'
has 'Read from: GPU allocated peak, rank 1.*: line 3, max allocated'
has 'GPU reserved peak .*OUTSIDE'
has 'Read from: GPU reserved peak, rank .: line [67], max reserved'
has 'time of an iteration .* 3.21 s .*not judged'
has 'Read from: time of an iteration, job: .*median of 3'
has 'host +node 0 .*not measured'

table 8 "$corpus/swift.jsonl"
has 'GPU reserved peak +rank 0 .* 33.07 GiB .*OUTSIDE'
has 'Read from: GPU reserved peak, rank 0: line 2, memory\(GiB\)'
has 'GPU allocated +worst rank .*not measured'

table 8 "$corpus/verl.log"
has 'GPU allocated peak +a rank .* 26.50 GiB'
has 'Read from: GPU allocated peak, a rank: line 2, actor/perf/max_memory_allocated_gb'
has 'host peak .*101.50 GiB .*not judged'
has 'Not judged: host peak: used memory of the node, other processes included'
has 'time of forward, backward and steps .* 12.5 s '

# a moment refutes, it does not confirm
table 8 "$corpus/areal.log"
has 'GPU total peak .*OUTSIDE'
echo 'ppo update, memory allocated (GB): 0.01, memory reserved (GB): 0.01, device memory used/total (GB): 0.01/2' >low.log
table 3 low.log
has 'GPU allocated peak .*not judged'
has 'Not judged: .*GPU allocated peak.*: not of the whole run'

# an allocation that failed cut the peak short: less than planned is not judged
table 3 "$corpus/snapshot_oom"
has 'Rank 0 ran out of memory at 2023-11-14T22:13:23Z: it asked for 2.00 GiB with'
flat=$(tr -s ' \n' ' ' <table.txt)
case $flat in *'with 64.00 MiB allocated and 1.00 GiB of the GPU free (device 0, event 3 of 7; the first of 2).'*) ;;
    *) fail "the failed allocation is not told: $flat" ;; esac
has 'GPU allocated peak .*not judged'
has 'Not judged: GPU allocated peak, GPU reserved peak: the job ran out of memory: a lower bound'
"$STOWAGE" validate plan.json "$corpus/snapshot_oom" --json 2>/dev/null | tr -d ' \n' |
    grep -q '"out_of_memory":\[{"rank":0,"asked_bytes":2147483648,"allocated_bytes":67108864,"free_bytes":1073741824,"when":"2023-11-14T22:13:23Z","count":2,' ||
    fail "--json has no failed allocation"
expect 3 'found rank 0, which .*snapshot_oom has too' "$STOWAGE" validate plan.json "$corpus/snapshot_oom" "$corpus/snapshot_oom"

# the highest that was planned agrees; the name of a file does not matter
"$STOWAGE" validate plan.json low.log --json >low.json 2>/dev/null || true
reserved=$(awk '/"what": "gpu reserved peak"/ {at = 1} at && /"predicted"/ {sub(/.*: /, ""); printf "%d\n", $0 + 0; exit}' low.json)
awk -v b="$reserved" 'BEGIN {printf "{\"memory(GiB)\": %.4f}\n", b / 1073741824}' >exact.csv
table 0 exact.csv
has 'GPU reserved peak +worst rank .*within'
has 'Read from: GPU reserved peak, worst rank: line 1, memory\(GiB\)'
grep -q 'the one judged line is within' table.txt || fail "one line is not one"

# a row without a phase is of the whole job; the peak of a phase is not held against another phase's
head=time,rank,phase,metric,bytes
printf '%s\n0,0,,reserved,%s\n0,0,,allocated,1000\n' $head "$reserved" >job.csv
table 8 job.csv
has 'GPU reserved peak +rank 0 .*within'
has 'GPU allocated peak +rank 0 .*OUTSIDE'
! grep -q 'Memory:' table.txt || fail "lower limits are advised though the job held less"
printf '%s\n0,0,,reserved,%s0\n' $head "$reserved" >more.csv
table 8 more.csv
has 'Memory: .*; lower node.gpu.memory by the difference'
"$STOWAGE" validate plan.json more.csv --json 2>/dev/null >load.json || true
load=$(awk '/"phase": "load"/ {at = 1} at && /"predicted"/ {sub(/.*: /, ""); printf "%d\n", $0 + 0; exit}' load.json)
printf '%s\n0,0,load,device,%s\n' $head "$load" >load.csv
table 0 load.csv
has 'load +GPU total +rank 0 .*within'
! grep -q 'GPU peak' table.txt || fail "the peak of load is held against another phase"
printf '%s\n0,0,load,device,%s\n0,0,,device,1%s\n' $head "$load" "$load" >whole.csv
table 8 whole.csv
has 'GPU peak .*OUTSIDE'

# what was measured and cannot be judged is shown without -v, and why
printf '%s\n0,,,host,1000\n' $head >host.csv
expect 3 'host peak .* 1000 B .*not judged' "$STOWAGE" validate plan.json host.csv
grep -q 'Not judged: host peak: includes processes, and the cluster is not calibrated' expect.out || fail "no reason"

# 80 columns: one table, each line with its verdict
COLUMNS=80 "$STOWAGE" validate -v plan.json "$corpus/samples.csv" >narrow.txt 2>/dev/null || [ $? = 8 ]
[ "$(grep -c '^  ----' narrow.txt)" = 1 ] || fail "more than one table: $(cat narrow.txt)"
grep -Eq '^  - GPU allocated .*(within|OUTSIDE)$' narrow.txt || fail "a line without its verdict: $(cat narrow.txt)"
awk 'length > 80 {exit 1}' narrow.txt || fail "wider than 80 columns"

# file, line, found and expected
expect 3 'hostile_number.jsonl:1: memory(GiB): found "none", expected a number' \
    "$STOWAGE" validate plan.json "$corpus/hostile_number.jsonl"
expect 3 'hostile_rank.log:1: \[Rank: found' "$STOWAGE" validate plan.json "$corpus/hostile_rank.log"
echo nothing >nothing.log
expect 3 "nothing.log: found no measured bytes" "$STOWAGE" validate plan.json nothing.log
echo '[Rank 7] (after 1 iterations) memory (MB) | max allocated: 1.0' >seven.log
expect 3 'line 1, max allocated: found rank 7, expected less than 2' "$STOWAGE" validate plan.json seven.log

# a trainer's log states the seconds of all passes of an iteration together
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set engine=fsdp2 --set batch.seq_len=1024 --set batch.micro_batch=2 \
    --set batch.mini_batches=4 --set batch.log_prob_micro_batch=1 -q -o steps.json
echo "step:1 - timing_s/old_log_prob:1.0 - timing_s/update_actor:2.0 - perf/max_memory_allocated_gb:1.0" >steps.log
"$STOWAGE" validate steps.json steps.log --json >steps.out.json 2>/dev/null || true
python3 - <<'EOP' || fail "seconds of a log: $(cat steps.out.json)"
import json
plan, found = json.load(open("steps.json")), json.load(open("steps.out.json"))
def seconds(node):
    if isinstance(node, dict):
        if node.get("phase") == "log_prob" and node.get("what") == "time": yield node["predicted"]
        for value in node.values(): yield from seconds(value)
    elif isinstance(node, list):
        for value in node: yield from seconds(value)
assert abs(next(seconds(found)) - 8 * plan["time_s"]["log_prob"]) < 1e-6, list(seconds(found))
EOP
