#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `stowage convert`: a checkpoint's model as a plain folder. Its bits are those that were saved, or those of the masters, under
# published names; transformers computes equal logits from it. What is damaged is named, and nothing is published; a convert
# that is killed or finds a full disk leaves nothing half.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
. "$STW_SOURCE_DIR/tests/cli/_checkpoint.sh"
tiny_model
moe_model
rm -rf saves-* out-* .out-* target
unset STOWAGE_FAIL

# saved NAME MODEL SETTINGS...: saves-NAME of steps 1 and 2
saved() {
    saved_name=$1
    model=$2
    shift 2
    plan_of "$saved_name" 1 "$@"
    run_of "$saved_name" 1 --steps 2 --every 1 --checkpoint "saves-$saved_name" || { cat "run-$saved_name.txt"; fail "saves of $saved_name"; }
}
saved tiny tiny precision.params=bf16 precision.master=fp32
saved moe moe precision.params=bf16 precision.master=fp32
saved fp32 tiny precision.params=fp32

# published experts have inputs before outputs, the model's have outputs first
mkdir -p vl
cat >vl/config.json <<'EOJ'
{"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "text_config": {"attention_bias": false, "decoder_sparse_step": 1, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96,
  "dtype": "bfloat16", "max_position_embeddings": 4096, "mlp_only_layers": [], "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 48,
  "norm_topk_prob": true, "num_attention_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 1,
  "rms_norm_eps": 1e-06, "rope_theta": 5000000, "vocab_size": 500,
  "rope_scaling": {"mrope_interleaved": true, "mrope_section": [6, 5, 5], "rope_type": "default"}},
 "vision_config": {"deepstack_visual_indexes": [0], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "in_channels": 3,
  "intermediate_size": 48, "model_type": "qwen3_vl_moe", "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 64, "patch_size": 4,
  "spatial_merge_size": 2, "temporal_patch_size": 2}}
EOJ
saved vl vl precision.params=bf16 precision.master=fp32

# ---- bits ----
convert() { "$STOWAGE" convert "$@" >convert.txt 2>&1 || { cat convert.txt; fail "convert $*"; }; }
printf '{"a": 1}\n' >moe/tokenizer.json
convert saves-tiny -o out-tiny --like tiny
convert saves-tiny/step-00000001 -o out-first --like tiny
convert saves-moe -o out-moe --like moe --shard-size 1MB
convert saves-moe -o out-master --like moe --shard-size 2MiB --from master
convert saves-moe -o out-rounded --like moe --from master --dtype bf16
convert saves-moe -o out-half --like moe --dtype fp16
convert saves-fp32 -o out-fp32 --like tiny
convert saves-vl -o out-vl --like vl
convert saves-vl -o out-vl-master --like vl --from master
"$STOWAGE" convert saves-fp32 -o out-json --json --dtype bf16 >json.txt 2>convert.txt || { cat convert.txt; fail "--json"; }
grep -q "has no config.json: names of tensors are as saved" convert.txt || { cat convert.txt; fail "no config.json"; }
[ "$(member json.txt step)" = 2 ] && [ "$(member json.txt dtype)" = BF16 ] && [ "$(member json.txt tensors)" = 46 ] || { cat json.txt; fail "--json"; }
grep -q "out-tiny: step 2 of saves-tiny/step-00000002, 46 tensors in 1 file" convert.txt && fail "the wrong text"
cmp -s out-first/model.safetensors out-tiny/model.safetensors && fail "the older checkpoint has the newer one's weights"
[ "$(ls out-tiny)" = "$(printf 'config.json\nmodel.safetensors')" ] || { ls out-tiny; fail "files of one shard"; }
cmp moe/tokenizer.json out-moe/tokenizer.json || fail "the tokenizer"
grep -q '"torch_dtype": "float32"' out-master/config.json && grep -q '"torch_dtype": "bfloat16"' out-moe/config.json || fail "dtype in config.json"
[ "$(grep -c '"dtype": "float32"' out-vl-master/config.json)" = 1 ] || fail "dtype of text_config"

cat >bits.py <<'EOP'
import glob, json, struct, sys
WIDTH = {"F32": 4, "BF16": 2, "F16": 2}
def load(pattern):
    out = {}
    for file in sorted(glob.glob(pattern)):
        data = open(file, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, e in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                assert name not in out, name
                out[name] = (e["dtype"], e["shape"], data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]], file.split("/")[-1])
    return out
