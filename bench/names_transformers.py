#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders that transformers writes, read through libstowage: are all weights the same bits?

For each model family a model with the real config's names and small sizes is made by transformers, with random weights in
bf16, and saved with save_pretrained, which writes published names. Its config.json is opened by stw_open_model, its files by
stw_open_weights, and every parameter is compared with the model's state_dict: whole, and a random box of it. Some families are
also written by hand in ways that transformers reads but does not write: fp8 with block scales, MXFP4, transposed experts, the
names of older releases. Needs transformers, torch and safetensors; no GPU.

usage: names_transformers.py [--library libstowage.so] [--stowage BIN] [--keep FOLDER] [MODEL...]
"""
import argparse
import copy
import ctypes
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.utils.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parent.parent
CLASSES = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}
MODELS = ["Llama-3.1-8B", "Llama-3.2-1B", "Qwen2.5-7B", "Qwen2.5-0.5B", "Qwen3-0.6B", "Mistral-7B-v0.3", "Qwen1.5-MoE-A2.7B",
          "Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V2-Lite", "DeepSeek-V3", "DeepSeek-V3.2", "Moonlight-16B-A3B", "GLM-4.5-Air",
          "GLM-4.7-Flash", "GLM-5", "MiniMax-M2", "gpt-oss-20b", "Gemma-2-2b", "Gemma-3-1b", "Gemma-3-4b", "Phi-3-mini", "Phi-4-mini",
          "Phi-3.5-MoE", "GPT-2", "OLMo-2-7B", "Llama-4-Scout", "Qwen2.5-VL-7B-Instruct", "Qwen3-VL-8B", "Qwen3-VL-30B-A3B",
          "InternVL3-8B", "InternVL3.5-8B", "InternVL3.5-30B-A3B", "Qwen3-Next-80B-A3B", "Qwen3.5-9B", "Qwen3.5-35B-A3B",
          "Seed-OSS-36B", "SmolLM3-3B"]
TEXT = {"vocab_size": 300, "hidden_size": 128, "n_embd": 128, "intermediate_size": 200, "moe_intermediate_size": 48,
        "intermediate_size_mlp": 176, "shared_expert_intermediate_size": 80, "num_attention_heads": 4, "n_head": 4,
        "head_dim": 32, "n_routed_experts": 6, "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "n_positions": 64,
        "n_ctx": 64, "n_layer": 2, "num_hidden_layers": 2, "max_window_layers": 2}
VISION = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_heads": 4, "depth": 2, "num_hidden_layers": 2,
          "out_hidden_size": 128, "projector_input_dim": 72, "projector_output_dim": 72, "vision_output_dim": 72,
          "num_position_embeddings": 16, "deepstack_visual_indexes": [0], "fullatt_block_indexes": [1]}
LISTS = ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "indexer_types", "attn_type_list")


def shrink(config):
    config = copy.deepcopy(config)
    for key in ("auto_map", "quantization_config", "stored", "pad_token_id", "bos_token_id", "eos_token_id"):
        config.pop(key, None)
    vision = config.get("vision_config")
    for part in (config, config.get("text_config")):
        if not part:
            continue
        layers = 4 if part.get("linear_num_key_heads") else 2
        for key, value in TEXT.items():
            if part.get(key) is not None:
                part[key] = layers if key in ("num_hidden_layers", "n_layer") else value
        if part.get("num_key_value_heads") is not None:
            part["num_key_value_heads"] = 4 if part.get("kv_lora_rank") or part["model_type"] == "phi3" else 2
        if part["model_type"] in ("mixtral", "phimoe", "minimax_m2", "gpt_oss", "llama4_text"):
            part["intermediate_size"] = 64 if part["model_type"] == "gpt_oss" else 56
        for key in LISTS:
            if isinstance(part.get(key), list):
                part[key] = [layer for layer in part[key] if layer < layers] if key == "moe_layers" else part[key][-layers:]
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
            part[key] = None
        rope = part.get("rope_scaling")
        if rope and "long_factor" in rope:
            part["rope_scaling"] = None
    if vision:
        for key, value in VISION.items():
            if vision.get(key) is not None:
                vision[key] = value
        if isinstance(vision.get("image_size"), list):
            vision["image_size"] = [4 * patch for patch in vision["patch_size"]]
        elif vision.get("image_size"):
            vision["image_size"] = 4 * vision["patch_size"]
    return config


def build(name):
    config = shrink(json.loads((ROOT / "models/zoo" / (name + ".json")).read_text()))
    cls = config["architectures"][0]
    cls = getattr(transformers, CLASSES.get(cls, cls))
    settings = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    torch.manual_seed(1)
    model = cls(settings).to(torch.bfloat16)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape))
    model.tie_weights()
    return model


# ---- libstowage ----

class Info(ctypes.Structure):
    _fields_ = [(k, ctypes.c_char_p) for k in ("name", "source", "model_type", "digest")] + [
        ("params", ctypes.c_uint64), ("active_params", ctypes.c_uint64), ("tensors", ctypes.c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [(k, ctypes.c_char_p) for k in ("name", "dtype", "block")] + [
        ("elements", ctypes.c_uint64), ("dimensions", ctypes.c_uint32), ("shape", ctypes.c_uint64 * 8)]


DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ("stw_new_error", "stw_get_error_text", "stw_get_weights_dtype"):
            getattr(self.c, name).restype = ctypes.c_void_p if name == "stw_new_error" else ctypes.c_char_p
        self.c.stw_get_error_text.argtypes = [ctypes.c_void_p]
        self.c.stw_get_weights_dtype.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.error = ctypes.c_void_p(self.c.stw_new_error())

    def check(self, status):
        if status:
            raise RuntimeError(self.c.stw_get_error_text(self.error).decode())

    def read(self, folder):
        """(name, shape, dtype, read of a box) of every parameter."""
        model, weights, info = ctypes.c_void_p(), ctypes.c_void_p(), Info()
        self.check(self.c.stw_open_model(os.fsencode(folder), ctypes.byref(model), self.error))
        self.check(self.c.stw_open_weights(model, os.fsencode(folder), ctypes.byref(weights), self.error))
        self.c.stw_get_model_info(model, ctypes.byref(info), ctypes.c_size_t(ctypes.sizeof(info)))
        for i in range(info.tensors):
            tensor = Tensor()
            self.c.stw_get_tensor(model, i, ctypes.byref(tensor), ctypes.c_size_t(ctypes.sizeof(tensor)))
            dtype = DTYPES[self.c.stw_get_weights_dtype(weights, i).decode()]

            def box(first, count, i=i, dtype=dtype):
                out = torch.empty(count, dtype=dtype)
                n = len(count)
                self.check(self.c.stw_read_weights(weights, i, (ctypes.c_uint64 * n)(*first), (ctypes.c_uint64 * n)(*count),
                                                   ctypes.c_void_p(out.data_ptr()),
                                                   ctypes.c_uint64(out.numel() * out.element_size()), self.error))
                return out
            yield tensor.name.decode(), list(tensor.shape[:tensor.dimensions]), box
        self.c.stw_free_weights(weights)
        self.c.stw_free_model(model)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def compare(library, folder, expected):
    """Tensors that are read, and the names of those that differ or are missing."""
    wrong, seen = [], set()
    for name, shape, box in library.read(folder):
        if name not in expected:
            wrong.append(name + " is no parameter")
            continue
        seen.add(name)
        want = expected[name]
        first = [random.randrange(n) for n in shape]
        count = [random.randint(1, n - f) for n, f in zip(shape, first)]
        part = want[tuple(slice(f, f + c) for f, c in zip(first, count))]
        if not same(box([0] * len(shape), shape), want) or not same(box(first, count), part):
            wrong.append(name)
    return len(seen), wrong + [name + " is missing" for name in expected if name not in seen]


# ---- folders that transformers does not write ----

def rewrite(folder, change):
    """Every file through `change`, a function of a dict of tensors."""
    index = folder / "model.safetensors.index.json"
    assert not index.exists()
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}
    save_file({k: v.contiguous() for k, v in change(tensors).items()}, folder / "model.safetensors")


def blocks(weight, size=128):
    """fp8 elements, scales of blocks, and what they expand to in fp32."""
    scales = torch.rand([-(-n // size) for n in weight.shape]) + 0.5
    wide = scales.repeat_interleave(size, 0)[:weight.shape[0]].repeat_interleave(size, 1)[:, :weight.shape[1]]
    small = (weight.float() / wide).to(torch.float8_e4m3fn)
    return small, scales, small.float() * wide


def to_fp8(folder, expected):
    """Linear weights of the layers; the experts one by one."""
    def change(tensors):
        out = dict(tensors)
        for name, tensor in tensors.items():
            if ".layers." not in name or tensor.dim() != 2 or not name.endswith("_proj.weight"):
                continue
            out[name], out[name + "_scale_inv"], wide = blocks(tensor)
            if ".experts." in name:
                base, expert, kind = name.split(".experts.")[0], *name.split(".experts.")[1].split(".")[:2]
                fused = base + ".experts." + ("down_proj" if kind == "down_proj" else "gate_up_proj")
                if expected[fused].dtype != torch.float32:
                    expected[fused] = torch.empty(expected[fused].shape)
                half = expected[fused].shape[1] // 2
                rows = {"gate_proj": slice(0, half), "up_proj": slice(half, 2 * half), "down_proj": slice(None)}[kind]
                expected[fused][int(expert), rows] = wide
            else:
                expected[name] = wide
        return out
    rewrite(folder, change)


def to_mxfp4(folder, expected):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    def change(tensors):
        out = {}
        for name, tensor in tensors.items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                out[name] = tensor
                continue
            experts, inputs, outputs = tensor.shape
            out[name + "_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            out[name + "_scales"] = torch.randint(100, 140, (experts, outputs, inputs // 32), dtype=torch.uint8)
            expected[name] = convert_moe_packed_tensors(out[name + "_blocks"], out[name + "_scales"], dtype=torch.float32).cpu()
        return out
    rewrite(folder, change)


def to_transposed(folder, expected):
    rewrite(folder, lambda tensors: {k: v.transpose(1, 2) if k.endswith(("experts.gate_up_proj", "experts.down_proj")) else v
                                     for k, v in tensors.items()})


def to_bare(folder, expected):
    rewrite(folder, lambda tensors: {k.removeprefix("transformer."): v for k, v in tensors.items()})


def to_own(folder, expected):
    """The model's own names, half of them: a mixed folder."""
    def change(tensors):
        out = dict(tensors)
        for i, (name, tensor) in enumerate(expected.items()):
            if i % 2 and "experts" not in name:
                out[name] = tensor
        return out
    rewrite(folder, change)


