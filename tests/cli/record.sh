#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage record`: the peaks of somebody else's job by rank and phase; validate reads the record
# and the samples.
. "$(dirname "$0")/_lib.sh"
command -v python3 >/dev/null 2>&1 || exit 77

# No second is waited for: ranks go on once the recorder has slept between so many samples, that is,
# has listed the processes and read their bytes with all of them in this phase.
cat >sampled.py <<'EOF'
import os, time

def sleeps():
    with open("/proc/%s/status" % os.environ["RECORDER"]) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))

def all_here(place, ranks):
    """Returns once so many ranks are here, and the recorder has sampled them all."""
    open("%s.%s" % (place, os.environ["RANK"]), "w").close()
    while len([name for name in os.listdir(".") if name.startswith(place + ".")]) < ranks:
        time.sleep(0.01)
    before = sleeps()
    while sleeps() < before + 30:
        time.sleep(0.01)
EOF
cat >job.py <<'EOF'
import os, subprocess, sys, time
from sampled import all_here

def mark(phase, *more):
    with open(os.environ["STOWAGE_MARKS"], "a") as f:
        f.write(",".join(map(str, (time.time(), os.environ["RANK"], phase) + more)) + "\n")

if "RANK" not in os.environ:  # a launcher of two ranks
    ranks = [subprocess.Popen([sys.executable, __file__],
                              env=dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), RECORDER=str(os.getppid())))
             for r in range(2)]
    sys.exit(max(p.wait() for p in ranks))
mark("load")
held = [bytearray(b"x") * (64 << 20)]
all_here("load", 2)
mark("forward_backward")
mark("forward_backward", "allocated", 1000000)
if os.environ["RANK"] == "1":
    held.append(bytearray(b"y") * (128 << 20))
all_here("forward", 2)
for step in range(3):
    mark("optimizer_step")
    time.sleep(0.02)
mark("end")
all_here("end", 2)
EOF
"$STOWAGE" record -o run.json --samples samples.csv --marks marks.csv -- python3 job.py
grep -q '"source": "external"' run.json || fail "not an external record"
grep -q '^time,rank,phase,metric,bytes,node$' samples.csv || fail "samples have no header"

cat >check.py <<'EOF'
import csv, json
run = json.load(open("run.json"))
ranks = {r["rank"]: r["phases"] for r in run["ranks"]}
assert sorted(ranks) == [0, 1], ranks
MiB = 1 << 20
for r in (0, 1):
    assert ranks[r]["load"]["host"] >= 64 * MiB, ranks[r]["load"]
assert ranks[1]["forward_backward"]["host"] - ranks[0]["forward_backward"]["host"] > 100 * MiB
assert ranks[0]["forward_backward"]["allocated"] == 1000000
# what a phase begins with counts, though nothing changed in it
assert ranks[1]["optimizer_step"]["host"] >= 192 * MiB
node = run["nodes"][0]["phases"]
assert node["forward_backward"]["host"] >= sum(ranks[r]["forward_backward"]["host"] for r in (0, 1))

# at every moment that was kept the node has at least what its ranks have
moments = {}
for row in csv.DictReader(open("samples.csv")):
    if row["metric"] == "host":
        moments.setdefault(row["time"], {})[row["rank"]] = int(row["bytes"])
assert len(moments) >= 3, moments
for at, held in moments.items():
    assert held[""] >= sum(held[r] for r in held if r != ""), (at, held)

# seconds are those between the marks: of a phase's median, and of the slowest rank
seconds, between = run["time_s"], {}
assert set(seconds) == {"load", "forward_backward", "first_optimizer_step", "optimizer_step", "step_all"}, seconds
for r in ("0", "1"):
    marks = [(float(m["time"]), m["phase"]) for m in csv.DictReader(open("marks.csv"))
             if m["rank"] == r and not m["metric"]]
    spans = [(phase, end - begin) for (begin, phase), (end, _) in zip(marks, marks[1:])]
    steps = [s for phase, s in spans if phase == "optimizer_step"]
    for phase, own in (("load", spans[0][1]), ("forward_backward", spans[1][1]),
                       ("first_optimizer_step", steps[0]), ("optimizer_step", sum(steps[1:]) / 2)):
        between[phase] = max(between.get(phase, 0), own)
for phase, own in between.items():
    assert abs(seconds[phase] - own) < 1e-5, (phase, seconds, between)