def floats(t):
    dtype, _, data = t[:3]
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return struct.unpack(f"<{len(t[2]) // WIDTH[dtype]}{'e' if dtype == 'F16' else 'f'}", data)
def swap(t):
    *outer, r, c = t[1]
    w, m = WIDTH[t[0]], r * c
    n = len(t[2]) // w
    return b"".join(t[2][(b * m + i * c + j) * w:(b * m + i * c + j + 1) * w] for b in range(n // m) for j in range(c) for i in range(r))
def same(a, b):
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())[:3]
    for k in a:
        assert a[k][:3] == b[k][:3], k
def params(name): return load(f"saves-{name}/step-00000002/model-*.safetensors")
def master(name):
    return {k[7:]: v for k, v in load(f"saves-{name}/step-00000002/optimizer-*.safetensors").items() if k.startswith("master.")}
def shards(folder, most):
    got = load(folder + "/model-*.safetensors")
    index = json.load(open(folder + "/model.safetensors.index.json"))
    assert index["weight_map"] == {k: v[3] for k, v in got.items()}
    assert index["metadata"]["total_size"] == sum(len(v[2]) for v in got.values())
    for file in set(v[3] for v in got.values()):
        assert sum(len(v[2]) for v in got.values() if v[3] == file) <= most
    return got

tiny = load("out-tiny/model.safetensors")
same(tiny, params("tiny"))
assert "lm_head.weight" not in tiny and "model.embed_tokens.weight" in tiny  # tied
same(load("out-fp32/model.safetensors"), params("fp32"))
moe = shards("out-moe", 1 << 20)
same(moe, params("moe"))
assert "model.layers.0.mlp.experts.7.up_proj.weight" in moe
same(load("out-rounded/model.safetensors"), moe)  # parameters are rounded masters
half = load("out-half/model.safetensors")
for k, v in moe.items():
    assert half[k][0] == "F16" and half[k][2] == struct.pack(f"<{len(v[2]) // 2}e", *floats(v)), k
for k, v in load("out-json/model.safetensors").items():  # fp32 to bf16, to nearest even
    bits = struct.unpack(f"<{len(v[2]) // 2}I", struct.pack(f"<{len(v[2]) // 2}f", *floats(params("fp32")[k])))
    assert v[2] == struct.pack(f"<{len(bits)}H", *((b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits)), k
own, got = master("moe"), shards("out-master", 2 << 20)
for k, v in got.items():
    assert v[0] == "F32", k
    if ".experts." not in k:
        assert own[k][1:3] == v[1:3], k
        continue
    head, _, rest = k.partition(".experts.")
    e, which, _ = rest.split(".")
    fused = own[head + ".experts." + ("down_proj" if which == "down_proj" else "gate_up_proj")]
    each = len(fused[2]) // fused[1][0]
    one = fused[2][int(e) * each:(int(e) + 1) * each]
    if which != "down_proj":
        one = one[:each // 2] if which == "gate_proj" else one[each // 2:]
    assert one == v[2], k
for folder, state in (("out-vl", params("vl")), ("out-vl-master", master("vl"))):
    got = load(folder + "/model.safetensors")
    assert got.keys() == state.keys()
    for k, v in got.items():
        if k.endswith("experts.gate_up_proj") or k.endswith("experts.down_proj"):
            assert v[1] == state[k][1][:-2] + state[k][1][:-3:-1] and v[2] == swap(state[k]), k
        else:
            assert v[1:3] == state[k][1:3], k
EOP
python3 bits.py || fail "bits"

# transformers 5 reads a checkpoint and what is converted of it: equal logits, equal parameters
if python3 -c "import torch, transformers; assert int(transformers.__version__.split('.')[0]) >= 5" 2>/dev/null; then
    for name in tiny moe vl; do cp $name/config.json saves-$name/step-00000002/; done
    HF_HUB_OFFLINE=1 python3 - >torch.txt 2>&1 <<'EOP' || { cat torch.txt; fail "transformers"; }
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
ids = torch.arange(24).reshape(2, 12)
def logits(folder, **how):
    model, said = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **how)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"], said
    return model.dtype, model(ids).logits
for name, same in (("tiny", ["out-tiny"]), ("moe", ["out-moe", "out-rounded"])):
    dtype, expected = logits(f"saves-{name}/step-00000002")
    for folder in same:
        found = logits(folder)
        assert found[0] == dtype and torch.equal(found[1], expected), folder
dtype, found = logits("out-master")
assert dtype == torch.float32 and (found - expected.float()).abs().max() < 1e-2
assert logits("out-half")[0] == torch.float16
model, said = AutoModelForImageTextToText.from_pretrained("out-vl", output_loading_info=True)
assert not said["missing_keys"] and not said["mismatched_keys"], said
from safetensors.torch import load_file
saved = load_file("saves-vl/step-00000002/model-00001-of-00001.safetensors")
own = model.state_dict()
assert all(torch.equal(own[k], v) for k, v in saved.items() if "experts" in k)
EOP
    echo "transformers: equal logits"
fi

# ---- what is refused ----
mkdir target
: >target/file
expect 2 "target: found file in it, expected a folder that is empty or does not exist" "$STOWAGE" convert saves-tiny -o target
expect 2 "target/file: found a file, expected a folder" "$STOWAGE" convert saves-tiny -o target/file
ln -sf nowhere out-link
expect 2 "out-link: found a link" "$STOWAGE" convert saves-tiny -o out-link
expect 2 "expected -o FOLDER" "$STOWAGE" convert saves-tiny
expect 2 "\-\-dtype: found \"int8\", expected bf16, fp32 or fp16" "$STOWAGE" convert saves-tiny -o out-no --dtype int8
expect 2 "\-\-from: found \"adam\"" "$STOWAGE" convert saves-tiny -o out-no --from adam
expect 2 "\-\-shard-size: found 4096, expected at least 1 MB" "$STOWAGE" convert saves-tiny -o out-no --shard-size 4096
expect 2 "\-\-shard-size" "$STOWAGE" convert saves-tiny -o out-no --shard-size many
expect 3 "found no checkpoint" "$STOWAGE" convert tiny -o out-no
expect 3 "holds no master weights" "$STOWAGE" convert saves-fp32 -o out-no --from master
expect 3 "no/such/.out-no.converting: cannot be made" "$STOWAGE" convert saves-tiny -o no/such/out-no
rm -f saves-moe/step-00000002/config.json
expect 3 "no parameter belongs to master.model.layers.*the config.json of the model" "$STOWAGE" convert saves-moe -o out-no --from master
"$STOWAGE" convert saves-moe -o out-other --like tiny >convert.txt 2>&1 || { cat convert.txt; fail "another config.json"; }
grep -q "config.json describes another model, so names are as saved: holds no tensor model.embed_tokens.weight" convert.txt || { cat convert.txt; fail "of another model"; }
mkdir out-empty
convert saves-tiny -o out-empty/ --like tiny
cmp out-empty/model.safetensors out-tiny/model.safetensors || fail "an empty folder"
mkdir -p quantised
sed 's/"architectures"/"quantization_config": {"quant_method": "fp8"}, &/' tiny/config.json >quantised/config.json
convert saves-tiny -o out-plain --like quantised
grep -q quantization out-plain/config.json && fail "plain weights are said to be quantised" || true

# ---- damage ----
nothing() {
    [ ! -e out-no ] && [ ! -e .out-no.converting ] || { ls -A . out-no .out-no.converting; fail "$1: something is left"; }
}
cp -r saves-tiny saves-bad
bad=saves-bad/step-00000002
printf x | dd of=$bad/model-00001-of-00001.safetensors bs=1 seek=6000000 conv=notrunc 2>/dev/null
expect 8 "model-00001-of-00001.safetensors: is damaged: its .* bytes from .* that rank 0 wrote (from .* on) have hash" \
    "$STOWAGE" convert saves-bad -o out-no --like tiny
nothing "a damaged bucket"
convert saves-bad/step-00000001 -o out-older --like tiny
convert saves-bad -o out-masters --like tiny --from master --dtype bf16 # its model part is not read, but for the header
cmp out-masters/model.safetensors out-tiny/model.safetensors || fail "from masters"
printf x | dd of=$bad/model-00001-of-00001.safetensors bs=1 seek=40 conv=notrunc 2>/dev/null
expect 8 "model-00001-of-00001.safetensors: is damaged: its 8192 bytes from 0 to 8192 that rank 0 wrote (header) have hash" \
    "$STOWAGE" convert saves-bad -o out-no --like tiny
nothing "a damaged header"
rm $bad/rank-00000.done
convert saves-bad -o out-before --like tiny
grep -q "is not complete and is passed over" convert.txt || { cat convert.txt; fail "an incomplete one"; }
cmp out-before/model.safetensors out-first/model.safetensors || fail "the one before"

# ---- a full disk; signals at any time ----
(
    # shellcheck disable=SC3045 # dash and bash have it; what has not is skipped
    ulimit -f 8192 2>/dev/null || exit 0
    trap '' XFSZ
    expect 1 "out-no/model.safetensors\|.out-no.converting/model.safetensors: .*" "$STOWAGE" convert saves-tiny -o out-no --like tiny
) || fail "a full disk"
nothing "a full disk"
half=0 whole=0 i=0
while [ $i -lt 24 ]; do
    i=$((i + 1))
    signal=KILL
    rm -rf out-no
    [ $((i % 3)) != 0 ] || signal=TERM
    [ $signal = KILL ] || rm -rf .out-no.converting
    "$STOWAGE" convert saves-tiny -o out-no --like tiny >/dev/null 2>&1 &
    pid=$!
    sleep "$(awk -v i=$i 'BEGIN { print 0.004 * (i % 12) }')"
    kill -$signal $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    if [ -e out-no ]; then
        cmp out-no/model.safetensors out-tiny/model.safetensors && cmp out-no/config.json out-tiny/config.json || fail "half a folder, kill $i"
        whole=$((whole + 1))
    elif [ -e .out-no.converting ]; then
        [ $signal = KILL ] || fail "SIGTERM leaves .out-no.converting"
        half=$((half + 1))
    fi
done
rm -rf out-no
convert saves-tiny -o out-no --like tiny
cmp out-no/model.safetensors out-tiny/model.safetensors && [ ! -e .out-no.converting ] || fail "after kills"
echo "convert: ok ($half killed while writing, $whole too late)"