def to_chat(folder, expected):
    """InternVL in the names of OpenGVLab."""
    def change(tensors):
        out = {}
        for name, tensor in tensors.items():
            new = name.replace("vision_tower.encoder.layer.", "vision_model.encoder.layers.").replace("vision_tower.", "vision_model.")
            for a, b in (("cls_token", "class_embedding"), ("position_embeddings", "position_embedding"),
                         ("patch_embeddings.projection", "patch_embedding"), (".attention.projection_layer.", ".attn.proj."),
                         (".lambda_", ".ls"), (".layernorm_before.", ".norm1."), (".layernorm_after.", ".norm2."),
                         ("multi_modal_projector.layer_norm", "mlp1.0"), ("multi_modal_projector.linear_1", "mlp1.1"),
                         ("multi_modal_projector.linear_2", "mlp1.3"), (".attention.q_proj.", ".attn.qkv.")):
                new = new.replace(a, b)
            if ".attn.qkv." in new:
                tensor = torch.cat([tensors[name.replace("q_proj", k)] for k in ("q_proj", "k_proj", "v_proj")])
            if ".attention.k_proj." not in new and ".attention.v_proj." not in new:
                out[new] = tensor
        return out
    rewrite(folder, change)


BY_HAND = [("DeepSeek-V3", "fp8", to_fp8), ("Qwen3-30B-A3B", "fp8", to_fp8), ("Llama-3.1-8B", "fp8", to_fp8),
           ("gpt-oss-20b", "MXFP4", to_mxfp4), ("Qwen3-VL-30B-A3B", "transposed", to_transposed),
           ("GPT-2", "without prefix", to_bare), ("InternVL3-8B", "OpenGVLab's names", to_chat), ("Qwen3-30B-A3B", "mixed", to_own),
           ("Gemma-3-4b", "mixed", to_own)]


