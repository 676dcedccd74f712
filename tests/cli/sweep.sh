#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage sweep` writes: rows are those of `stowage plan`, the Pareto front is one, a sweep that was killed goes on
# where it was, a file of other arguments or an edited one is refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
sweep() { "$STOWAGE" sweep --model tiny --cluster tiny.yaml "$@"; }

# ranges and lists
sweep --vary nodes=1:4 --vary batch.seq_len=1k:3k:+1k --vary 'optimizer.betas=[0.9, 0.95],[0.9, 0.999]' -o all.csv -q
[ "$(wc -l <all.csv)" = 19 ] || fail "3 x 3 x 2 combinations"
[ "$(cut -d, -f1 all.csv | sort -u | tr '\n' ' ')" = "1 2 4 nodes " ] || fail "a range is doubled"
[ "$(cut -d, -f2 all.csv | sort -u | tr '\n' ' ')" = "1k 2k 3k batch.seq_len " ] || fail "a range with a step"

# each row is what `stowage plan` says
rm -f s.json
sweep --vary nodes=1:2 --vary batch.seq_len=1k,4k --vary node.gpu.memory=200MiB,2GiB --set engine=fsdp2 -o s.json -q 2>err.txt
"$STOWAGE" report s.json -o s.csv
tail -n +2 s.csv >rows.txt
[ "$(wc -l <rows.txt)" = 8 ] || fail "8 rows"
while IFS=, read -r nodes length memory verdict gpus gpu host seconds rest; do
    "$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set nodes=$nodes --set batch.seq_len=$length \
        --set node.gpu.memory=$memory -o plan.json -q >/dev/null || true
    [ "$(member plan.json verdict)" = "$verdict" ] || fail "$nodes $length $memory: $verdict"
    [ "$((nodes * 2))" = "$gpus" ] || fail "$gpus GPUs of $nodes nodes"
    [ "$(member plan.json peak)" = "$gpu" ] || fail "$nodes $length $memory: GPU peak $gpu"
    [ "$(sed -n 's/^ *"peak": *\([0-9]*\),*$/\1/p' plan.json | sed -n 2p)" = "$host" ] || fail "host peak $host"
    iteration=$(member plan.json iteration)
    [ "$iteration" != null ] || iteration=
    [ "$iteration" = "$seconds" ] || fail "$nodes $length $memory: iteration $seconds, plan says $iteration"
done <rows.txt
grep -q ",fits," rows.txt || fail "no row fits"
grep -q ",does_not_fit," rows.txt || fail "every row fits"
grep "does_not_fit" rows.txt | grep -v -q "gpu memory in forward_backward" && fail "what binds"

# no row beats one of the front, and every other that fits is beaten
awk -F, '$4 == "fits" || $4 == "at_risk" { n++; g[n] = $5; s[n] = $10; f[n] = $13 }
    END { for (i = 1; i <= n; i++) { beaten = 0
            for (k = 1; k <= n; k++)
                if (g[k] <= g[i] && s[k] >= s[i] && (g[k] < g[i] || s[k] > s[i])) beaten = 1
            if (beaten == (f[i] == "true")) bad = 1; front += f[i] == "true" }
        exit bad || front == 0 || front == n }' rows.txt || fail "the Pareto front"

# the same whatever the number of threads
sweep --vary nodes=1:2 --vary batch.seq_len=1k,4k --vary node.gpu.memory=200MiB,2GiB --set engine=fsdp2 --jobs 1 -o one.csv -q
cmp -s one.csv s.csv || fail "one thread and several"

# killed, and gone on with
vary="--vary nodes=1:16 --vary batch.seq_len=1024:4096:+1024 --vary batch.micro_batch=1:4"
rm -f k.json
# shellcheck disable=SC2086
"$STOWAGE" sweep --model tiny --cluster tiny.yaml $vary --jobs 1 -o k.json -q & child=$!
i=0
while [ ! -s k.json ] && [ $i -lt 600 ]; do
    sleep 0.1
    i=$((i + 1))
done
kill -9 $child 2>/dev/null || true
wait $child 2>/dev/null || true
[ -s k.json ] || fail "no file after a minute"
before=$(grep -c '"point"' k.json)
[ "$before" -ge 1 ] || fail "no finished row in the file of a killed sweep"
cp k.json part.json
# shellcheck disable=SC2086
sweep $vary -o k.json -q
[ "$(grep -c '"point"' k.json)" = 60 ] || fail "the sweep did not go on"
if [ "$before" -lt 60 ]; then # a kept row keeps the seconds that its planning took
    kept=$(sed -n 's/^ *"planning_s": *//p' part.json | head -n 1)
    grep -q "\"planning_s\": $kept" k.json || fail "finished rows were planned again"
fi
cp k.json whole.json
# shellcheck disable=SC2086
sweep $vary -o k.json -q
cmp -s k.json whole.json || fail "a finished sweep was planned again"

# refused: other arguments, an edit, another major version, keys and values that cannot be
expect 3 "other arguments" sweep --vary nodes=1:2 -o k.json
# shellcheck disable=SC2086
expect 3 "set" sweep $vary --set precision.grads=bf16 -o k.json
# shellcheck disable=SC2086
expect 3 "time-limit" sweep $vary --time-limit 7 -o k.json
sed 's/"verdict": "fits"/"verdict": "at_risk"/' s.json >edited.json
expect 3 "was changed" "$STOWAGE" report edited.json
sed 's,stowage.sweep/1,stowage.sweep/2,' s.json >major.json
expect 3 "stowage.sweep/1" "$STOWAGE" report major.json
expect 2 "vary" "$STOWAGE" sweep --model tiny
expect 2 "unknown key" sweep --vary nods=1:4
expect 2 "nodes" sweep --vary nodes=1:4 --set nodes=2
expect 2 "twice" sweep --vary nodes=1:4 --vary nodes=2
expect 2 "FIRST <= LAST" sweep --vary nodes=4:1
expect 2 "FIRST <= LAST" sweep --vary nodes=0:4
expect 2 "KEY=FIRST:LAST" sweep --vary nodes
expect 3 "optimizer.lr" sweep --vary optimizer.lr=a,b
expect 3 "more than" sweep --vary nodes=1:1000:+1 --vary batch.seq_len=1:1000:+1

# combinations that the planner refuses are rows with the reason
sweep --vary parallel.cp=1,3 --set engine=fsdp2 -o refused.csv -q
grep -q "^3,refused,.*parallel: .*cp 3 does not divide" refused.csv || fail "a refused combination"
sweep --vary nodes=1:2 --json >out.json
grep -q '"schema": "stowage.sweep/1"' out.json || fail "--json"
grep -q '"binds": "' out.json || fail "what binds"

# rows of other batches are said to be so
rm -f batches.json
sweep --vary parallel.cp=1,2 --set engine=fsdp2 -o batches.json >batches.txt
grep -q "An iteration has .* tokens: batch.tokens_per_step" batches.txt || fail "other tokens: $(cat batches.txt)"
rm -f same.json
sweep --vary parallel.cp=1,2 --set engine=fsdp2 --set batch.tokens_per_step=16k --set batch.grad_accumulation=auto -o same.json >batches.txt
grep -q "An iteration has" batches.txt && fail "the same tokens: $(cat batches.txt)"
echo "sweep: ok"
