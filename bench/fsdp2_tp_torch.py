# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that tensor parallelism cuts under FSDP2, on GPUs: what they hold.

    fsdp2_tp_torch.py predict > predicted.jsonl                     STOWAGE: the program, default build/bin/stowage; cluster h200-x2
    torchrun --nproc-per-node 2 fsdp2_tp_torch.py run -o rows.jsonl NUMBER     NUMBER: a case, from 0
    fsdp2_tp_torch.py compare predicted.jsonl rows.jsonl

The model and the plan that cuts it are those of fsdp2_tp.py, with the sizes below. tp is 2, the data-parallel mesh has one rank. Bytes that
torch's allocator hands out, the worst rank, in the second iteration."""
import json
import os
import subprocess
import sys
import tempfile

import fsdp2_tp

SIZES = {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "num_hidden_layers": 14, "vocab_size": 65536}
TOKENS = 4096
CASES = [dict(sp=sp, recompute=recompute, loss=True) for sp in (True, False) for recompute in ("none", "full")]
CASES.append(dict(sp=True, recompute="none", loss=False))


def run_case(case):
    import contextlib
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import loss_parallel
    torch.manual_seed(1)
    mesh = init_device_mesh("cuda", (1, 2), mesh_dim_names=("dp", "tp"))
    with torch.device("cuda"):
        model = fsdp2_tp.build_model(torch)
    fsdp2_tp.cut(model, mesh["tp"], case)
    if case["recompute"] != "none":
        fsdp2_tp.checkpoint(torch, model, case["recompute"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*model.layers, model]:
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    torch.cuda.empty_cache()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
    cos = torch.ones(TOKENS, SIZES["head_dim"], dtype=torch.bfloat16, device="cuda")
    sin, row = cos.clone(), dict(case)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        row["rest"] = torch.cuda.memory_allocated()
        out = model(tokens, cos, sin)
        with loss_parallel() if case["loss"] else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())
            del out  # as torchtitan does before backward
            loss.backward()
        torch.cuda.synchronize()
        row["forward_backward"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        row["optimizer_step"] = torch.cuda.max_memory_allocated()
    return row


def run(path, number):
    import torch
    import torch.distributed as dist
    fsdp2_tp.SIZES, fsdp2_tp.TOKENS = SIZES, TOKENS
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    row = run_case(CASES[number])
    if dist.get_rank() == 0:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row, torch=torch.__version__)) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def predict(case):
    config = dict(SIZES, model_type="qwen3", tie_word_embeddings=False, max_position_embeddings=TOKENS, torch_dtype="bfloat16")
    keys = {"engine": "fsdp2", "parallel.tp": 2, "parallel.sequence_parallel": str(case["sp"]).lower(), "batch.seq_len": TOKENS,
            "recompute.granularity": case["recompute"], "fsdp.loss_parallel": str(case["loss"]).lower(), "optimizer.clip_norm": 0,
            "optimizer.implementation": "fused"}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        command = [os.environ.get("STOWAGE", "build/bin/stowage"), "plan", "--json", "--model", path, "--cluster", "h200-x2"]
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    phases = plan["ranks"][0]["phases"]
    return dict(case, **{name: phases[name]["allocated"] for name in ("forward_backward", "optimizer_step")})


def compare(predicted, rows):
    rows = [json.loads(line) for line in open(rows, encoding="utf-8")]
    for line in open(predicted, encoding="utf-8"):
        p = json.loads(line)
        for row in rows:
            if all(row[k] == p[k] for k in ("sp", "recompute", "loss")):
                for name in ("forward_backward", "optimizer_step"):
                    print(f"sp {p['sp']!s:5} {p['recompute']:5} loss parallel {p['loss']!s:5} {name:17} "
                          f"{p[name]:12} {row[name]:12} {100 * (p[name] / row[name] - 1):+6.2f}%")


if __name__ == "__main__":
    if sys.argv[1] == "predict":
        for one in CASES:
            print(json.dumps(predict(one)))
    elif sys.argv[1] == "run":
        run(sys.argv[3], int(sys.argv[4]))
    else:
        compare(*sys.argv[2:4])
