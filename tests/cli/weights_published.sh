#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Published files, which name and cut tensors otherwise than the model: experts one by one, gate and up apart, transposed, other
# prefixes. They give the digests of seeded weights, on one rank and on two; a folder that lacks an expert is refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_cluster 1
sizes='"vocab_size": 500, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24'
experts='"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "intermediate_size": 130, "mlp_only_layers": []'
vision='"vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "depth": 1, "out_hidden_size": 96,
    "patch_size": 4, "num_position_embeddings": 4, "deepstack_visual_indexes": [0]}'
mkdir -p qwen3_moe mixtral qwen3_vl_moe qwen2_5_vl
echo "{\"model_type\": \"qwen3_moe\", $experts, $sizes}" >qwen3_moe/config.json
echo "{\"model_type\": \"mixtral\", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"intermediate_size\": 40, $sizes}" >mixtral/config.json
echo "{\"model_type\": \"qwen3_vl_moe\", $vision, \"text_config\": {\"model_type\": \"qwen3_vl_moe_text\", $experts, $sizes}}" >qwen3_vl_moe/config.json
echo "{\"model_type\": \"qwen2_5_vl\", $vision, \"intermediate_size\": 130, $sizes}" >qwen2_5_vl/config.json

for model in qwen3_moe mixtral qwen3_vl_moe qwen2_5_vl; do
    rm -rf "$model.files"
    "$STW_WRITE_SAFETENSORS" --published $model $model.files 7 "256 KiB" 2>/dev/null
    [ "$(find $model.files -name '*.safetensors' | wc -l)" -gt 1 ] || fail "the weights of $model are not sharded"
    "$STOWAGE" plan --model $model --cluster tiny.yaml -o $model.json >/dev/null 2>&1 || [ $? = 9 ]
    "$STOWAGE" run $model.json --backend host --steps 1 --seed 7 -o seeded.json >/dev/null
    "$STOWAGE" run $model.json --backend host --steps 1 --seed 7 --weights $model.files -o read.json >/dev/null
    [ -n "$(digests read.json)" ] && [ "$(digests read.json)" = "$(digests seeded.json)" ] || fail "$model: file and seed differ"
done
grep -q 'model.layers.1.mlp.experts.4.up_proj.weight' qwen3_moe.files/*.index.json || fail "experts of Qwen3 are not published one by one"
grep -q 'block_sparse_moe.experts.0.w3.weight' mixtral.files/*.index.json || fail "experts of Mixtral are not w1, w2, w3"
grep -q '"visual.blocks.0.attn.qkv.weight"' qwen2_5_vl.files/*.index.json || fail "the vision tower is not named visual"

rm -rf lacking
cp -r mixtral.files lacking
sed 's/"model.layers.1.block_sparse_moe.experts.3.w2.weight"/"nothing"/' mixtral.files/model.safetensors.index.json >lacking/model.safetensors.index.json
for file in lacking/*.safetensors; do
    sed -i 's/"model.layers.1.block_sparse_moe.experts.3.w2.weight"/"model.layers.1.block_sparse_moe.experts.3.w2.notfit"/' "$file"
done
sed -i 's/"nothing"/"model.layers.1.block_sparse_moe.experts.3.w2.notfit"/' lacking/model.safetensors.index.json
expect 3 "lacking: holds no tensor model.layers.1.block_sparse_moe.experts.3.w2.weight, a part of model.layers.1.mlp.experts.down_proj" \
    "$STOWAGE" run mixtral.json --backend host --steps 1 --weights lacking
if [ "${STW_WITH_MPI:-OFF}" != OFF ] && [ "${STW_WITH_MPI:-0}" != 0 ] && command -v "${STW_MPIEXEC:-mpirun}" >/dev/null; then
    mpirun=${STW_MPIEXEC:-mpirun}
    tiny_cluster 2
    "$STOWAGE" plan --model qwen3_moe --cluster tiny.yaml --set load.method=sharded_read -o two.json >/dev/null 2>&1 || [ $? = 9 ]
    "$mpirun" -n 2 "$STOWAGE_RUN" two.json --backend host --steps 1 --seed 7 -o seeded.json >/dev/null
    "$mpirun" -n 2 "$STOWAGE_RUN" two.json --backend host --steps 1 --seed 7 --weights qwen3_moe.files --compare-weights -o read.json >/dev/null
    [ -n "$(digests read.json)" ] && [ "$(digests read.json)" = "$(digests seeded.json)" ] || fail "two ranks: file and seed differ"
fi
echo "weights_published: ok"
