#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against published training throughput: throughput.py [--each] CSV...

A CSV has one published run a row. Two layouts are read, by their heads:
  source,model,hidden,heads,layers,vocab,seq_len,gpus,micro_batch,grad_accumulation,activation_checkpointing,tokens_per_s_per_gpu
      dense GPT-like models on H100, FSDP full shard, bf16;
  source,model,gpu,n_gpus,engine,tp,pp,vpp,cp,ep,dp,zero/fsdp,micro_batch,global_batch,seq_len,precision,recompute,tokens_per_s_per_gpu,...
      runs of several frameworks and GPUs.
Each row is planned (`stowage plan --json`), and tokens per second and GPU are compared. Prints errors by GPU and engine (mean, median and
worst of absolute values, and the mean with its sign; above 0: predicted too fast), and how many rows were left out, by reason; --each
prints every row; --unstated plans rows that do not state recomputation without any, as groups of their own. STOWAGE names the program (default: build/bin/stowage), JOBS how many plans are made at a time (1)."""
import argparse
import collections
import concurrent.futures
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STOWAGE = os.environ.get("STOWAGE", os.path.join(TOP, "build", "bin", "stowage"))


class LeftOut(Exception):
    """Why a row cannot be compared."""


def gpt_config(hidden, heads, layers, vocab, positions):
    """A dense decoder with layer norms, GELU of four times the width and a tied head."""
    return {"model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": layers, "vocab_size": vocab, "n_positions": positions}


def llama_config(hidden, ffn, heads, kv, layers, vocab, tied=False):
    return {"model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads,
            "num_key_value_heads": kv, "num_hidden_layers": layers, "vocab_size": vocab, "tie_word_embeddings": tied,
            "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}


def seconds_of(cluster, model, settings):
    """Seconds of an iteration."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, dict):
            path = os.path.join(folder, "config.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(model, file)
            model = path
        command = [STOWAGE, "plan", "-q", "--json", "--model", model, "--cluster", cluster]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            said = re.sub(r"(stowage: )?(error: )?/tmp/\S+ ?", "", done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no output")
            raise LeftOut("pp, vpp: unequal stages, whose layers are not stated" if "does not divide the model's" in said else "refused: " + said[:110])
        times = json.loads(done.stdout)["time_s"]
        if not times.get("iteration"):
            raise LeftOut("no seconds predicted")
        return times["iteration"]


# Memory only decides whether a run fits, which these runs did; published software may hold less than the engine that stands for it.
ROOMY = ["node.gpu.memory=400 GiB", "node.host.memory=16 TiB", "node.host.limit=16 TiB"]


def fsdp_settings(micro_batch, accumulation, seq, recompute, tp=1, cp=1, attention="flash"):
    return ["engine=fsdp2", f"batch.micro_batch={micro_batch}", f"batch.grad_accumulation={accumulation}", f"batch.seq_len={seq}",
            f"recompute.granularity={recompute}", "precision.params=fp32", "precision.compute=bf16", "precision.reduce=bf16", f"attention={attention}",
            "optimizer.implementation=fused"] + ([f"parallel.tp={tp}"] if tp > 1 else []) + ([f"parallel.cp={cp}"] if cp > 1 else [])


# ---- dense models on H100 ----


def of_simple(row):
    number = {k: int(row[k]) for k in ("hidden", "heads", "layers", "vocab", "seq_len", "gpus", "micro_batch", "grad_accumulation")}
    model = gpt_config(number["hidden"], number["heads"], number["layers"], number["vocab"], number["seq_len"])
    recompute = "full" if row["activation_checkpointing"] == "1" else "none"
    settings = fsdp_settings(number["micro_batch"], number["grad_accumulation"], number["seq_len"], recompute, attention="flash_triton")
    seconds = seconds_of(f"{number['gpus'] // 8} x h100-80g-x8", model, settings + ROOMY)
    return number["micro_batch"] * number["grad_accumulation"] * number["seq_len"] / seconds


def describe_simple(row):
    return f"{row['model']} seq {row['seq_len']} x {row['micro_batch']}, {row['gpus']} GPUs{', recomputed' if row['activation_checkpointing'] == '1' else ''}"


# ---- several frameworks and GPUs ----

MPT = {"125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32), "7b": (4096, 32, 32),
       "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80)}
MODELS = {"llama3-8b": "Llama-3.1-8B", "llama-3.1-8b": "Llama-3.1-8B", "llama3-70b": "Llama-3.1-70B", "llama-3.1-70b": "Llama-3.1-70B",
          "llama3.1-405b": "Llama-3.1-405B", "llama-3.1-405b": "Llama-3.1-405B", "llama2-7b": "Llama-2-7b", "llama2-13b": "Llama-2-13b",
          "llama2-70b": "Llama-2-70b", "qwen3-8b": "Qwen3-8B", "qwen3-30b-a3b": "Qwen3-30B-A3B", "qwen3-235b-a22b": "Qwen3-235B-A22B",
          "deepseekv3": "DeepSeek-V3", "deepseek-v3": "DeepSeek-V3", "gpt-oss-120b": "gpt-oss-120b", "gpt-oss-20b": "gpt-oss-20b", "kimi-k2": "Kimi-K2",
          "moonlight-16b-a3b": "Moonlight-16B-A3B", "llama2-34b": llama_config(8192, 22016, 64, 8, 48, 32000)}
CUTS = {"llama3-70b": (8192, 28672, 64, 8, 128256), "llama3-405b": (16384, 53248, 128, 8, 128256)}


def model_of(name):
    key = re.sub(r"[ _]", "-", name.lower())
    mpt = re.fullmatch(r"mpt-(\d+[mb])", key)
    cut = re.fullmatch(r"(.+)-cut-to-(\d+)-layers", key)
    if mpt:
        return gpt_config(*MPT[mpt[1]], 50368, 131072)
    if key.startswith("gpt3-"):
        sizes = {"5b": (4096, 32, 24), "20b": (6144, 48, 44), "175b": (12288, 96, 96)}
        return gpt_config(*sizes[key[5:]], 51200, 2048)
    if cut and cut[1] in CUTS:
        hidden, ffn, heads, kv, vocab = CUTS[cut[1]]
        return llama_config(hidden, ffn, heads, kv, int(cut[2]), vocab)
    if key.startswith("llama-1b-(h2048-i4096"):
        return llama_config(2048, 4096, 32, 32, 24, 50257, True)
    if key not in MODELS:
        raise LeftOut("model: not in the zoo, or its shapes are not stated")
    return MODELS[key]


def cluster_of(row):
    gpu, n = row["gpu"], int(row["n_gpus"])
    rack = next((kind for kind in ("GB300", "GB200") if gpu.startswith(kind)), None)
    if rack:
        node = min(n, 64)
        if n % node:
            raise LeftOut("GPUs: not a whole number of racks")
        return f"{n // node} x {rack.lower()}-nvl72", [f"node.gpus={node}"]
    names = {"A100-40G": "a100-40g-x8", "A100-80G": "a100-80g-x8", "H100": "h100-80g-x8", "H100-80G": "h100-80g-x8", "H200": "h200-x8",
             "B200": "b200-x8", "B300": "b300-x8", "H100-80G (hopper-prod)": "h100-80g-x8", "H100-96G HBM2e 500W": "h100-80g-x8",
             "RTX PRO 6000 Blackwell 96G PCIe5": "rtx-pro-6000-x1"}
    if gpu not in names:
        raise LeftOut("GPU: no preset")
    if n > 8 and n % 8:
        raise LeftOut("GPUs: not a whole number of nodes")
    return f"{max(1, n // 8)} x {names[gpu]}", [f"node.gpus={n}"] if n < 8 else []


RECOMPUTE = {"none": "none", "none (strategy file)": "none", "no activation recompute": "none", "full": "full", "full recompute": "full",
             "and full activation recompute": "full"}


def number(row, key, default=None):
    if row[key] in ("", None):
        if default is None:
            raise LeftOut(f"{key}: not stated")
        return default
    return int(float(row[key]))


UNSTATED = False


def is_unstated(row):
    return "not stated" in row["recompute"] or row["recompute"] in ("", "recipe default") or row["recompute"].startswith("see command")


def of_card(row):
    if not row["tokens_per_s_per_gpu"]:
        raise LeftOut("tokens_per_s_per_gpu: not stated")
    if any(word in row["engine"] for word in ("LoRA", "peft", "sft", "SFT", "checkpoint_resume", "MaxText", "offload_adam off")):
        raise LeftOut(f"engine: {'MaxText' if 'MaxText' in row['engine'] else 'fine-tuning, resumed, or streamed in backward'}")
    if "support check" in row["notes"]:
        raise LeftOut("notes: a support check, not tuned")
    if "shared cluster" in row["notes"] and ("noisy" in row["notes"] or int(row["n_gpus"]) > 8):
        raise LeftOut("notes: seconds of a shared cluster, of which only quiet 8-GPU rows count")
    if is_unstated(row) and not UNSTATED:
        raise LeftOut("recompute: not stated")
    titan = row["engine"].startswith("torchtitan")
    recompute = "none" if is_unstated(row) else RECOMPUTE.get(row["recompute"])
    if recompute is None and not (titan and "selective" in row["recompute"]):
        raise LeftOut("recompute: of some modules or blocks")
    if "nvfp4" in row["precision"]:
        raise LeftOut("precision: nvfp4")
    tp, pp, cp, ep, vpp = (number(row, key, 1) for key in ("tp", "pp", "cp", "ep", "vpp"))
    micro, total, seq, gpus = (number(row, key) for key in ("micro_batch", "global_batch", "seq_len", "n_gpus"))
    dp = gpus // (tp * pp * cp)
    if dp < 1 or total % (micro * dp):
        raise LeftOut("batch: not a multiple of micro batch and data-parallel ranks")
    accumulation, fp8 = total // (micro * dp), "fp8" in row["precision"]
    model, (cluster, settings) = model_of(row["model"]), cluster_of(row)
    if re.match("Megatron|NeMo|nanotron", row["engine"]):
        settings += ["engine=megatron", "precision.params=bf16", "precision.master=fp32", f"parallel.tp={tp}", f"parallel.pp={pp}",
                     f"batch.micro_batch={micro}", f"batch.grad_accumulation={accumulation}", f"batch.seq_len={seq}",
                     f"recompute.granularity={recompute}", "megatron.transformer_impl=transformer_engine"]
        settings += [f"parallel.{key}={value}" for key, value in (("cp", cp), ("ep", ep), ("vpp", vpp)) if value > 1]
        settings += ["parallel.sequence_parallel=true"] if tp > 1 else []
        settings += ["megatron.overlap_grad_reduce=true", "megatron.overlap_param_gather=true"] if dp > 1 else []
        settings += ["megatron.grouped_gemm=true"] if ep > 1 else []
        settings += ["megatron.fp8=hybrid"] + (["megatron.fp8_recipe=mxfp8"] if "mx" in row["precision"] else []) if fp8 else []
        if "Megatron-FSDP" in row["zero/fsdp"]:
            raise LeftOut("zero/fsdp: Megatron-FSDP, whose keys are not stated")
    else:
        if fp8:
            raise LeftOut("precision: fp8 outside Megatron")
        if pp > 1:
            raise LeftOut("pp: FSDP with pipeline stages")
        if ep > 1:
            raise LeftOut("ep: FSDP with experts cut")
        composer = row["engine"].startswith("Composer")
        settings += fsdp_settings(micro, accumulation, seq, recompute or "selective", tp, cp,
                                  "flash_triton" if composer else "sdpa")
        settings += ["recompute.modules=[ops]", "loss.upcast=fp32"][:1] if recompute is None else []
        settings += ["parallel.sequence_parallel=true"] if tp > 1 else []
        if "offload_adam" in row["engine"]:
            settings = [s for s in settings if not s.startswith(("precision.params", "precision.reduce"))]
            settings += ["precision.params=bf16", "precision.exp_avg=bf16", "precision.exp_avg_sq=bf16", "precision.grads=bf16", "loss.fused=true"]
    return total * seq / gpus / seconds_of(cluster, model, settings + ROOMY)


def describe_card(row):
    return (f"{row['gpu']:10.10} {row['engine']:28.28} {row['model']:20.20} {row['n_gpus']} GPUs tp{row['tp']} pp{row['pp']} cp{row['cp']} ep{row['ep']} "
            f"{row['micro_batch']}/{row['global_batch']} x {row['seq_len']} {row['precision']:.8}")


def group_card(row):
    engine = re.split(r" [\d(]|[ ](?:pretrain|checkpoint|peft|sft)", row["engine"])[0]
    return f"{row['gpu']}, {engine}{' (recompute not stated)' if is_unstated(row) else ''}"


# ---- the table ----


def measure(rows, predict, describe, group, each):
    found, out, lines = collections.defaultdict(list), collections.Counter(), []

    def one(row):
        try:
            return predict(row), ""
        except LeftOut as e:
            return None, str(e)

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        for row, (predicted, why) in zip(rows, pool.map(one, rows)):
            if predicted is None:
                out[why] += 1
                lines.append(f"{describe(row):100} {'':>9} {float(row['tokens_per_s_per_gpu'] or 0):9.0f}          {why}")
                continue
            measured = float(row["tokens_per_s_per_gpu"])
            error = predicted / measured - 1
            found[group(row)].append(error)
            lines.append(f"{describe(row):100} {predicted:9.0f} {measured:9.0f} {100 * error:+7.1f}%")
    if each:
        print(f"{'run':100} {'predicted':>9} {'published':>9}    error")
        print("\n".join(lines))
    show = lambda name, errors: print(f"{name:60} {len(errors):4} {100 * statistics.mean(map(abs, errors)):7.1f}% "
                                      f"{100 * statistics.median(map(abs, errors)):7.1f}% {100 * max(errors, key=abs):+7.1f}% {100 * statistics.mean(errors):+7.1f}%")
    print(f"{'GPU, engine':60} {'rows':>4} {'mean':>8} {'median':>8} {'worst':>8} {'signed':>8}")
    for name in sorted(found):
        show(name, found[name])
    if found:
        show("all", [e for errors in found.values() for e in errors])
    for why, n in out.most_common():
        print(f"left out: {n:4} {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", action="store_true", help="print every row")
    parser.add_argument("--unstated", action="store_true", help="plan rows that do not state recomputation, too: without any")
    parser.add_argument("csv", nargs="+")
    args = parser.parse_args()
    global UNSTATED
    UNSTATED = args.unstated
    for path in args.csv:
        with open(path, encoding="utf-8") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        print(f"{os.path.basename(path)}: {len(rows)} rows")
        if "hidden" in rows[0]:
            measure(rows, of_simple, describe_simple, lambda row: "H100, FSDP (llm-foundry)", args.each)
        else:
            measure(rows, of_card, describe_card, group_card, args.each)


if __name__ == "__main__":
    main()
