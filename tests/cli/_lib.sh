# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of the commands: a small model, a small cluster, and checks.
# Sourced in the folder of the test; STOWAGE is the program.
set -eu
export COLUMNS=0 # sentences that are looked for are not wrapped

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# tiny_model: tiny/config.json, a Qwen3 of 5.6 million parameters
tiny_model() {
    mkdir -p tiny
    cat >tiny/config.json <<'EOF'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 64,
 "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_hidden_layers": 4,
 "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "vocab_size": 8000, "max_position_embeddings": 4096}
EOF
}

# tiny_cluster GPUS: a node whose GPUs are small enough to force choices
tiny_cluster() {
    cat >tiny.yaml <<EOF
name: tiny
nodes: 1
node:
  gpus: $1
  gpu: {name: pretend, memory: 2 GiB, context: 0 GiB, comm: 0 GiB, hbm: 1 TB/s, bf16: 100 TFLOP/s}
  host: {memory: 8 GiB, limit: 8 GiB, page_lock_limit: unlimited, process: 64 MiB, bandwidth: 40 GB/s, dma: 30 GB/s, cores: 2}
  pcie: {h2d: 12 GB/s, d2h: 12 GB/s, both: 10 GB/s, latency: 10 us}
  nvlink: 100 GB/s
  nvme: {capacity: 16 GiB, read: 2 GB/s, write: 1 GB/s}
  cpu_adamw: 1 Gparam/s
EOF
}

# needs_mpi: the test is skipped without MPI; `mpirun` names the launcher
needs_mpi() {
    [ "${STW_WITH_MPI:-0}" != 0 ] && [ "${STW_WITH_MPI:-OFF}" != OFF ] || exit 77
    mpirun=${STW_MPIEXEC:-mpirun}
    command -v "$mpirun" >/dev/null 2>&1 || exit 77
}

# expect CODE WORD COMMAND...: the command exits with CODE and says WORD
expect() {
    expected=$1
    word=$2
    shift 2
    code=0
    "$@" >expect.out 2>&1 || code=$?
    [ "$code" = "$expected" ] || { cat expect.out >&2; fail "exit $code, expected $expected: $*"; }
    grep -q -e "$word" expect.out || { cat expect.out >&2; fail "\"$word\" is not said by: $*"; }
}

# planned COMMAND...: 9 (at risk, or a part is unknown) counts as 0
planned() {
    planned_code=0
    "$@" || planned_code=$?
    [ "$planned_code" = 9 ] || return "$planned_code"
}

# member FILE KEY: first value of "KEY" in a JSON file that this project wrote (one member a line)
member() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | head -n 1; }

# digests RUN.json
digests() { grep -A 4 '"digest"' "$1" | grep -E '"(params|exp_avg|exp_avg_sq)"' | tr -d ' ,\n'; }

# narrow COMMAND...: at 80 columns no line is wider, but for words that no table has (paths, long names)
narrow() {
    code=0
    COLUMNS=80 "$@" >narrow.out 2>/dev/null || code=$?
    case $code in 0 | 4 | 9) ;; *) fail "exit code $code: $*" ;; esac
    awk 'length($0) > 80 { n = split($0, words, " "); wide = 1
            for (i = 1; i <= n; i++) if (length(words[i]) > 40) wide = 0
            if (wide) { print; bad = 1 } } END { exit bad || NR == 0 }' narrow.out >&2 || fail "wider than 80 columns: $*"
}
