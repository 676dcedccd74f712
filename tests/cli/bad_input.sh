#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Bad input: exit codes, places in error texts, and no partly written files.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@"; }

# usage
expect 2 "did you mean plan?" "$STOWAGE" pla
expect 2 "did you mean --model?" "$STOWAGE" plan --modle tiny
expect 2 "KEY=VALUE" plan --set nothing
expect 2 "did you mean \"placement.params\"?" plan --set placment.params=gpu
expect 2 "did you mean \"placement.activations\" or \"fsdp.offload_policy\"?" plan --set offload=true
expect 2 "did you mean \"batch.seq_len\"?" plan --set sequence=1k
expect 2 "did you mean \"batch.seq_len\"?" plan --set batch.seq=1k
expect 2 "did you mean \"batch.micro_batch\"?" plan --set micro_batch_size=2
expect 2 "did you mean \"node.gpu.memory\" or \"node.host.memory\"?" plan --set "memory=80 GiB"
expect 2 "did you mean \"node.gpu.memory\"?" plan --set "node.gpu.mem=80 GiB"
expect 2 "did you mean \"deepspeed.zero_stage\"" plan --set zero_stage=3
expect 2 "unknown key \"fridge\"; default.yaml" plan --set fridge=1
expect 2 "PLAN RUN" "$STOWAGE" validate plan.json
expect 2 "expected PLAN or --model MODEL" "$STOWAGE" simulate
expect 2 "did you mean \"--set nodes\"?" plan --nodes 2
expect 2 "did you mean \"--set batch.seq_len\"?" plan --seq-len=4k
expect 3 "a map of keys (granularity, method, num_layers, modules)" plan --set recompute=full
expect 3 "did you mean Qwen3-0.6B, Qwen3-1.7B, " "$STOWAGE" plan --model Qwen3
expect 3 "in front: \"2 x NAME\"" "$STOWAGE" plan --model tiny --cluster "h200-x4 x 2"
for gap in 5 101% 1s -1 x; do
    expect 2 "gap: found \"$gap\", expected a share from 0 to 1, such as 0.01 or 1%" plan --gap "$gap"
done
expect 0 "fits" plan --gap 2%
for pair in "--model tiny" "--from verl:a.sh" "--cluster tiny.yaml" "--run run.yaml"; do
    expect 2 "${pair%% *}: found \"${pair#* }\" and \"other\", expected one" "$STOWAGE" plan $pair "${pair%% *}=other"
    case $pair in --cluster*|--model*) ;; *) expect 2 "expected one" "$STOWAGE" size --gpus tiny.yaml $pair "${pair%% *}" other ;; esac
done
expect 0 "fits" plan --gap 2% --gap 1% # the last one counts

# 0 is off, as elsewhere
plan --set optimizer.clip_norm=0 -o off.json >/dev/null
plan --set optimizer.clip_norm=none -o none.json >/dev/null
[ "$(member off.json hash)" = "$(member none.json hash)" ] || fail "clip_norm 0 and none differ"
grep -q '"clip_norm": "none"' off.json || fail "clip_norm 0 is not written as none"
grep -q "none or 0: no clipping" "$STW_SOURCE_DIR/models/examples/default.yaml" || fail "clip_norm 0 is not explained"

