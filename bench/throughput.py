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
prints every row. STOWAGE names the program (default: build/bin/stowage), JOBS how many plans are made at a time (1)."""
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
            raise LeftOut("refused: " + said[:110])
        times = json.loads(done.stdout)["time_s"]
        if not times.get("iteration"):
            raise LeftOut("no seconds predicted")
        return times["iteration"]


# Memory only decides whether a run fits, which these runs did; published software may hold less than the engine that stands for it.
ROOMY = ["node.gpu.memory=400 GiB", "node.host.memory=16 TiB", "node.host.limit=16 TiB", "node.gpu.comm=1 GiB"]


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
    parser.add_argument("csv", nargs="+")
    args = parser.parse_args()
    for path in args.csv:
        with open(path, encoding="utf-8") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        print(f"{os.path.basename(path)}: {len(rows)} rows")
        if "hidden" in rows[0]:
            measure(rows, of_simple, describe_simple, lambda row: "H100, FSDP (llm-foundry)", args.each)
        else:
            sys.exit(f"{path}: unknown heads")


if __name__ == "__main__":
    main()
