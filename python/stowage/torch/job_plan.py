# SPDX-License-Identifier: Apache-2.0
"""A whole job's plan, as one rank's optimizer takes it: is it of this model, and what does it decide."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from .. import _native
from .._plan import Plan
from .local_plan import Settings
from .tensors import DTYPES, Member

_SHOWN = 3
_ALIGNS = 16 * _native.ALIGNMENT  # regions and slots are aligned apart in a job of other parts than the plan's


class Planned(NamedTuple):
    """What a plan says of the step itself."""

    clip_norm: Optional[float] = None
    overlap: bool = False


def planned(job: Plan) -> Planned:
    """Error: the plan is of another optimizer."""
    optimizer = job.to_dict()["run"]["optimizer"]
    if job.engine != "stowage" and optimizer["implementation"] != "stowage":
        raise _native.Error(f"plan: its optimizer is that of engine {job.engine} (optimizer.implementation: "
                            f"{optimizer['implementation']}), expected Stowage's; plan with --set engine=fsdp2 --set "
                            "optimizer.implementation=stowage")
    clip = optimizer.get("clip_norm")
    return Planned(float(clip) if isinstance(clip, (int, float)) and clip > 0 else None, bool(optimizer.get("overlap")))


def settings(job: Plan, has_nvme: bool = False) -> Settings:
    """Share of resident state, bucket, depth, type of the moments, and host memory where the plan has state on NVMe."""
    text = job.to_dict()
    spills = any(row.get("exp_avg") == "nvme" for row in text["decisions"])
    if spills and not has_nvme:
        raise _native.Error("plan: it puts state on NVMe; say where, by nvme=FOLDER")
    counts = _counts(text)
    others = sorted(set(counts) - {"resident", "stream"})
    if others or not counts:
        raise _native.Error(f"plan: updates are {', '.join(others) or 'not planned'}, expected resident or stream; plan with "
                            "--set update.cpu=0 --set update.direct=0")
    ring = text.get("prefetch") or {}
    moments = {text["run"]["precision"][key] for key in ["exp_avg", "exp_avg_sq"]}
    if len(moments) > 1:
        raise _native.Error("plan: precision.exp_avg and precision.exp_avg_sq differ, expected the same type")
    return Settings(moments=moments.pop(), resident=counts.get("resident", 0) / sum(counts.values()),
                    bucket=ring.get("bucket_bytes") or None, depth=ring.get("depth") or None,
                    host_memory=_host_bytes(text) if spills else None)


def _host_bytes(text: Mapping[str, Any]) -> int:
    """Host memory of a rank for state and for slots of what passes from and to NVMe."""
    held = [rank["phases"]["optimizer_step"]["host"]["components"] for rank in text["ranks"]]
    return max(sum(part.get(name, 0) for name in ["master", "exp_avg", "exp_avg_sq", "stage"]) for part in held) + _ALIGNS


def check(job: Plan, members: Sequence[Member], sizes: Mapping[str, int], elements: Mapping[int, int]) -> None:
    """Refuse a plan of another model, or of other shards.

    sizes     elements of every named parameter, frozen ones too; elements: the same by id, so that tied ones count once
    """
    text = job.to_dict()
    adapters = text["run"]["trainable"].get("lora", "none") != "none"
    _check_model(job, members, sizes, elements, adapters)
    dtype = text["run"]["precision"]["params"]
    others = [m for m in members if DTYPES[m.dtype].lower().replace("f32", "fp32") != dtype]
    if not adapters and sum(m.elements for m in others) * 2 > sum(m.elements for m in members):  # some layers may be of another
        raise _native.Error(f"plan: it is of parameters in {dtype} (precision.params); here {others[0].name} is {others[0].dtype}")
    trains, held = sum(_counts(text).values()), sum(m.elements for m in members)
    if held > trains * 1.5:  # shards may be uneven
        raise _native.Error(f"plan: each of its {job.world} ranks trains {trains:,} parameters, this one {held:,}. Shard the model "
                            "as planned, and freeze what the plan freezes")


def _check_model(job: Plan, members: Sequence[Member], sizes: Mapping[str, int], elements: Mapping[int, int],
                 adapters: bool) -> None:
    count = sum({**elements, **{id(m.param): m.param.numel() for m in members}}.values())
    if count == job.params:
        return  # names may differ where the job fuses tensors (experts)
    found = {**sizes, **{m.name: m.param.numel() for m in members}}
    planned = {tensor.name: tensor.elements for tensor in job.tensors}
    lacking = [name for name in planned if name not in found]
    others = [f"{name}: {n:,} elements in the plan, {found[name]:,} here" for name, n in planned.items()
              if found.get(name, n) != n]
    more = [] if adapters else [m.name for m in members if m.name not in planned]
    if not lacking and not others and not more:
        return
    text = [f"{len(rows)} {what} ({', '.join(rows[:_SHOWN])}{', ...' if len(rows) > _SHOWN else ''})" for rows, what in
            [(lacking, "of the plan's tensors are not among the parameters"), (others, "differ in size"),
             (more, "of the parameters are not in the plan")] if rows]
    hint = "" if sizes else ". Give the model, or (name, tensor) pairs with the names of the plan's model"
    raise _native.Error(f"plan: it is of another model, of {job.params:,} parameters; here are {count:,}: {'; '.join(text)}{hint}")


def _counts(text: Mapping[str, Any]) -> Dict[str, int]:
    """Parameters with state on a rank, by update."""
    counts: Dict[str, int] = {}
    for row in text["decisions"]:
        if row.get("update"):
            counts[row["update"]] = counts.get(row["update"], 0) + row["count"]
    return counts