# specs
expect 3 "gigs" plan --set node.gpu.memory=80gigs
expect 3 "" plan --set node.gpu.memory=-1GiB
expect 3 "error: --set node.gpu.memory=48: node.gpu.memory: found \"48\" without a unit" plan --set node.gpu.memory=48
expect 3 "without a unit" plan --set node.pcie.h2d=1
expect 3 "expected 1 MB/s to 1 PB/s" plan --set "node.pcie.h2d=1 B/s"
expect 3 "expected at most node.pcie.h2d = 12 GB/s" plan --set "node.pcie.both=100 Gbit/s"
expect 3 "did you mean \"Gbit/s\" or \"GB/s\"" plan --set "node.pcie.h2d=64 Gb/s"
expect 0 "fits" plan --set "node.pcie.h2d=64 Gbit/s"
expect 3 "expected 1 GFLOP/s to" plan --set "node.gpu.bf16=1e-300 FLOP/s"
expect 3 "error: --set node.host.limit=1TiB" plan --set node.host.limit=1TiB
expect 3 "there is one node; leave it out, or use nodes: 2 or more" plan --set "network.nic=1 GB/s"
expect 3 "park.grads: found host, expected its default, because engine is fsdp2" plan --set engine=fsdp2 --set park.grads=host
expect 3 "moments are not parked" plan --set engine=fsdp2 --set park.moments_back=forward_backward
expect 3 "all tokens at once" plan --set loss.chunk=64
expect 3 "no routed experts" plan --set moe.imbalance=2
expect 3 "ep 16 does not divide the 8 experts" "$STOWAGE" plan --model Mixtral-8x7B --cluster "2 x h100-80g-x8" --set parallel.ep=16
expect 3 "no tensor that its patterns match" plan --set "optimizer.groups=[{match: ['*.bias'], lr: 1e-4}]"
expect 0 "warning: batch.seq_len: 8192 tokens exceed the 4096 positions" plan --set batch.seq_len=8k
expect 3 "found 2048, expected at most 1024: GPT-2" "$STOWAGE" plan --model GPT-2 --cluster tiny.yaml --set batch.seq_len=2k
expect 3 "dp_shard" plan --set parallel.dp_shard=3
printf 'optimiser: {clip_norm: 1.0}\n' >run.yaml
expect 3 "run.yaml:1" "$STOWAGE" plan --model tiny --cluster tiny.yaml --run run.yaml
expect 3 "optimizer" "$STOWAGE" plan --model tiny --cluster tiny.yaml --run run.yaml
expect 3 "tp" plan --set parallel.tp=2
expect 7 "parallel.cp_kind" plan --set parallel.cp_kind=ulysses
expect 3 "roles.0.with: found \"b\", expected trainer, none or another role" plan --set 'roles=[{name: a, with: b}]'
expect 3 "roles.0.sleep_level: found 1" plan --set 'roles=[{name: a, free_cache_engine: false, sleep_level: 1}]'

# models
expect 3 "no-such-model" "$STOWAGE" inspect no-such-model
mkdir -p odd && printf '{"model_type": "flux9", "hidden_size": 8}' >odd/config.json
expect 3 "flux9" "$STOWAGE" inspect odd
sed 's/"hidden_size": 256/"hidden_size": "big"/' tiny/config.json >odd/config.json
expect 3 "hidden_size" "$STOWAGE" inspect odd
sed 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' tiny/config.json >odd/config.json
expect 3 "num_key_value_heads: found 3, expected a divisor of the 4 attention heads" "$STOWAGE" inspect odd
printf '{"model_type": "qwen3",' >odd/config.json
expect 3 "config.json:1" "$STOWAGE" inspect odd
printf '\377\377\377\377\000\000\000\000{}' >cut.safetensors
expect 3 "cut.safetensors" "$STOWAGE" inspect cut.safetensors
printf 'name,shape,dtype\na,"[2, -3]",F32\n' >negative.csv
expect 3 "negative.csv:2" "$STOWAGE" inspect negative.csv
printf 'name,shape,dtype\na,"[4294967296, 4294967296, 16]",F32\n' >huge.csv
expect 3 "huge.csv" "$STOWAGE" inspect huge.csv

# errors name what is wrong
mkdir -p wide
sed 's/"vocab_size": 8000/"vocab_size": 4611686018427387904/' tiny/config.json >wide/config.json
expect 3 'key "vocab_size" is the number 4611686018427387904' "$STOWAGE" inspect wide
expect 3 'unknown unit "EiB".*units B, .*PiB' plan --set node.gpu.memory=8EiB
expect 3 "the name of the model is empty" "$STOWAGE" inspect ""
expect 3 "the name of the cluster is empty" "$STOWAGE" plan --model tiny --cluster ""
expect 3 "the name of the file is empty" "$STOWAGE" report ""
ln -sfn loop loop
expect 3 "loop: cannot be opened" "$STOWAGE" inspect loop

