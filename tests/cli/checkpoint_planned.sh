#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a plan says that each rank writes of a checkpoint is what a run has written on the disk, to the byte, and the files are as many:
# 1, 2 and 4 ranks, uneven and empty shards, replicas, a master copy, experts cut by ep, state on the host and on NVMe. With
# checkpoint.copies the run ends in the same bits.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
tiny_model
sed -i 's/"vocab_size": 8000/"vocab_size": 8003/' tiny/config.json # no multiple of the ranks
moe_model
sed -i 's/"vocab_size": 2000/"vocab_size": 2001/' moe/config.json

# Bytes of safetensors that each rank's marker lists: "RANK BYTES"
written() {
    awk 'FNR == 1 { n = 0 }
        /^rank / { rank = $2 }
        /^file / { name[n++] = $2 }
        /^bucket / { counts = name[$2] ~ /\.safetensors$/ }
        /^bytes / && counts { all[rank] += $3 * $4 }
        /^xxh3 / { print rank, all[rank] + 0 }' "$1"/rank-*.done | sort -n
}

# The same as planned
planned_bytes() {
    awk -F, '$2 == "checkpoint" && $5 == "written" {
        n = split($3, word, /[ -]/)
        for (r = word[2]; r <= word[n]; r++) print r, $6
    }' "$1" | sort -n
}

# case_of NAME RANKS SETTINGS...
case_of() {
    name=$1 ranks=$2
    shift 2
    rm -rf "save-$name"
    plan_of "$name" "$ranks" checkpoint.every=1 "$@"
    run_of "$name" "$ranks" --steps 1 --checkpoint "save-$name" --nvme . --allow-tmpfs || { cat "run-$name.txt"; fail "$name: run"; }
    "$STOWAGE" report "plan-$name.json" -q -o "plan-$name.csv" || fail "$name: report"
    folder=save-$name/step-00000001
    written "$folder" >written.txt
    planned_bytes "plan-$name.csv" >planned.txt
    [ "$(wc -l <planned.txt)" = "$ranks" ] || { cat "plan-$name.csv"; fail "$name: not every rank is planned"; }
    cmp -s planned.txt written.txt || { diff planned.txt written.txt; fail "$name: planned, and written by each rank"; }
    files=$(sed -n 's/.*,checkpoint,,checkpoint,files,\([0-9]*\),.*/\1/p' "plan-$name.csv")
    bytes=$(sed -n 's/.*,checkpoint,,checkpoint,bytes,\([0-9]*\),.*/\1/p' "plan-$name.csv")
    [ "$(find "$folder" -name '*.safetensors' | wc -l)" = "$files" ] || { ls -l "$folder"; fail "$name: $files files"; }
    [ "$(cat "$folder"/*.safetensors | wc -c)" = "$bytes" ] || { ls -l "$folder"; fail "$name: $bytes bytes"; }
    grep -A3 '"phase": "checkpoint"' "plan-$name.json" | grep -q '"by": "stowage"' || fail "$name: who executes the save"
    echo "$name: $files files of $bytes bytes: $(tr '\n' ';' <written.txt)"
}

case_of one 1 precision.params=fp32 placement.moments=host
case_of two 2 precision.params=bf16 precision.master=fp32
case_of nvme 2 precision.params=bf16 precision.master=fp32 placement.moments=nvme
case_of uneven 4 precision.params=bf16 precision.master=fp32 precision.exp_avg=bf16 placement.moments=host placement.params=host
case_of replicas 4 precision.params=bf16 precision.master=fp32 parallel.dp_replicate=2
case_of all_replicas 4 precision.params=fp32 parallel.dp_replicate=4 placement.moments=host
case_of model 4 "checkpoint.contents=[model]" parallel.dp_replicate=2
model=moe
case_of experts 4 parallel.ep=4 precision.params=bf16 precision.master=fp32 placement.moments=nvme
model=tiny

# Copies on the host: planned there, executed, and the saved state is the same.
case_of waits 2 precision.params=bf16 precision.master=fp32 placement.moments=host
case_of copies 2 precision.params=bf16 precision.master=fp32 placement.moments=host checkpoint.copies=64MiB
for file in $(cd save-waits/step-00000001 && ls ./*.safetensors); do
    cmp "save-waits/step-00000001/$file" "save-copies/step-00000001/$file" || fail "copies: $file"
done
sed -n 's/.*,checkpoint,every rank,checkpoint,buckets,\([0-9]*\),.*/\1/p' plan-waits.csv plan-copies.csv | tr '\n' ' ' | grep -q "^2 4 $" ||
    fail "buckets of plan-waits.csv and plan-copies.csv: expected 2 and 4"
run_of copies 2 --steps 4 --checkpoint save-copies --every 1 --resume save-copies || { cat run-copies.txt; fail "copies: further steps"; }
run_of waits 2 --steps 4 || { cat run-waits.txt; fail "uninterrupted"; }
[ "$(all_digests run-copies.json)" = "$(all_digests run-waits.json)" ] || fail "copies: other bits"
"$STOWAGE" state verify save-copies >verify.txt || { cat verify.txt; fail "copies: verify"; }
echo "checkpoint_planned: ok"
