#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `validate --learn`: what a recording shows of the machine is written into a cluster file, moves the next plan by exactly
# that, and is named in it. The file keeps all else; calibrate keeps what was learned.
. "$(dirname "$0")/_lib.sh"
tiny_model
tiny_cluster 2
printf '  torch: {process: 100 MiB}  # a guess\n' >>tiny.yaml
MiB=1048576

# plan CLUSTER OUT [OPTION...]
plan() {
    cluster=$1 out=$2
    shift 2
    "$STOWAGE" plan --model tiny --cluster "$cluster" --set engine=fsdp2 --set placement.params=gpu \
        --set placement.moments=gpu "$@" -o "$out" >"$out.txt" 2>&1
}
host() { "$STOWAGE" validate "$1" "$2" --json 2>/dev/null | tr -d '\n' |
    sed 's/.*"phase": "forward_backward", *"what": "host",[^}]*"predicted": \([0-9]*\).*/\1/'; }
reserved() { tr -d ' \n' <"$1" | sed 's/.*"forward_backward":{[^}]*"reserved":\([0-9]*\).*/\1/'; }

plan tiny.yaml before.json
# a recording: 300 MiB and what the plan says on each rank, 50 MiB more on the node, 200 MiB of context
cat >samples.csv <<'CSV'
time,rank,phase,metric,bytes
1763800000,0,forward_backward,,
1763800000,1,forward_backward,,
1763800001,0,,host,314572800
1763800001,1,,host,314572800
1763800001,,,host,681574400
1763800001,0,,device,1276116992
1763800001,1,,device,1276116992
1763800001,0,,reserved,1066401792
1763800001,1,,reserved,1066401792
1763800002,,end,,
CSV
own=$(($(host before.json samples.csv) - 2 * 100 * MiB))
[ "$own" = 0 ] || fail "the tiny job holds $own B on the host, expected none"

sed 's/^/calibration: {measured: true}\n/;q' tiny.yaml >measured.yaml
tail -n +2 tiny.yaml >>measured.yaml
plan measured.yaml measured.json
"$STOWAGE" validate measured.json samples.csv >advice.txt || true
grep -q -e '--learn cluster.yaml takes what processes hold' advice.txt || fail "--learn is not pointed to"

cp tiny.yaml learned.yaml
code=0
"$STOWAGE" validate before.json samples.csv --learn learned.yaml >learn.txt || code=$?
[ "$code" = 8 ] || fail "validate: exit $code, expected 8"
grep -q 'node.torch.process *100.00 MiB *300.00 MiB *forward_backward *2' learn.txt || fail "the base was not learned"
grep -q 'node.torch.launcher *0 B *50.00 MiB' learn.txt || fail "the launcher was not learned"
grep -q 'node.gpu.context *0 B *200.00 MiB' learn.txt || fail "the context was not learned"
grep -q 'node.gpu.efficiency is not learned: the recording does not name its GPU' learn.txt || fail "no reason is given"
grep -q 'torch: {process: 300 MiB, launcher: 50 MiB}  # a guess' learned.yaml || fail "the key or its comment is lost"
diff tiny.yaml learned.yaml | grep '^<' | grep -v 'torch: \|gpu: ' && fail "something else changed"

# the plans that follow: by exactly what was learned, and named
plan learned.yaml after.json
moved=$(($(host after.json samples.csv) - $(host before.json samples.csv)))
[ "$moved" = $(((2 * 200 + 50) * MiB)) ] || fail "the host line moved by $moved B"
said="learned from samples.csv (tiny, 2025-11-22): process base 300.00 MiB (was 100.00 MiB), launcher of a node 50.00 MiB"
tr -s ' \n' ' ' <after.json.txt | grep -qF "$said" || fail "the plan does not name what it learned"
"$STOWAGE" report after.json | tr -s ' \n' ' ' | grep -qF "$said" || fail "the report does not name it"
tr -d ' \n' <after.json | grep -q '"learned":{"process":{"value":314572800,"was":104857600,"from":"samples.csv"' ||
    fail "the plan's JSON does not name it"