assert len(seconds["step_all"]) == 3 and run["steps"] == 3
EOF
python3 check.py

# a rank whose process was seen before it executed the program with its number: the shell starts it,
# and a process that the shell starts has the number, too, for a while
cat >late.sh <<'EOF'
sh "$SAMPLED" "$RECORDER"
RANK=0 LOCAL_RANK=0 sh -c 'sh "$SAMPLED" "$RECORDER"; exit'
export RANK=0 LOCAL_RANK=0
exec python3 late.py
EOF
cat >late.py <<'EOF'
import os, time
from sampled import all_here
def mark(phase):
    with open(os.environ["STOWAGE_MARKS"], "a") as f:
        f.write("%f,0,%s\n" % (time.time(), phase))
mark("load")
held = bytearray(b"x") * (64 << 20)
all_here("late", 1)
mark("end")
EOF
cat >listed <<'EOF'
sleeps() { sed -n 's/^voluntary_ctxt_switches:[^0-9]*//p' "/proc/$1/status"; }
before=$(sleeps "$1")
until [ "$(sleeps "$1")" -ge $((before + 30)) ]; do sleep 0.01; done
EOF
SAMPLED=$PWD/listed "$STOWAGE" record -o late.json -- sh -c 'export RECORDER=$PPID; exec sh late.sh' 2>late.err
grep -q 'recorded 1 rank' late.err || fail "a rank that was seen before it executed is lost: $(cat late.err)"
! grep -q 'wrote marks' late.err || fail "a rank with samples is called lost"
python3 - <<'EOF' || fail "a rank has no samples in its phase: $(cat late.json)"
import json
ranks = {r["rank"]: r["phases"] for r in json.load(open("late.json"))["ranks"]}
assert ranks[0]["load"]["host"] >= 64 << 20, ranks
EOF
# a rank without its number in the environment: said
SAMPLED=$PWD/listed "$STOWAGE" record -o none.json -- \
    sh -c 'echo 1,3,load >>"$STOWAGE_MARKS"; sh "$SAMPLED" $PPID' 2>none.err
grep -q 'rank 3 wrote marks, but no process with RANK=3' none.err || fail "a rank without samples is not named: $(cat none.err)"

# sampled: a command waits until the recorder, its parent, has sampled it
cat >sampled <<'EOF'
#!/bin/sh
sleeps() { sed -n 's/^voluntary_ctxt_switches:[^0-9]*//p' "/proc/$1/status"; }
before=$(sleeps "$1")
until [ "$(sleeps "$1")" -ge $((before + 5)) ]; do sleep 0.01; done
EOF
sampled="sh '$PWD/sampled' \$PPID"

# the exit code is the command's; bad marks lose no samples
code=0
"$STOWAGE" record -o code.json -- sh -c "$sampled; exit 5" || code=$?
[ "$code" = 5 ] || fail "exit $code, expected 5"
expect 0 'phase: found "nonsense"' "$STOWAGE" record -o bad.json --marks bad.csv -- \
    sh -c "$sampled; echo 1,0,nonsense >>\"\$STOWAGE_MARKS\""
grep -q '"host_bytes"' bad.json || fail "the samples were lost"
expect 0 "removed its file of marks" "$STOWAGE" record -o gone.json -- sh -c "$sampled; rm \"\$STOWAGE_MARKS\""
! grep -q "line 0" expect.out || fail "a line of a file that is gone is named"
mkdir -p temporary
expect 3 "cannot be started" env TMPDIR=temporary "$STOWAGE" record -- ./there_is_none
[ -z "$(ls temporary)" ] || fail "marks of a command that never ran are left behind"
mkdir -p folder
expect 3 "is a folder" "$STOWAGE" record -o folder -- touch ran
expect 3 "cannot be written" "$STOWAGE" record --samples no/such.csv -- touch ran
[ ! -e ran ] || fail "the command ran though its record could not be written"
mkdir -p elsewhere
"$STOWAGE" record -q -o moved.json --marks moved.csv -- \
    sh -c "cd elsewhere; echo 1,0,load >>\"\$STOWAGE_MARKS\"; $sampled"
grep -q '^1,0,load$' moved.csv || fail "a job that changed its folder lost its marks"
for other in same.csv ./same.csv elsewhere/../same.csv; do
    expect 2 "another output are the same file: --samples" "$STOWAGE" record --samples same.csv -o $other -- touch ran