# plans
plan -o plan.json >/dev/null
expect 3 "schema" "$STOWAGE" simulate tiny/config.json
sed 's|stowage.plan/1|stowage.plan/9|' plan.json >major.json
expect 3 "stowage.plan/9" "$STOWAGE" simulate major.json
awk '/"offset":/ && !done && $2 + 0 > 0 { sub(/[0-9]+/, "4096"); done = 1 } { print }' plan.json >overlap.json
cmp -s plan.json overlap.json && fail "the plan was not edited"
expect 3 "offset" "$STOWAGE" run overlap.json --backend host
# what follows from the file is derived again; inputs and the planner's evidence have checksums
changed() { # WORD KEY VALUE: the first "KEY" becomes VALUE
    awk -v key="\"$2\":" -v value="$3" '$1 == key && !done { sub(/: [^,]*/, ": " value); done = 1 } { print }' plan.json >changed.json
    cmp -s plan.json changed.json && fail "$2 was not changed"
    for command in report simulate "run --backend host --steps 1"; do
        # shellcheck disable=SC2086 # a command and its options
        expect 3 "changed.json:[0-9]*:[0-9]*: $1" "$STOWAGE" $command changed.json
    done
}
changed "verdict: found fits, the plan's peaks and limits give does_not_fit" memory 157286400
changed "cluster: was changed since the file was written" memory 2147483649
changed "run: was changed" lr 0.5
changed "run: was changed" clip_norm 2.0
changed "solver: was changed" simulated_plans 1000000
changed "gap: found 0, objective and bound give" gap 0.0
changed "bound: found 9, expected at most the objective" bound 9.0
changed "\"fetch_ahead\": found the number 4000000000, expected at most 8" fetch_ahead 4000000000
changed "model: was changed" max_positions 1
changed "time_s.iteration: found" iteration 0.001
changed "ranks\[0\].gpu_allocated_bytes: found" gpu_allocated_bytes 1
head -c 2000 plan.json >short.json
expect 3 "short.json" "$STOWAGE" run short.json --backend host
plan --set optimizer.lr=0.5 -o other.json >/dev/null
"$STOWAGE" run plan.json --backend host --steps 1 -o run.json >/dev/null
plan --set placement.moments=nvme -o elsewhere.json >/dev/null
expect 3 "another plan" "$STOWAGE" validate elsewhere.json run.json
expect 7 "engine=stowage" sh -c '"$0" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 -o fsdp2.json >/dev/null && "$0" run fsdp2.json --backend host' "$STOWAGE"
expect 7 "park.params: found host, expected none" sh -c '"$0" plan --model tiny --cluster tiny.yaml --set park.params=host -o parked.json >/dev/null && "$0" run parked.json --backend host' "$STOWAGE"

# members of another plan, with their checksums
plan --set placement.moments=gpu -o on_gpu.json >/dev/null
plan --set placement.moments=host -o on_host.json >/dev/null
section() { # KEY FILE: the whole member
    awk -v key="\"$1\":" '$1 == key && /^  "/ { on = 1 } on { print } on && /^  [\]}]/ { exit }' "$2"
}
moved() { # KEY: on_host.json with this member, and its checksum, of on_gpu.json
    section "$1" on_gpu.json >section.txt
    sum=$(sed -n "s/^    \"$1\": \"\([0-9a-f]*\)\".*/\1/p" on_gpu.json | tail -n 1)
    awk -v key="\"$1\":" -v sum="$sum" '
        $1 == key && /^  "/ { while ((getline line < "section.txt") > 0) print line; skip = 1 }
        skip { if (/^  [\]}]/) skip = 0; next }
        /^  "checksums"/ { sums = 1 }
        sums && $1 == key { sub(/: "[0-9a-f]*"/, ": \"" sum "\"") }
        { print }' on_host.json >moved.json
    cmp -s on_host.json moved.json && fail "$1 was not moved"
    for command in report simulate "run --backend host --steps 1"; do
        # shellcheck disable=SC2086 # a command and its options
        expect 3 "$2" "$STOWAGE" $command moved.json
    done
}
moved solver "copied from another plan"
moved run "decisions: found .* do not admit"
sed '2i\  "remark": true,' plan.json >added.json
expect 3 "remark: was added since" "$STOWAGE" report added.json

# outputs that are inputs, or each other
cp plan.json kept.json
ln -f plan.json hard.json
ln -sf plan.json soft.json
for file in plan.json ./plan.json hard.json soft.json; do
    expect 2 "is also an input: PLAN" "$STOWAGE" run plan.json --backend host --steps 1 -o $file
    expect 2 "is also an input: PLAN" "$STOWAGE" run plan.json --backend host --steps 1 -t $file
    expect 2 "is also an input: PLAN" "$STOWAGE" simulate plan.json --json -o $file
    expect 2 "is also an input: PLAN" "$STOWAGE" report plan.json --json -o $file