! grep -q '"learned"' before.json || fail "a plan names what was not learned"
"$STOWAGE" validate -v after.json samples.csv >agree.txt 2>&1 || true
grep -q 'forward_backward *host *node 0 *650.00 MiB *650.00 MiB *+0.00% *within' agree.txt || fail "the host line is off"

# without a base of its own the plan took that of any process: it is the value before
sed '/torch: /d' tiny.yaml >plain.yaml
plan plain.yaml plain.json
"$STOWAGE" validate plain.json samples.csv --learn plain.yaml >plain.txt || [ $? = 8 ] || fail "plain: $(cat plain.txt)"
grep -q 'node.torch.process *[0-9.]* [MG]iB (node.host.process) *300.00 MiB' plain.txt || fail "the value before is not what the plan took: $(cat plain.txt)"

# a rank whose samples end before its first mark, those of the node going on: neither base nor launcher
sed -e '2,3d' -e 's/^1763800001,0,,host,.*/1763800000,0,,host,3300000\n1763800000.5,0,forward_backward\n1763800000.5,1,forward_backward/' \
    samples.csv >lost.csv
cp tiny.yaml lost.yaml
"$STOWAGE" validate before.json lost.csv --learn lost.yaml >lost.txt 2>&1 || [ $? = 8 ] || fail "lost: $(cat lost.txt)"
for key in process launcher; do
    tr -s ' \n' ' ' <lost.txt | grep -q "node.torch.$key is not learned: the recording has host bytes of 1 of the 2 ranks" ||
        fail "node.torch.$key is learned without a rank: $(cat lost.txt)"
done

# host bytes alone are not judged without a calibration; they teach all the same, and that is no error
grep -v 'device\|reserved' samples.csv >host.csv
expect 3 'No line can be judged' "$STOWAGE" validate before.json host.csv
expect 3 'contains no value that can be judged' "$STOWAGE" validate before.json host.csv
expect 0 'No line can be judged' "$STOWAGE" validate before.json host.csv --learn host.yaml
grep -q 'process: 300 MiB' host.yaml || fail "host bytes teach nothing"

# the same again changes nothing, also from a plan that knows it
for p in before after; do
    cp learned.yaml once.yaml
    "$STOWAGE" validate $p.json samples.csv --learn learned.yaml >again.txt || [ $? = 8 ] || fail "learning again"
    grep -q 'has these values already' again.txt || fail "it is not said that nothing changed"
    cmp once.yaml learned.yaml || fail "learning twice gives another file"
done
# a new file holds the plan's cluster
rm -f new.yaml none.yaml
"$STOWAGE" validate before.json samples.csv --learn new.yaml --json >new.json || [ $? = 8 ] || fail "no new file"
tr -d ' \n' <new.json | grep -q '"learn":{"file":"new.yaml","changed":true,"learned":\[{"key":"node.torch.process",' ||
    fail "--json does not say what was learned"
plan new.yaml fresh.json
[ "$(host fresh.json samples.csv)" = "$(host after.json samples.csv)" ] || fail "a new file plans otherwise"

# recordings of several nodes are joined
grep -v '^[0-9]*,1,' samples.csv | sed 's/^\([0-9]*,,,host\),.*/\1,367001600/' >node0.csv
sed 's/,0,/,1,/' node0.csv >node1.csv
plan tiny.yaml nodes.json --set nodes=2 --set node.gpus=1
cp tiny.yaml joined.yaml
"$STOWAGE" validate nodes.json node0.csv node1.csv --learn joined.yaml >joined.txt || [ $? = 8 ] || fail "joined recordings"
grep -q 'process: 300 MiB, launcher: 50 MiB' joined.yaml || fail "joined recordings teach something else"
grep -q 'from: "*node0.csv and 1 more' joined.yaml || fail "joined recordings are not named"
grep -q 'samples: 2' joined.yaml || fail "one of two nodes was not counted"

# a key that is set wins, and is told
plan learned.yaml set.json --set node.torch.process=1GiB
tr -s ' \n' ' ' <set.json.txt | grep -q 'node.torch.process was set to 1.00 GiB after 300.00 MiB was learned' ||
    fail "a changed key is still called learned"

