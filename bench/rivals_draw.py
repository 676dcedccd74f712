# SPDX-License-Identifier: Apache-2.0
"""Planning instances drawn at random, and keys that force a part of their plan, for rivals.py and gaps.py. An instance is a list of
(key, value), of which model and cluster are options of the command and the others settings."""
import json
import os
import shlex
import subprocess
import tempfile

STOWAGE = os.environ.get("STOWAGE", "stowage")
ENGINES = ("stowage", "fsdp2", "megatron", "deepspeed")
CLUSTERS = {"h200-x1": 1, "h200-x2": 2, "h200-x4": 4, "h200-x8": 8, "h100-80g-x8": 8, "a100-40g-x8": 8, "l40s-x8": 8, "b200-x8": 8}
MODELS = {  # billions of parameters
    "Qwen3-0.6B": 0.6, "Qwen3-1.7B": 1.7, "Qwen3-4B": 4, "Mistral-7B-v0.3": 7.2, "Qwen2.5-7B": 7.6, "Llama-3.1-8B": 8, "Qwen3-8B": 8.2,
    "Qwen2.5-VL-7B-Instruct": 8.3, "Gemma-2-9b": 9.2, "Phi-4": 14.7, "Qwen3-14B": 14.8, "Gemma-3-27b": 27, "Qwen3-30B-A3B": 30.5,
    "Qwen3-32B": 32.8, "Mixtral-8x7B": 46.7, "Llama-3.1-70B": 70.6}
MOE = ("Qwen3-30B-A3B", "Mixtral-8x7B")
LENGTHS = (4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072)
GIB = 1 << 30
BETTER = {"fits": 0, "at_risk": 1, "unknown": 2}  # verdicts of plans that count, best first
ROLLOUT = "{name: rollout, kind: rollout, engine: vllm, parallel: {tp: %d}, gpu_memory_utilization: 0.6, max_model_len: 16k, sleep_level: 2}"
# Settings that the planner does not choose, each engine's own; of what changes no numbers of the training.
EXPERT = {
    "stowage": [("update.direct", (0.02, 0.05, 0.1, 0.3, 1)), ("fsdp.reshard_after_forward", ("false",))],
    "fsdp2": [("recompute.modules", ("[mlp]", "[ops]", "[self_attn]", "[layernorm]", "[mlp, layernorm]")),
              ("fsdp.reshard_after_forward", ("false",)), ("fsdp.reshard_after_backward", ("false",))],
    "megatron": [("recompute.modules", ("[core_attn]", "[mlp]", "[moe]", "[moe_act]", "[layernorm]", "[mlp, layernorm]", "[core_attn, layernorm]")),
                 ("megatron.optimizer_offload_fraction", (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)), ("megatron.overlap_grad_reduce", ("true",)),
                 ("megatron.overlap_param_gather", ("true",)), ("megatron.offload_modules", ("[core_attn]", "[qkv_linear]", "[mlp_norm]"))],
    "deepspeed": [("deepspeed.ratio", (0.1, 0.25, 0.5, 0.75, 0.9)), ("deepspeed.zero_stage", (1, 2)), ("deepspeed.offload_optimizer", ("cpu",)),
                  ("deepspeed.overlap_comm", ("true",)), ("deepspeed.sub_group_size", ("1e8", "3e8"))],
}


def command(settings, *more):
    out = [STOWAGE, "plan", *more]
    for key, value in settings:
        out += ["--" + key, str(value)] if key in ("model", "cluster") else ["--set", f"{key}={value}"]
    return out


def words(settings):
    return shlex.join(["stowage", *command(settings)[1:]])


def settings_in(text):
    """Settings of a command, or of a part of one that begins at a flag."""
    parts, out = shlex.split(text.removeprefix("stowage plan ")), []
    while parts:
        flag, value = parts.pop(0), parts.pop(0)
        out.append(tuple(value.split("=", 1)) if flag == "--set" else (flag[2:], value))
    return out


