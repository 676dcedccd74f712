#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A run executes the weight sync of its plan, and --sync-to writes a folder: on 1 to 4 ranks, from GPU and host, with buckets of
# 1 MiB, 64 MiB and more than the model, for rollouts of TP 1, 2 and 4, with tensors that leave ranks empty, tied weights, experts and
# an odd vocabulary. What arrives is compared byte by byte by the run; folders of all ranks and placements have the same digest.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
mkdir -p dense moe
cat >dense/config.json <<'EOF2'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 32, "hidden_size": 132,
 "intermediate_size": 264, "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 4999, "max_position_embeddings": 4096}
EOF2
cat >moe/config.json <<'EOF2'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false, "head_dim": 24, "hidden_size": 96,
 "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_experts": 3,
 "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [], "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "vocab_size": 997, "max_position_embeddings": 4096}
EOF2
mpirun=
[ "${STW_WITH_MPI:-0}" = 0 ] || [ "${STW_WITH_MPI:-OFF}" = OFF ] || mpirun=${STW_MPIEXEC:-mpirun}
[ -z "$mpirun" ] || command -v "$mpirun" >/dev/null 2>&1 || mpirun=

# execute RANKS ARGUMENT...: plan.json on so many ranks
execute() {
    execute_ranks=$1
    shift
    set -- "$STOWAGE_RUN" plan.json --backend host --seed 3 -o run.json -q "$@"
    [ "$execute_ranks" = 1 ] || set -- "$mpirun" -n "$execute_ranks" "$@"
    "$@" >run.txt 2>&1 || { cat run.txt; fail "$model, $execute_ranks ranks, $what"; }
    [ "$(member run.json mismatched)" = 0 ] || fail "$model, $execute_ranks ranks, $what: bits differ"
}

# of OBJECT KEY: a member of an object of run.json
of() { sed -n "/^  \"$1\": {/,/}/p" run.json | sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\).*/\1/p" | head -n 1; }

# plan RANKS SETTING...
plan() {
    tiny_cluster "$1"
    shift
    what="$*"
    planned "$STOWAGE" plan -q --model "$model" --cluster tiny.yaml "$@" -o plan.json >plan.txt 2>&1 || { cat plan.txt; fail "$model: no plan: $what"; }
}