# calibrate keeps it
STOWAGE_PROBE_BYTES=64MiB CUDA_VISIBLE_DEVICES='' "$STOWAGE" calibrate --quick -o calibrated.yaml 2>/dev/null ||
    fail "calibrate"
name=$(sed -n 's/^    name: *//p' calibrated.yaml)
sed "s/name: pretend/name: $name/" learned.yaml >calibrated.yaml
STOWAGE_PROBE_BYTES=64MiB CUDA_VISIBLE_DEVICES='' "$STOWAGE" calibrate --quick -o calibrated.yaml 2>kept.txt ||
    fail "calibrate over a file that learned"
grep -q 'kept learned from samples.csv' kept.txt || { cat kept.txt >&2; fail "calibrate does not say what it keeps"; }
grep -q '^    process: 300 MiB' calibrated.yaml || fail "calibrate dropped what was learned"
STOWAGE_PROBE_BYTES=64MiB CUDA_VISIBLE_DEVICES='' "$STOWAGE" calibrate --quick -o learned.yaml 2>dropped.txt ||
    fail "calibrate on other GPUs"
grep -q 'not kept: learned from samples.csv' dropped.txt || fail "it is not told that other GPUs' values are dropped"

# refusals leave files alone
cp once.yaml learned.yaml
sed 's/host,314572800/host,314572800000/' samples.csv >absurd.csv
expect 3 'node.torch.process: found 292.97 GiB in forward_backward, expected 64.00 MiB to 32.00 GiB' \
    "$STOWAGE" validate before.json absurd.csv --learn learned.yaml
grep -q 'GPU total' expect.out || fail "the comparison is lost where nothing is learned"
printf 'time,rank,phase,metric,bytes\n1,0,forward_backward\n2,0,forward_backward,page_locked,7\n' >poor.csv
expect 3 'nothing can be learned' "$STOWAGE" validate before.json poor.csv --learn learned.yaml
grep -q 'node.gpu.context is not learned: no phase has both' expect.out || fail "no reason where nothing is learned"
expect 3 'nothing can be learned' "$STOWAGE" validate before.json poor.csv --learn none.yaml
sed 's/reserved,1066401792/reserved,2066401792/' samples.csv >job.csv
expect 3 'found 1.92 GiB of torch.s allocator in forward_backward, expected about' \
    "$STOWAGE" validate before.json job.csv --learn learned.yaml
[ ! -e none.yaml ] || fail "a file was made of nothing"
cmp once.yaml learned.yaml || fail "a refusal changed the file"
sed 's/name: pretend/name: other/' once.yaml >other.yaml
expect 3 'node.gpu.name: found other' "$STOWAGE" validate before.json samples.csv --learn other.yaml
printf 'node: {gpu: {memory: 2 GiB}, torch: [1]}\n' >broken.yaml
expect 3 'broken.yaml:1:' "$STOWAGE" validate before.json samples.csv --learn broken.yaml
printf 'learned: {process: {value: 1 GiB}}\nnode: {gpu: {memory: 2 GiB}}\n' >half.yaml
expect 3 'learned.process.samples: found 0' "$STOWAGE" plan --model tiny --cluster half.yaml
expect 3 'learned.process.value' sh -c 'sed "s/value: 300 MiB/value: many/" once.yaml >bad.yaml
    "$0" plan --model tiny --cluster bad.yaml' "$STOWAGE"
expect 2 'is also an input' "$STOWAGE" validate before.json samples.csv --learn before.json
expect 2 'no format .json of a cluster' "$STOWAGE" validate before.json samples.csv --learn c.json
expect 2 'learn' "$STOWAGE" validate before.json samples.csv --learn a.yaml --learn b.yaml
"$STOWAGE" plan --model tiny --cluster tiny.yaml -q -o own.json >/dev/null
expect 3 'engine: found stowage' "$STOWAGE" validate own.json samples.csv --learn learned.yaml
echo "learn: ok"