def plan(settings, *more):
    """What a plan says, with its exit code and CPU seconds. `plan`: the JSON where there is one."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command(settings, "--json", "-q", *more), stdout=out, stderr=errors)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text, said = out.read(), errors.read().decode(errors="replace").strip()
    answer = {"exit": child.returncode, "cpu_s": used.ru_utime + used.ru_stime, "seconds": None, "verdict": "refused", "share": None, "plan": None,
              "error": said}
    if child.returncode in (0, 4, 5, 9) and text:
        data = json.loads(text)
        answer.update(plan=data, seconds=data["time_s"].get("iteration"), verdict=data["verdict"],
                      share=data["peaks"]["gpu_bytes"]["peak"] / data["cluster"]["node"]["gpu"]["memory"])
    return answer


def counts(answer):
    """Is it a plan with seconds that may be executed?"""
    return answer["seconds"] is not None and answer["exit"] in (0, 9) and answer["verdict"] in BETTER


# ---- instances ----

def layout(rng, engine, gpus, model):
    """Keys of the layout of ranks, and how many ranks share one copy of the parameters' state."""
    out, left = [], gpus
    if engine == "megatron":
        for key, share, most in (("tp", 0.6, 8), ("pp", 0.35, 4), ("cp", 0.2, 2)):
            ways = [w for w in (2, 4, 8) if w <= min(most, left)]
            if ways and rng.random() < share:
                way = rng.choice(ways)
                out.append((f"parallel.{key}", way))
                left //= way
        if ("parallel.pp", 2) in out and rng.random() < 0.4:
            out.append(("parallel.vpp", 2))
        if any(key == "parallel.tp" for key, _ in out) and rng.random() < 0.7:
            out.append(("parallel.sequence_parallel", "true"))
    elif engine == "fsdp2" and left >= 4 and rng.random() < 0.2:
        out.append(("parallel.tp", 2))
        left //= 2
    elif engine != "deepspeed" and left >= 4 and rng.random() < 0.35:
        out.append(rng.choice([("parallel.cp", 2), ("parallel.dp_replicate", 2)]))
    if model in MOE and engine != "deepspeed" and left >= 4 and rng.random() < 0.5:
        out.append(("parallel.ep", rng.choice([4, left])))
    return out


def settings_of(rng, engine):
    """An instance without a limit of GPU memory."""
    cluster = rng.choice(list(CLUSTERS))
    nodes = rng.choice([1, 1, 1, 2, 4]) if CLUSTERS[cluster] == 8 else 1
    gpus = nodes * CLUSTERS[cluster]
    reach = 16 if engine == "stowage" else 5  # billions of parameters for each GPU
    model = rng.choice([m for m, size in MODELS.items() if 0.2 * gpus <= size <= reach * gpus or size == 0.6])
    out = [("model", model), ("cluster", cluster), ("engine", engine)]
    if nodes > 1:
        out.append(("nodes", nodes))
    out.append(("batch.seq_len", rng.choice(LENGTHS)))
    out += layout(rng, engine, gpus, model)
    pipeline = any(key == "parallel.pp" for key, _ in out)
    if pipeline or rng.random() < 0.3:
        out.append(("batch.grad_accumulation", rng.choice([8, 16] if pipeline else [2, 4])))
    if engine in ("stowage", "fsdp2") and rng.random() < 0.3:
        out += [("precision.params", "bf16"), ("precision.grads", "bf16")] + ([("precision.master", "fp32")] if engine == "stowage" else [])
    if engine == "deepspeed" and rng.random() < 0.5:
        out.append(("deepspeed.offload_optimizer", "cpu"))
    if engine == "megatron" and rng.random() < 0.35:
        out.append(("megatron.optimizer_cpu_offload", "true"))
    if engine != "deepspeed" and CLUSTERS[cluster] >= 4 and rng.random() < 0.15:
        roles = [ROLLOUT % rng.choice([1, 2])] + (["{name: reference, kind: reference}"] if rng.random() < 0.5 else [])
        out += [("roles", "[" + ", ".join(roles) + "]"), ("batch.mini_batches", rng.choice([1, 4]))]
    if engine == "stowage" and rng.random() < 0.12:
        out.append(("node.nvme.capacity", "4TB"))
    if rng.random() < 0.1:
        out.append(("placement.gpu_fill", rng.choice([0.9, 1])))
    return out


def limited_host(rng, settings, found):
    """The same with less host memory where that still fits, and its plan; one time in four."""
    needs = found["plan"]["peaks"]["host_bytes"]["peak"] / GIB
    tight = settings + [("node.host.limit", f"{needs * rng.uniform(0.6, 1.02):.1f}GiB")]
    if rng.random() < 0.25:
        answer = plan(tight, "--time-limit", "10")
        if counts(answer):
            return tight, answer
    return settings, found


