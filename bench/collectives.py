#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes of the collectives of one iteration: the plan's table against recordings on two GPUs.

    collectives.py RECORDED.jsonl CLUSTER.yaml

RECORDED has a line for each case of collectives_torch.py or fsdp2_torch.py --record: name, case, and what rank 0
issued (rank0, with experts rank1 too: their mean, since a router does not balance). STOWAGE names the program
(default: build/bin/stowage). Messages of groups of one rank move nothing and do not count. Torch's profiler does not
record what CPUs exchange: the norm of offloaded gradients. The plan leaves out DeepSpeed's overflow flag and the
broadcasts with which ZeRO 3 compares the order of modules in the first iterations."""
import collections
import json
import os
import subprocess
import sys
import tempfile

import fsdp2_rows

STOWAGE = os.environ.get("STOWAGE", "build/bin/stowage")
BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8, "Byte": 1, "Bool": 1}
KINDS = {"_allgather_base": "all_gather", "allgather_into_tensor_coalesced": "all_gather", "allreduce": "all_reduce",
         "allreduce_coalesced": "all_reduce", "_reduce_scatter_base": "reduce_scatter",
         "reduce_scatter_tensor_coalesced": "reduce_scatter", "all_to_allv": "all_to_all"}
SCALARS = 2048  # bytes of the messages named above
SHAPE = {"layers": 8, "hidden": 1024, "heads": 16, "groups": 8, "ffn": 3072, "vocab": 151936, "seq": 1024}


def written(facts):
    folder = tempfile.mkdtemp()
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(facts, file)
    return f"{folder}/config.json"


def megatron(case):
    """The model that collectives_torch.py builds, and its keys."""
    shape = {**SHAPE, **case}
    facts = {"model_type": "mixtral" if case.get("experts") else "llama", "num_hidden_layers": shape["layers"],
             "hidden_size": shape["hidden"], "num_attention_heads": shape["heads"],
             "num_key_value_heads": shape["groups"], "intermediate_size": shape["ffn"], "vocab_size": shape["vocab"],
             "head_dim": shape["hidden"] // shape["heads"], "tie_word_embeddings": False, "hidden_act": "silu",
             "max_position_embeddings": shape["seq"], "torch_dtype": "bfloat16"}
    if case.get("experts"):
        facts.update(num_local_experts=case["experts"], num_experts_per_tok=2)
    keys = {"engine": "megatron", "parallel.tp": case.get("tp", 1), "parallel.ep": case.get("ep", 1),
            "parallel.sequence_parallel": str(case.get("sp", False)).lower(),
            "megatron.distributed_optimizer": str(case.get("dist_opt", True)).lower()}
    return written(facts), keys


def deepspeed(case):
    with open(f"models/zoo/{case['model']}.json", encoding="utf-8") as file:
        facts = json.load(file)
    facts.update(num_hidden_layers=case["layers"], tie_word_embeddings=False)  # to_empty unties them
    return written(facts), {"engine": "deepspeed", "deepspeed.zero_stage": case["zero"], "precision.grads": "bf16",
                            "precision.reduce": "bf16"}


def planned(case, cluster):
    if "model" in case and "zero" not in case:
        model, keys = fsdp2_rows.model_of(case), fsdp2_rows.settings(case)
    else:
        model, keys = deepspeed(case) if "zero" in case else megatron(case)
        keys.update({"precision.params": "bf16", "precision.master": "fp32", "batch.seq_len": SHAPE["seq"]})
    command = [STOWAGE, "plan", "-q", "--json", "--model", model, "--cluster", cluster]
    for key, value in keys.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"{case}: {done.stderr}")
    out = collections.Counter()
    plan = json.loads(done.stdout)
    for row in plan["collectives"]:
        if row["kind"] == plan["collectives"][0]["kind"] and row["phase"] in ("log_prob", "forward_backward", "optimizer_step"):
            kind = "all_reduce" if row["collective"] == "norm_sum" else row["collective"]
            out[kind] += row["bytes"] * (row["ranks"] > 1)
    return out


def recorded(rows):
    out = collections.Counter()
    for row in rows:
        kind = KINDS.get(row["collective"])
        if kind is None or row["group_size"] == 1:
            continue
        elements = row["in_elements"] if kind == "all_to_all" else max(row["in_elements"], row["out_elements"])
        out[kind] += elements * BYTES[row["dtype"]] * row["count"]
    return out


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    equal = rows = worst = 0
    for line in open(sys.argv[1], encoding="utf-8"):
        row = json.loads(line)
        plan, truth = planned(row["case"], sys.argv[2]), recorded(row["rank0"])
        if "rank1" in row:
            other = recorded(row["rank1"])
            truth = {kind: (truth[kind] + other[kind]) // 2 for kind in truth}
        for kind in sorted(set(plan) | set(truth)):
            rows += 1
            worst = max(worst, abs(plan[kind] - truth.get(kind, 0)))
            equal += plan[kind] == truth.get(kind, 0)
            print(f"{row['name']:24} {kind:16} {plan[kind]:14,} {truth.get(kind, 0):14,} "
                  f"{'equal' if plan[kind] == truth.get(kind, 0) else f'{plan[kind] - truth.get(kind, 0):+,}'}")
    print(f"{equal} of {rows} equal, the others within {worst:,} bytes")
    sys.exit(worst > SCALARS)


if __name__ == "__main__":
    main()