host="--set placement.params=host --set placement.grads=host"
nvme="--set placement.moments=nvme"
for model in dense moe; do
    expected=
    for ranks in 1 2 3 4; do
        [ "$ranks" = 1 ] || [ -n "$mpirun" ] || continue
        turn=0
        for tp in 1 2 4; do
            [ "$((ranks % tp))" = 0 ] || continue
            [ "$model$tp" != moe4 ] || continue # 40 rows of an expert, and two heads of keys
            for bucket in "1 MiB" "64 MiB" "1 GiB"; do
                turn=$((turn + 1)) # placements take turns with buckets
                case $((turn % 3)) in 0) place= ;; 1) place=$host ;; 2) place=$nvme ;; esac
                in_place= # every other time
                [ "$((turn % 2))" = 0 ] || in_place=", free_cache_engine: false, gpu_memory_utilization: 0.5, update_in_place: true"
                # shellcheck disable=SC2086
                plan "$ranks" $place --set "roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4,
                    max_num_batched_tokens: 1024, update_bucket: $bucket, parallel: {tp: $tp}$in_place}]"
                grep -A4 '"phase": "weight_sync"' plan.json | grep -q '"by": "stowage"' || fail "the plan does not say who executes the sync: $what"
                execute "$ranks" --steps 2
                [ "$(of weight_sync version)" = 2 ] || fail "$model, $ranks ranks, $what: no version 2"
                [ "$ranks" != 1 ] || [ "$(of weight_sync sent_bytes)" = 0 ] || fail "one rank has sent bytes"
                [ "$(of weight_sync sent_bytes)" = "$(of weight_sync received_bytes)" ] || fail "$what: not all that was sent came"
                "$STOWAGE" validate plan.json run.json >validate.txt || { cat validate.txt; fail "validate: $what"; }
                "$STOWAGE" validate -v plan.json run.json >validate.txt || fail "validate -v: $what"
                [ "$ranks" != 1 ] || [ -z "$in_place" ] || continue # no buffers
                sed -n '/^ *weight_sync/,$p' validate.txt | grep -q 'GPU stage .*within' || fail "$what: the sync's buffers are not judged"
            done
        done
        for place in "" "$host" "$nvme"; do
            # shellcheck disable=SC2086
            if [ "$place" = "$host" ]; then # both syncs, of parameters on the host
                plan "$ranks" $place --set "roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4,
                    max_num_batched_tokens: 1024, update_bucket: 1 MiB}]"
            else
                plan "$ranks" $place
            fi
            execute "$ranks" --steps 2 --sync-to out
            [ "$place" != "$host" ] || [ "$(of weight_sync version)" = 2 ] || fail "$model, $ranks ranks, $what: the rollout has no version 2"
            [ "$(of sync_to version)" = 2 ] || fail "$model, $ranks ranks, $what: no version 2 of the folder"
            grep -a -q '"step": "2"' out/*.safetensors || fail "the files do not say the step"
            [ ! -e out.writing-2 ] || fail "$what: the folder under way is left"
            plan 1
            execute 1 --steps 1 --weights out
            [ -n "$expected" ] || expected=$(digests run.json)
            [ -n "$expected" ] && [ "$expected" = "$(digests run.json)" ] || fail "$model, $ranks ranks: the folder differs: $what"
        done
    done
done
grep -a -q '"model.layers.1.mlp.experts.2.up_proj.weight"' out/*.safetensors || fail "experts are not published one by one"

# both: the rollout first, then the folder; a name that stands for something else is not replaced
model=dense
plan 1 --set "roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024}]"
execute 1 --steps 1 --sync-to new/
[ "$(of weight_sync version)$(of sync_to version)" = 11 ] || fail "the run has not both syncs"
cp dense/config.json new/tokenizer.txt
execute 1 --steps 1 --weights new --sync-to copy
cmp new/tokenizer.txt copy/tokenizer.txt || fail "what lies beside the weights is not copied"
mkdir -p other/folder
expect 2 "found something else than a flat folder of safetensors" "$STOWAGE" run plan.json --backend host --sync-to other
expect 2 "found something else than a flat folder of safetensors" "$STOWAGE" run plan.json --backend host --sync-to dense
[ -d other/folder ] && [ -s dense/config.json ] || fail "what was not to be replaced is gone"
# a full disk: the error says which folder
cat >full.c <<'EOC'
#include <errno.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    if (at == 0) return syscall(SYS_pwrite64, fd, data, n, at); /* a header */
    errno = ENOSPC;
    return -1;
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwrite(fd, data, n, at); }
EOC
if cc -shared -fPIC -w -o full.so full.c 2>/dev/null; then
    mkdir -p full
    expect 1 "full/copy.writing-1/model.safetensors: cannot be written: No space left" \
        env LD_PRELOAD="$PWD/full.so" "$STOWAGE_RUN" plan.json --backend host --steps 1 --sync-to full/copy
fi
# rollouts elsewhere, and those that quantise, are planned alone
for role in "with: none, nodes: 1" "dtype: fp8"; do
    tiny_cluster 1
    planned "$STOWAGE" plan -q --model dense --cluster tiny.yaml --set nodes=2 --set "roles=[{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k,
        max_num_seqs: 4, max_num_batched_tokens: 1024, $role}]" -o alone.json >alone.txt 2>&1 || { cat alone.txt; fail "no plan: $role"; }
    grep -A4 '"phase": "weight_sync"' alone.json | grep -q '"by": "planned, not executed"' || fail "$role: the sync is shown as executed"
done
echo "sync_run: ok"