def instance(rng, engine, tries=60):
    """Settings with limits of memory that a plan keeps, and that plan."""
    for _ in range(tries):
        bare = settings_of(rng, engine)
        found = plan(bare, "--time-limit", "5")
        if not counts(found) or found["seconds"] <= 0:
            continue
        full, needs = found["plan"]["cluster"]["node"]["gpu"]["memory"] / GIB, found["plan"]["peaks"]["gpu_bytes"]["peak"] / GIB
        limit = min(full, needs) * rng.uniform(0.4, 1.05)
        for _ in range(4):
            limited = bare + [("node.gpu.memory", f"{min(limit, full):.1f}GiB")]
            found = plan(limited)
            if counts(found):
                return limited_host(rng, limited, found) if engine == "stowage" else (limited, found)
            limit += 0.4 * (min(full, 1.05 * needs) - limit)
    raise LookupError(f"no instance of {engine} in {tries} tries")


# ---- what is forced ----

def shares_of(data):
    """Share of the parameters by update kind."""
    counted = {}
    for row in data["decisions"]:
        if row["update"] is not None:
            counted[row["update"]] = counted.get(row["update"], 0) + row["count"]
    return {kind: n / sum(counted.values()) for kind, n in counted.items()}


def blocks_of(data, policy):
    return sum(row["count"] for row in data["decisions"] if row["activations"] == policy)


def near_shares(rng, data):
    """One or two shares beside the planner's; the others are left to it."""
    shares = {kind: shares_of(data).get(kind, 0) for kind in ("resident", "stream", "cpu")}
    step = rng.choice([0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2])
    up, down = rng.sample(sorted(shares), 2)
    moved = {up: min(1, shares[up] + step), down: max(0, shares[down] - step)}
    if rng.random() < 0.4:
        del moved[rng.choice([up, down])]
    if sum(moved.values()) > 1:
        moved = {up: moved.get(up, 1)}
    return [(f"update.{kind}", f"{share:.4f}") for kind, share in moved.items()]


def near_ring(rng, data, bucket):
    ring = data["prefetch"]
    depth, size = ring["depth"] or 3, (ring["bucket_bytes"] or 32 << 20) >> 20
    out = [("prefetch.depth", max(1, depth + rng.choice([-2, -1, 1, 2, 4])))] if not bucket or rng.random() < 0.7 else []
    if bucket and (not out or rng.random() < 0.6):
        out.append(("prefetch.bucket", f"{min(256, max(4, int(size * rng.choice([0.25, 0.5, 1, 1.5, 2, 4]))))}MiB"))
    return out


def any_ring(rng, bucket):
    out = [("prefetch.depth", rng.choice([1, 2, 3, 4, 6, 8]))]
    return out + ([("prefetch.bucket", f"{rng.choice([4, 8, 16, 24, 32, 48, 64, 128, 256])}MiB")] if bucket else [])


def near_fill(rng, allowed):
    """Less memory moves a few blocks or units: a plan for less fits in more."""
    return [("placement.gpu_fill", f"{allowed - rng.choice([0.02, 0.04, 0.08]) * rng.random():.4f}")]