done
[ ! -e ran ] || fail "the command ran though one file would replace another"
code=0
"$STOWAGE" record --every 1s -o seven.json -- sh -c 'exit 7' 2>err.txt || code=$?
[ "$code" = 7 ] || fail "the exit code of the command is lost"
[ -e seven.json ] || fail "a job that ended at once has no record: $(cat err.txt)"
expect 2 "expected 1 ms to 60 s" "$STOWAGE" record --every 1us -- true
expect 2 "COMMAND" "$STOWAGE" record

# a plan is held against the record and against the same samples
tiny_model
tiny_cluster 2
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set precision.compute=fp32 -q -o plan.json
code=0
"$STOWAGE" validate plan.json run.json >one.txt || code=$?
[ "$code" = 8 ] || fail "validate: exit $code, expected 8"
"$STOWAGE" validate plan.json samples.csv >two.txt || [ $? = 8 ] || fail "samples are not read"
grep 'forward_backward *GPU allocated' one.txt >one.line || fail "no line of what the job said"
grep 'forward_backward *GPU allocated' two.txt | cmp - one.line || fail "record and samples differ"

# samples: file and line of an error
printf 'time,rank,phase,metric,bytes\n1,0,load\n2,0,load,device,-5\n' >broken.csv
expect 3 'broken.csv:3: bytes: found "-5"' "$STOWAGE" validate plan.json broken.csv
printf 'time,rank,phase,metric,bytes\n1,0,load\n' >empty.csv
expect 3 "found no bytes" "$STOWAGE" validate plan.json empty.csv
printf 'time,rank,phase,metric,bytes\n1,,load,device,7\n' >nobody.csv
expect 3 "these bytes are on a GPU" "$STOWAGE" validate plan.json nobody.csv
printf 'time,rank,phase,metric,bytes\n0x10,0,load\n' >hex.csv
expect 3 'hex.csv:2: time: found "0x10"' "$STOWAGE" validate plan.json hex.csv
printf 'time,rank,phase,metric,bytes\n-2,0,load\n' >before.csv
expect 3 'before.csv:2: time: found "-2"' "$STOWAGE" validate plan.json before.csv

# several nodes: each writes its own file, and validate joins them
tiny_cluster 2
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set nodes=2 -q -o nodes.json
cat >node.py <<'EOF'
import os, subprocess, sys, time
from sampled import all_here
if "RANK" not in os.environ:
    first = 2 * int(sys.argv[1])
    ranks = [subprocess.Popen([sys.executable, __file__],
                              env=dict(os.environ, RANK=str(first + r), LOCAL_RANK=str(r), RECORDER=str(os.getppid())))
             for r in range(2)]
    sys.exit(max(p.wait() for p in ranks))
rank = int(os.environ["RANK"])
with open(os.environ["STOWAGE_MARKS"], "a") as f:
    f.write("%f,%d,forward_backward\n" % (time.time(), rank))
    f.write("%f,%d,forward_backward,allocated,%d\n" % (time.time(), rank, 1000000 - 1000 * rank))
held = bytearray(b"x") * (64 << 20)
all_here("node%d" % (rank // 2), 2)
EOF
for node in 0 1; do
    "$STOWAGE" record -q -o "node$node.%h.json" -- python3 node.py $node
    [ -e "node$node.$(hostname).json" ] || fail "%h is not the name of the host"
done
a=node0.$(hostname).json
b=node1.$(hostname).json
"$STOWAGE" validate nodes.json "$a" "$b" --json >joined.json 2>/dev/null || [ $? = 8 ] || fail "not joined"
"$STOWAGE" validate nodes.json "$a" --json >single.json 2>/dev/null || [ $? = 8 ]
cat >joined.py <<'EOF'
import json
joined, single = (json.load(open(f))["lines"] for f in ("joined.json", "single.json"))
def measured(lines, what): return {l["rank"]: l["measured"] for l in lines if l["what"] == what and l["measured"]}
assert min(measured(joined, "gpu allocated").values()) == 997000, measured(joined, "gpu allocated")
assert min(measured(single, "gpu allocated").values()) == 999000, measured(single, "gpu allocated")
EOF
python3 joined.py
expect 3 "found rank 0, which .*$a has too" "$STOWAGE" validate nodes.json "$a" "$a"
