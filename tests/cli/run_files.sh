#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A run file belongs to one plan, by everything that makes the plan, and says which keys differ; what was changed in it
# since it was written is named with its place.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
plan() { out=$1 && shift && planned "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" -o "$out" -q; }
plan plan.json
"$STOWAGE" run plan.json --backend host --steps 2 -o run.json -q
expect 0 "Prediction and measurement agree" "$STOWAGE" validate plan.json run.json
[ "$(member run.json optimizer.lr)" = 0.001 ] || fail "the run file does not say what was run"

# Settings that leave the layout as it is.
layout() { sed -n '/^  "layout"/,/regions/p' "$1"; }
differs() { # KEY VALUE TEXT
    plan other.json --set "$1=$2"
    [ "$(layout plan.json)" = "$(layout other.json)" ] || fail "$1=$2 changes the layout: the test shows nothing"
    expect 3 "the run belongs to another plan ($3" "$STOWAGE" validate other.json run.json
    expect 3 "the run belongs to another plan ($3" "$STOWAGE" report other.json run.json
}
differs optimizer.lr 0.5 "optimizer.lr: 0.001 in the run, 0.5 in the plan)"
differs optimizer.eps 1e-6 "optimizer.eps: 1e-08 in the run, 1e-06 in the plan)"
differs batch.seq_len 2048 "batch.seq_len: 4096 in the run, 2048 in the plan)"
differs batch.grad_accumulation 4 "batch.grad_accumulation: 1 in the run, 4 in the plan"
differs optimizer.clip_norm 0.5 "optimizer.clip_norm: 1.0 in the run, 0.5 in the plan)"
plan other.json --set optimizer.lr=0.5 --set "optimizer.betas=[0.8, 0.9]" --set optimizer.eps=1e-6 \
    --set batch.seq_len=2048
expect 3 "and 1 more)" "$STOWAGE" validate other.json run.json
plan other.json --set 'optimizer.groups=[{match: [1d], weight_decay: 0}]'
expect 3 "optimizer.groups: \[\] in the run, none in the plan; optimizer.groups.0" "$STOWAGE" validate other.json run.json
plan other.json --set placement.moments=host
expect 3 "placement.moments: auto in the run, host in the plan" "$STOWAGE" validate other.json run.json
sed -i 's/12 GB/13 GB/' tiny.yaml
plan other.json
expect 3 "cluster.node.pcie.h2d: 12000000000.0 in the run, 13000000000.0 in the plan" "$STOWAGE" validate other.json run.json
tiny_cluster 1
# what --keep-state changes is not the plan's
plan nvme.json --set placement.moments=nvme
"$STOWAGE" run nvme.json --backend host --steps 2 --nvme . --allow-tmpfs --keep-state -o nvme.run.json -q 2>/dev/null
expect 0 "Prediction and measurement agree" "$STOWAGE" validate nvme.json nvme.run.json

# Every value of the file is changed once: it is refused with the line, or with what contradicts it.
awk '/"checksums"/ { exit } { print }' run.json | grep -n '": \|^ *[0-9"]' | grep -v ': [[{]' | cut -d : -f 1 >lines.txt
changed=0 named=0
for line in $(awk 'NR % 7 == 1' lines.txt) $(grep -n '"seed"\|"device"\|"link_share"\|"date"\|"build"\|"plan_hash"' run.json | cut -d : -f 1); do
    awk -v n="$line" 'NR == n { if (!sub(/[0-9]/, "7")) sub(/"[^"]*",?$/, "\"other\"&") } { print }' run.json >edited.json
    if cmp -s edited.json run.json; then
        awk -v n="$line" 'NR == n { sub(/7/, "8") } { print }' run.json >edited.json
    fi
    ! cmp -s edited.json run.json || continue
    changed=$((changed + 1))
    code=0
    "$STOWAGE" report edited.json >edited.txt 2>&1 || code=$?
    [ "$code" = 3 ] || { sed -n "${line}p" edited.json; cat edited.txt; fail "line $line changed: exit $code"; }
    ! grep -q "edited.json:[0-9]*:[0-9]*: " edited.txt || named=$((named + 1))
done
[ "$changed" -gt 40 ] && [ "$named" = "$changed" ] || fail "$changed values changed, $named named with their place"

# Whole members
sed '/^  "checksums"/,$d' run.json | sed '$s/,$//' >without.json
echo "}" >>without.json
expect 3 'without.json:1:1: the key "checksums" is missing: the file was changed, or an earlier version wrote it; run again' \
    "$STOWAGE" report without.json
sed 's/^  "seed"/  "note": 1,\n&/' run.json >added.json
expect 3 "note: was added since the file was written" "$STOWAGE" report added.json
sed '/^  "seed"/d' run.json >removed.json
expect 3 "seed" "$STOWAGE" report removed.json
head -c 3000 run.json >cut.json
expect 3 "cut.json:" "$STOWAGE" report cut.json
# Layout of the text is free.
tr -d '\n' <run.json | sed 's/  */ /g' >packed.json
expect 0 "Verification" "$STOWAGE" report packed.json
# Records of others need no checksums, and have them held where they have some.
cat >external.json <<'EOF2'
{"schema": "stowage.run/1", "source": "external", "peaks": {"gpu_bytes": {"peak": 1000}}}
EOF2
expect 0 "" "$STOWAGE" report external.json
"$STOWAGE" record -o recorded.json --interval 0.02 -- sleep 0.3 >/dev/null 2>&1 || true
if [ -f recorded.json ]; then
    expect 0 "" "$STOWAGE" report recorded.json
    sed 's/"peak": \([0-9]\)/"peak": 1\1/' recorded.json >edited.json
    expect 3 "peaks: was changed since the file was written" "$STOWAGE" report edited.json
fi
echo "run_files: ok ($changed values)"