def near_recompute(rng, data, given):
    """Blocks that Megatron recomputes, per chunk of its pipeline."""
    chunks = int(given.get("parallel.pp", 1)) * int(given.get("parallel.vpp", 1))
    n = -(-blocks_of(data, "recompute") // chunks) + rng.choice([-8, -4, -3, -2, -1, -1, 0, 1, 1, 2, 4])
    most = data["model"]["layers"] // chunks
    return [("recompute.granularity", "full"), ("recompute.method", "block"), ("recompute.num_layers", min(most, max(1, n)))]


def any_recompute(rng, data, given):
    chunks = int(given.get("parallel.pp", 1)) * int(given.get("parallel.vpp", 1))
    most = max(1, data["model"]["layers"] // chunks)
    method = rng.choice(["block", "block", "uniform"])
    return [("recompute.granularity", "full"), ("recompute.method", method),
            ("recompute.num_layers", rng.randint(1, most) if method == "block" else rng.choice([1, 2, 4]))]


def placements(rng, engine):
    tiers = ["gpu", "host"] if engine == "stowage" else ["gpu"]
    keys = rng.sample(["params", "grads", "moments"], rng.choice([1, 1, 2]))
    return [(f"placement.{key}", rng.choice(["gpu", "host"] if key == "moments" and engine != "deepspeed" else tiers)) for key in keys]


def policies(rng, engine):
    whole = [("recompute.granularity", "none"), ("recompute.granularity", "full")]
    kinds = ("keep", "recompute") if engine in ("deepspeed", "megatron") else ("keep", "recompute", "offload")
    return [rng.choice(whole + [("placement.activations", kind) for kind in kinds])]


def expert(rng, engine):
    key, values = rng.choice(EXPERT[engine])
    out = [(key, rng.choice(values))]
    if key == "recompute.modules":
        out.insert(0, ("recompute.granularity", "selective"))
    elif key == "megatron.optimizer_offload_fraction":
        out.insert(0, ("megatron.optimizer_cpu_offload", "true"))
    elif key == "megatron.overlap_param_gather":
        out.insert(0, ("megatron.overlap_grad_reduce", "true"))
    elif key == "megatron.offload_modules":
        out.insert(0, ("megatron.transformer_impl", "transformer_engine"))
    return out


def near(rng, engine, data, given, allowed):
    """Keys of a plan beside the planner's own."""
    ways = [lambda: near_fill(rng, allowed)]
    if engine == "stowage":
        ways += [lambda: near_shares(rng, data)] * 4 + [lambda: near_ring(rng, data, True)] * 2
    if engine == "fsdp2" and data["prefetch"]["live"]:
        ways.append(lambda: near_ring(rng, data, False))
    if engine == "megatron":
        ways += [lambda: near_recompute(rng, data, given)] * 3
        if given.get("megatron.optimizer_cpu_offload"):
            ways += [lambda: [("megatron.optimizer_offload_fraction", 1 - rng.choice([0.01, 0.02, 0.05, 0.1, 0.2]))]] * 2
    if engine == "deepspeed" and given.get("deepspeed.offload_optimizer"):
        ways += [lambda: [("deepspeed.ratio", 1 - rng.choice([0.01, 0.02, 0.05, 0.1, 0.2]))]] * 2
    out = rng.choice(ways)()
    for key, value in rng.choice(ways)() if rng.random() < 0.35 else []:
        if key not in dict(out):
            out.append((key, value))
    return out


def far(rng, engine, data, given):
    """Keys of any plan."""
    out, used = [], set()
    if engine != "stowage" and rng.random() < 0.35:
        return expert(rng, engine)
    ways = [(0.35, lambda: placements(rng, engine)), (0.4, lambda: policies(rng, engine))]
    if engine == "stowage":
        kinds = ["update.cpu", "update.stream", "update.resident"]
        ways += [(0.5, lambda: [(rng.choice(kinds), round(rng.choice([0, 0, 1, rng.random(), rng.random()]), 4))]),
                 (0.35, lambda: any_ring(rng, True))]
    elif engine == "fsdp2":
        ways.append((0.2, lambda: any_ring(rng, False)))
    elif engine == "megatron":
        ways.insert(0, (0.4, lambda: any_recompute(rng, data, given)))
    ways.append((0.1 if engine == "stowage" else 0.45, lambda: expert(rng, engine)))
    for chance, way in ways:
        if rng.random() < chance:
            keys = way()
            forced = {"recompute.granularity", "placement.activations"}
            if used.isdisjoint(key for key, _ in keys) and not (used & forced and forced & {key for key, _ in keys}):
                out += keys
                used |= {key for key, _ in keys}
    return out or far(rng, engine, data, given)


def kind_of(engine, data, given, keys):
    """own: the planner decides all of these keys where they are not set. expert: it has no variable for one of them, or a rule against it."""
    names = {key for key, _ in EXPERT[engine]} - {"megatron.optimizer_offload_fraction"}
    if any(key in names for key, _ in keys) or ("recompute.method", "uniform") in keys or "megatron.optimizer_cpu_offload" in dict(keys):
        return "expert"
    if "megatron.optimizer_offload_fraction" in dict(keys):
        return "expert"
    streams = any(row["update"] == "stream" for row in data["decisions"])
    return "expert" if engine == "fsdp2" and ("placement.moments", "host") in keys and not streams else "own"