done
cmp kept.json plan.json
echo 'num-layers: 2' >flags.json
expect 2 "is also an input: --from" "$STOWAGE" plan --from megatron:flags.json --cluster tiny.yaml -o flags.json
cp tiny/config.json kept.config.json
# errors of an import name its file, or the setting that contradicts it
cat >experts.yaml <<'EOF'
MODEL_ARGS: {num-layers: 2, hidden-size: 64, num-attention-heads: 4, vocab-size: 1024, seq-length: 64, bf16: true,
             num-experts: 4, moe-router-topk: 2, tensor-model-parallel-size: 2}
EOF
expect 3 "experts.yaml: parallel.sequence_parallel: found false" "$STOWAGE" plan --from megatron:experts.yaml --cluster tiny.yaml --set node.gpus=2
expect 3 "parallel.sequence_parallel=false: parallel.sequence" "$STOWAGE" plan --from megatron:experts.yaml --cluster tiny.yaml --set node.gpus=2 \
    --set parallel.sequence_parallel=false
expect 2 "is also an input: --model" plan -o tiny/config.json
expect 2 "is also an input: --cluster" plan --write-lp tiny.yaml
expect 2 "is also an input: MODEL" "$STOWAGE" inspect tiny --json -o tiny/config.json
cmp kept.config.json tiny/config.json
expect 2 "same file" plan -o both.json --write-lp ./both.json
expect 2 "same file" "$STOWAGE" simulate plan.json --json -o both.json -t both.json
expect 2 "same file" "$STOWAGE" run plan.json --backend host --steps 1 -o both.json -t both.json
[ ! -e both.json ] || fail "both.json was written"
cp run.json kept.run.json
expect 2 "is also an input: RUN" "$STOWAGE" validate plan.json run.json --json -o run.json
cmp kept.run.json run.json
expect 0 "" "$STOWAGE" run plan.json --backend host --steps 1 -o /dev/null -t /dev/null

# a trace that cannot be written does not cost the result
rm -f result.json
expect 3 "no-such-folder" "$STOWAGE" run plan.json --backend host --steps 1 -o result.json -t no-such-folder/trace.json
"$STOWAGE" validate plan.json result.json >/dev/null || fail "the result is lost"

# nothing fits: exit 4; the plan with the smallest excess is written, with the exceeded limits
rm -f over.json
expect 4 "does not fit" plan --set node.gpu.memory=120MiB -o over.json
for command in simulate report "run --backend host --steps 1 -o over.run.json" "validate over.json over.run.json"; do
    code=0
    file=over.json
    case $command in validate*) file= ;; esac
    # shellcheck disable=SC2086 # a command and its options
    "$STOWAGE" $command $file >expect.out 2>&1 || code=$?
    grep -q "does not fit" expect.out || { cat expect.out >&2; fail "$command says nothing of the verdict"; }
    case $command in
    simulate) [ "$code" = 4 ] || fail "simulate: exit $code" ;;
    report) [ "$code" = 0 ] || fail "report: exit $code" ;;
    *) grep -q "warning: over.json: the plan does not fit: gpu memory of [a-z_]* is over its limit by [0-9]" expect.out ||
        { cat expect.out >&2; fail "$command does not say what is over"; } ;;
    esac
done
grep -q '"over_bytes"' over.json || fail "the infeasible plan lists no exceeded limit"
# a bucket of a weight sync that makes the program too long for the time is named
expect 5 "roles.0.update_bucket: found 1.00 MiB, with which a weight sync takes 61058 rounds" "$STOWAGE" plan --model Qwen3-8B --cluster h100-80g-x8 --set nodes=2 \
    --set 'roles=[{name: rollout, kind: rollout, nodes: 2, with: trainer, update_bucket: 1MiB}]' --time-limit 2
# kernels that Megatron-LM chooses itself; checkpoints that no disk limits
for kernel in flash3 sdpa; do
    expect 3 "attention: found $kernel, expected flash or eager, because engine is megatron" "$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 \
        --set engine=megatron --set attention=$kernel
done
for disk in 0 "10 TB"; do
    planned "$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set checkpoint.every=100 --set checkpoint.keep=3 \
        --set "node.nvme.capacity=$disk" --full >kept.txt
    code=0
    grep -q "The bytes of checkpoint.keep: 3 are not held to a disk" kept.txt || code=1
    [ "$code" = "$([ "$disk" = 0 ] && echo 0 || echo 1)" ] || fail "checkpoint.keep, node.nvme.capacity $disk: $(cat kept.txt)"
done
# a failed write leaves no files
expect 3 "no-such-folder" plan -o no-such-folder/plan.json
[ ! -e no-such-folder ] || fail "a folder appeared"
echo "bad input: ok"
