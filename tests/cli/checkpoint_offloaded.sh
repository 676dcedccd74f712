#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Megatron-LM issue 4910, scaled down: a Qwen3.5 MoE with vision tower and linear attention on 4 ranks, CP 2, experts cut by
# EP, masters and moments on the host, where ranks hold the state of different tensors. It is saved behind training, killed
# in the middle of a save, and resumed: the bits of the run that was not killed.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
needs_mpi
mkdir -p qwen35
cat >qwen35/config.json <<'EOJ'
{"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": false,
 "text_config": {"attention_bias": false, "attn_output_gate": true, "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 32,
  "hidden_act": "silu", "hidden_size": 96, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
  "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
  "linear_num_value_heads": 3, "linear_value_head_dim": 16, "max_position_embeddings": 4096, "mlp_only_layers": [],
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 40, "num_attention_heads": 3, "num_experts": 8, "num_experts_per_tok": 2,
  "num_hidden_layers": 4, "num_key_value_heads": 1, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
  "shared_expert_intermediate_size": 40, "vocab_size": 1501},
 "vision_config": {"depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "in_channels": 3, "intermediate_size": 48,
  "model_type": "qwen3_5_moe_vision", "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 96, "patch_size": 4,
  "spatial_merge_size": 2, "temporal_patch_size": 2}}
EOJ
model=qwen35
steps=12
# the run of the case at this size: what follows the name replaces what 4 nodes of 8 GPUs have
shape="--run $STW_SOURCE_DIR/models/examples/stowage-4910.yaml"
planned_as() {
    tiny_cluster "$2"
    name=$1
    shift 2
    sets=
    for set in "$@"; do sets="$sets --set $set"; done
    # shellcheck disable=SC2086 # one word each
    planned "$STOWAGE" plan --model qwen35 --cluster tiny.yaml $shape $sets --set batch.seq_len=128 --set batch.image_tokens=16 \
        -o "plan-$name.json" >plan.txt 2>&1 || { cat plan.txt; fail "plan $name"; }
}
planned_as four 4 parallel.ep=4
planned_as three 3 parallel.cp=1 parallel.ep=1
rm -rf saves
run_of four 4 --steps $steps || { cat run-four.txt; fail "uninterrupted"; }
reference=$(all_digests run-four.json)

# Killed: all ranks at once, as soon as a save is in its middle and one is complete.
i=0 killed=
while [ -z "$killed" ] && [ $i -lt 20 ]; do
    i=$((i + 1))
    rm -rf saves pid.*
    # shellcheck disable=SC2016
    $mpirun -n 4 --oversubscribe sh -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$STOWAGE" run "$0" --backend host "$@"' plan-four.json \
        --steps 1000 --checkpoint saves --every 1 --keep 2 >killed.txt 2>&1 &
    job=$!
    for wait in $(seq 3000); do
        set -- saves/step-*
        [ -d "$1" ] || { sleep 0.02; continue; }
        set -- saves/.step-*.partial
        [ ! -d "$1" ] || break
    done
    for pid in pid.*; do kill -KILL "$(cat "$pid")" 2>/dev/null || true; done
    kill -KILL $job 2>/dev/null || true # a launcher may wait for ever for ranks that were killed
    wait $job 2>/dev/null || true
    newest=$("$STOWAGE" state list saves --json | awk -F'"' '/"path"/ { path = $4 } /"complete": true/ { last = path } END { print last }')
    step=$(echo "$newest" | sed 's/.*step-0*\([0-9]*\).*/\1/')
    for part in saves/.step-*.partial; do
        # it lacks a marker, and it is the save after the newest complete one
        [ ! -d "$part" ] || [ "$(find "$part" -name 'rank-*.done' | wc -l)" -ge 4 ] || [ "$step" -ge $steps ] || killed=$part
    done
done
[ -n "$killed" ] || { cat killed.txt; ls -A saves; fail "no save was under way, $i times ($wait)"; }
"$STOWAGE" state verify "$newest" >verify.txt 2>&1 || { cat verify.txt; fail "the complete one"; }

# Ranks hold the state of different tensors: which, by the markers of the complete one.
if command -v python3 >/dev/null 2>&1; then
    python3 - "$newest" <<'EOP' || fail "sets of state"
import json, struct, sys
tensors, sets = {}, []
for rank in range(4):
    mine, files, file = set(), [], None
    for line in open(f"{sys.argv[1]}/rank-{rank:05d}.done"):
        word = line.split()
        if word[0] == "file":
            files.append(word[1])
        elif word[0] == "bucket":
            file = files[int(word[1])]
        elif word[0] == "bytes" and file.startswith("optimizer-"):
            if file not in tensors:
                data = open(f"{sys.argv[1]}/{file}", "rb")
                n = struct.unpack("<Q", data.read(8))[0]
                tensors[file] = [(k, 8 + n + e["data_offsets"][0], 8 + n + e["data_offsets"][1]) for k, e in json.loads(data.read(n)).items() if k != "__metadata__"]
            first, size, count, stride = map(int, word[1:])
            for row in range(count):
                begin = first + row * stride
                mine.update(k for k, b, e in tensors[file] if b < begin + size and begin < e)
    sets.append(mine)
names = set().union(*sets)
assert len({k.split(".", 1)[1] for k in names}) * 3 == len(names)  # master, exp_avg, exp_avg_sq of each
assert len({frozenset(s) for s in sets}) > 1 and any(s != names for s in sets), "all ranks hold the same"
print("ranks write state of", ", ".join(str(len(s)) for s in sets), "of", len(names), "tensors")
EOP
fi

run_of four 4 --steps $steps --checkpoint saves --every 1 --resume saves || { cat run-four.txt; fail "resumed"; }
grep -q "resumed from $newest" run-four.txt || { cat run-four.txt; fail "from step $step"; }
[ "$(all_digests run-four.json)" = "$reference" ] || fail "$(all_digests run-four.json), expected $reference"
[ "$(find saves -name '.step*' | wc -l)" = 0 ] || { ls -A saves; fail "something is left"; }
# three ranks without CP and EP go on from it, too
steps=$((steps + 2))
run_of four 4 --steps $steps --resume saves || { cat run-four.txt; fail "further"; }
reference=$(all_digests run-four.json)
run_of three 3 --steps $steps --resume saves || { cat run-three.txt; fail "on three ranks"; }
[ "$(all_digests run-three.json)" = "$reference" ] || fail "$(all_digests run-three.json), expected $reference"
echo "checkpoint_offloaded: killed in $killed at the $i. time, resumed from step $step: $reference"
