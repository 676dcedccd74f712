# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of checkpoints.

# plan_of NAME RANKS KEY=VALUE...: plan-NAME.json
plan_of() {
    plan_name=$1
    tiny_cluster "$2"
    shift 2
    plan_sets=
    for plan_set in "$@"; do plan_sets="$plan_sets --set $plan_set"; done
    # shellcheck disable=SC2086 # one word each
    planned "$STOWAGE" plan --model "${model:-tiny}" --cluster tiny.yaml $plan_sets -o "plan-$plan_name.json" >plan.txt 2>&1 ||
        { cat plan.txt; fail "plan $plan_name"; }
}

# run_of NAME RANKS OPTION...: run-NAME.json
run_of() {
    run_name=$1
    run_ranks=$2
    shift 2
    run_launch=
    [ "$run_ranks" = 1 ] || run_launch="$mpirun -n $run_ranks --oversubscribe"
    # shellcheck disable=SC2086
    $run_launch "$STOWAGE" run "plan-$run_name.json" --backend host -o "run-$run_name.json" "$@" >"run-$run_name.txt" 2>&1
}

all_digests() { grep -A 5 '"digest"' "$1" | grep -E '"(params|exp_avg|exp_avg_sq|master)"' | tr -d ' ,\n'; }

# moe_model: moe/config.json, a Qwen3-MoE of 8 experts, published one by one
moe_model() {
    mkdir -p moe
    cat >moe/config.json <<'EOJ'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false, "head_dim": 32,
 "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true, "num_attention_heads": 4, "num_hidden_layers": 3,
 "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "vocab_size": 2000, "max_position_embeddings": 4096}
EOJ
}
