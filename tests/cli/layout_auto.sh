#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `parallel=auto`: what it finds is no slower than any layout that `stowage sweep` plans one by one, at the same tokens of a step; keys that
# are set stay; the answer is the same each time; run files, sweeps and sizes take it.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 4
plan() { # FILE SETTINGS...
    out=$1
    shift
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set batch.seq_len=2k "$@" -o "$out" >"$out.txt"
}
seconds() { sed -n '/^  "time_s"/,/}/s/^ *"iteration": *\([0-9.e-]*\),\{0,1\}$/\1/p' "$1"; }

# 4 sequences in a step: every division of them over 4 GPUs
"$STOWAGE" sweep --model tiny --cluster tiny.yaml --set engine=fsdp2 --set batch.seq_len=2k --vary parallel.cp=1,2 --vary parallel.dp_replicate=1,2,4 \
    --vary batch.micro_batch=1,2,4 --vary batch.grad_accumulation=1,2,4 --vary fsdp.reshard_after_forward=true,false \
    --vary loss.fused=false,true -o all.csv -q
plan auto.json --set parallel=auto
awk -F, -v auto="$(seconds auto.json)" 'NR > 1 && $7 == "fits" && $3 * $4 * (4 / $1) == 4 { n++; if (best == "" || $11 < best) best = $11 }
    END { if (n < 10 || auto > best * 1.0051 || auto < best * 0.9949) { print n " layouts, best " best ", auto " auto; exit 1 } }' all.csv ||
    fail "not the best layout"
"$STOWAGE" report --full auto.json | grep -q "Best of all admissible layouts" || fail "not said to be the best"

# the tokens of a step stay
for tokens in 8k 32k; do
    plan tokens.json --set parallel=auto --set batch.tokens_per_step=$tokens
    grep -q "for $((${tokens%k} * 1024 / 1000)),[0-9]* tokens" tokens.json.txt || { cat tokens.json.txt >&2; fail "not $tokens tokens"; }
done
expect 3 "batch.tokens_per_step" "$STOWAGE" plan --model tiny --cluster tiny.yaml --set parallel=auto --set batch.tokens_per_step=5000

# keys that are set stay, also in a run file; one key alone
plan set.json --set parallel=auto --set parallel.cp=2
grep -q '"searched": ".*parallel.cp' set.json && fail "a key that is set was searched"
[ "$(sed -n '/^  "run"/,$p' set.json | member /dev/stdin cp)" = 2 ] || fail "parallel.cp is not 2"
echo 'engine: fsdp2
parallel: auto
batch: {seq_len: 2k}' >auto.yaml
"$STOWAGE" plan --model tiny --cluster tiny.yaml --run auto.yaml -o file.json -q >/dev/null
[ "$(seconds file.json)" = "$(seconds auto.json)" ] || fail "another plan with the run file"
plan one.json --set parallel.cp=auto
[ "$(member one.json searched)" = "parallel.cp" ] || fail "searched $(member one.json searched)"

# the same each time, and in a sweep
plan again.json --set parallel=auto
for file in auto again; do grep -v '"seconds"\|"total"' $file.json | sed '/"checksums"/,$d' >$file.same; done
cmp -s auto.same again.same || fail "another plan the second time"
"$STOWAGE" sweep --model tiny --cluster tiny.yaml --set engine=fsdp2 --set batch.seq_len=2k --set parallel=auto --vary nodes=1,2 -o sweep.csv -q
[ "$(sed -n 2p sweep.csv | cut -d, -f6)" = "$(seconds auto.json)" ] || fail "another plan in a sweep"
"$STOWAGE" size --model tiny --gpus tiny.yaml --run auto.yaml -o size.csv -q
[ "$(tail -n 1 size.csv | cut -d, -f2)" = true ] || fail "size"

# refused: models of which only tensors are known
printf 'name,shape,dtype\nw,"[1024, 1024]",BF16\n' >tensors.csv
expect 3 "auto" "$STOWAGE" plan --model tensors.csv --cluster tiny.yaml --set parallel=auto
echo "layout auto: ok"
