# SPDX-License-Identifier: Apache-2.0
"""state_dict and load_state_dict in the format of torch.optim.AdamW.

Each parameter has step (0-dim float32), exp_avg and exp_avg_sq in the parameter's shape, in host memory and fp32. Parameters
of bf16 also have "master", which torch.optim.AdamW keeps and does not train: `match_masters`. The state of a DTensor is a DTensor
with the same placements whose shard is in host memory.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from .. import _native
from .part import Part
from .tensors import Member, is_distributed, local


def capture(param_groups: Sequence[Dict[str, Any]], parts: Sequence[Part]) -> Dict[str, Any]:
    """Copies the state of the last step; blocks until it is done."""
    numbers = {id(p): i for i, p in enumerate(p for group in param_groups for p in group["params"])}
    groups: List[Dict[str, Any]] = []
    for group in param_groups:
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": [numbers[id(p)] for p in group["params"]]})
    state: Dict[int, Dict[str, torch.Tensor]] = {}
    for part in parts:
        for member in part.members:
            row = {"step": part.step_tensor.clone()}
            for component in part.components:
                row[component] = _like(member.param, part.read(component, member))
            state[numbers[id(member.param)]] = row
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def load_groups(param_groups: Sequence[Dict[str, Any]], state_dict: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """New groups with the saved settings and these parameters, as torch does. How a step is computed (foreach, fused ...) is
    this optimizer's own."""
    if not isinstance(state_dict.get("state"), Mapping) or not isinstance(state_dict.get("param_groups"), (list, tuple)):
        raise ValueError(f"the state to load has {', '.join(map(repr, state_dict)) or 'nothing'}, expected \"state\" (a dict) and "
                         '"param_groups" (a list), as state_dict() of torch.optim.AdamW has')
    saved = state_dict["param_groups"]
    for number, group in enumerate(saved):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise ValueError(f'the state to load: found no "params" in parameter group {number}, expected a list of numbers')
    if [len(g["params"]) for g in param_groups] != [len(g["params"]) for g in saved]:
        raise ValueError(f"the state has parameter groups of {[len(g['params']) for g in saved]} parameters, the optimizer of "
                         f"{[len(g['params']) for g in param_groups]}")
    own = {"params", "foreach", "fused", "capturable", "differentiable"}
    return [{**group, **{k: v for k, v in given.items() if k not in own}} for group, given in zip(param_groups, saved)]


def load(param_groups: Sequence[Dict[str, Any]], parts: Sequence[Part], saved: Mapping[str, Any]) -> None:
    """Write saved state into the native optimizers; all of it is checked before the first byte is written. Without any state
    moments are 0 again, as at the start."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    params = [p for group in param_groups for p in group["params"]]
    rows = {id(p): saved["state"][n] for n, p in zip(numbers, params) if n in saved["state"]}
    steps = [_step(part, rows) for part in parts]
    for part in parts:
        for member in part.members:
            _check(part, member, rows.get(id(member.param)))
    for part, step in zip(parts, steps):
        part.set_step(step)
        for member in part.members:
            _load_member(part, member, rows.get(id(member.param)))


def _check(part: Part, member: Member, row: Optional[Mapping[str, Any]]) -> None:
    if row is None:
        return
    if "max_exp_avg_sq" in row:
        raise _native.Error(f"{member.name}: the state is of amsgrad, which is not supported")
    for component in part.components:
        value = row.get(component)
        if value is None and component == "master":
            continue
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            found = "nothing" if value is None else value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise _native.Error(f"{member.name}: {component} in the state to load: found {found}, expected a tensor of numbers")
        expected = member.param.shape if is_distributed(value) else member.shape
        if tuple(value.shape) != tuple(expected):
            hint = ""
            if is_distributed(member.param) and not is_distributed(value):
                hint = " (this rank's shard), or a DTensor; torch.distributed.checkpoint makes them"
            raise _native.Error(f"{member.name}: {component} has shape {tuple(value.shape)}, expected {tuple(expected)}{hint}")


def _step(part: Part, rows: Mapping[int, Mapping[str, Any]]) -> int:
    """The step that all members of a part have."""
    steps = {m.name: _number(m.name, rows[id(m.param)]) for m in part.members if id(m.param) in rows}
    if not steps:
        return 0
    missing = [m.name for m in part.members if m.name not in steps]
    if missing:
        raise _native.Error(f"{missing[0]}: the state to load lacks it, but has others; expected all parameters or none")
    first, step = next(iter(steps.items()))
    for name, other in steps.items():
        if other != step:
            raise _native.Error(f"{name}: the state is of step {other}, that of {first} is of step {step}; expected the same step")
    return step


def _number(name: str, row: Any) -> int:
    try:
        step = float(row["step"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise _native.Error(f"{name}: the state to load has no step, expected a number") from None
    if not 0 <= step <= 2**53 or step != int(step):
        raise _native.Error(f"{name}: step in the state to load: found {step}, expected a whole number, 0 or more")
    return int(step)


def _load_member(part: Part, member: Member, row: Optional[Mapping[str, Any]]) -> None:
    for component in part.components:
        value = None if row is None else row.get(component)
        if value is not None:
            value = _shard(member, value)
        elif component == "master":
            value = local(member.param)
        else:
            value = torch.zeros((), dtype=torch.float32).expand(member.shape)
        part.write(component, member, value)


def match_masters(part: Part) -> List[str]:
    """Set the elements of masters that do not round to their parameters to the parameters'. Names of the parameters. Element by
    element, so that no result depends on the sharding."""
    found: List[str] = []
    for member in part.members if "master" in part.components else []:
        if not member.elements:
            continue
        master, param = part.read("master", member), local(member.param).cpu()
        rounded = master.to(param.dtype)
        differ = (rounded != param) & ~(rounded.isnan() & param.isnan())
        if differ.any():
            part.write("master", member, torch.where(differ, param.to(master.dtype), master))
            found.append(member.name)
    return found


def _shard(member: Member, value: Any) -> torch.Tensor:
    """This rank's shard of a loaded tensor."""
    if is_distributed(value):
        if is_distributed(member.param) and tuple(value.placements) != tuple(member.param.placements):
            value = value.redistribute(placements=member.param.placements)
        return local(value)
    return value.detach()


def _like(param: Any, shard: torch.Tensor) -> torch.Tensor:
    """A shard as the parameter is: plain, or a DTensor of the same placements. DTensor.from_local would move it to the GPU."""
    if not is_distributed(param):
        return shard
    import dataclasses

    meta = param._spec.tensor_meta._replace(dtype=shard.dtype)
    return type(param)(shard, dataclasses.replace(param._spec, tensor_meta=meta), requires_grad=False)