def expected_of(model):
    names = {n for n, _ in model.named_parameters(remove_duplicate=True)}
    return {n: t for n, t in model.state_dict().items() if n in names}


def runs(args, folder, expected):
    """The digests of a run with the folder, and of one with the same weights under the model's own names in one file."""
    own, plan, digests = folder / "own.safetensors", folder / "plan.json", []
    save_file({k: v.contiguous() for k, v in expected.items()}, own)
    run = str(pathlib.Path(args.stowage).parent / "stowage-run")
    commands = [[args.stowage, "plan", "--model", str(folder / "config.json"), "--set", "engine=stowage", "--set", "batch.seq_len=64", "-o", str(plan), "-q"]] + [
        [run, str(plan), "--backend", "host", "--steps", "2", "--weights", str(w), "-o", "-", "-q"] for w in (folder / "model.safetensors", own)]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 9):
            return f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
        if command[0] == run:
            digests.append(json.loads(done.stdout)["verify"].get("digest"))
    return "run equal" if digests[0] and digests[0] == digests[1] else f"run DIFFERS {digests}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/lib/libstowage.so"))
    parser.add_argument("--stowage", help="run the planner and the executor with each folder, too")
    parser.add_argument("--keep")
    parser.add_argument("models", nargs="*")
    args = parser.parse_args()
    random.seed(1)
    library, wrong, cases = Library(args.library), 0, 0
    print("model,files,model_type,parameters,published tensors,equal")
    for name, way, change in [(m, "save_pretrained", None) for m in MODELS] + BY_HAND:
        if args.models and name not in args.models:
            continue
        cases += 1
        with tempfile.TemporaryDirectory(dir=args.keep) as folder:
            folder = pathlib.Path(folder)
            try:
                model = build(name)
                model.save_pretrained(folder, max_shard_size="100GB")
                expected = expected_of(model)
                if change:
                    change(folder, expected)
                with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
                    n_files = len(file.keys())
                n, differ = compare(library, folder, expected)
                said = runs(args, folder, expected) if args.stowage else ""
                print(f"{name},{way},{model.config.model_type},{n},{n_files},{'yes' if not differ else 'NO'}{said and ',' + said}",
                      flush=True)
                for line in differ[:5]:
                    print("    " + line)
                wrong += bool(differ) or bool(said and said != "run equal")
            except Exception as error:
                print(f"{name},{way}: {type(error).__name__}: {str(error)[:400]}", flush=True)
                wrong += 1
    print(f"# transformers {transformers.__version__}, torch {torch.__version__}: {cases - wrong} of {cases} folders equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
