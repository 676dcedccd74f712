# SPDX-License-Identifier: Apache-2.0
"""What a caller may give: types and values, with what was found and what is expected."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import torch

from .._plan import Plan

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
         "TiB": 1 << 40}
SMALLEST_BUCKET = 64 << 10  # STW_BUCKET_MIN_BYTES of the planner
_LARGEST = 1 << 40


def refuse(name: str, value: Any, expected: str, kind: type = ValueError) -> Exception:
    shown = f"{value!r} ({type(value).__name__})" if kind is TypeError else repr(value)
    return kind(f"{name}: found {shown}, expected {expected}")


def number(name: str, value: Any, expected: str) -> float:
    """A number, or a tensor of one element (as torch's optimizers take for lr)."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise refuse(name, value, expected)
    elif isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise refuse(name, value, expected, TypeError)
    return float(value)


def between(name: str, value: Any, low: float, high: float, expected: str) -> float:
    found = number(name, value, expected)
    if not low <= found <= high:
        raise refuse(name, value, expected)
    return found


def size(name: str, value: Any, low: int, expected: str) -> int:
    """Bytes, or text as the programs take it: "128 MiB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)
        if match is None or match[2] not in UNITS:
            raise refuse(name, value, expected)
        found = float(match[1]) * UNITS[match[2]]
    elif isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        raise refuse(name, value, expected, ValueError if isinstance(value, float) else TypeError)
    else:
        found = value.__index__()
    if found != int(found) or not low <= found <= _LARGEST:
        raise refuse(name, value, expected)
    return int(found)


def count(name: str, value: Any, expected: str) -> int:
    if isinstance(value, (bool, str)) or not hasattr(value, "__index__"):
        raise refuse(name, value, expected, TypeError)
    if not 1 <= value.__index__() <= 1024:
        raise refuse(name, value, expected)
    return int(value.__index__())


def gpu_memory(value: Any) -> Optional[int]:
    """None: "auto"."""
    if value == "auto":
        return None
    return size("gpu_memory", value, 0, 'bytes, a size such as "4 GiB", or "auto"')


def nvme(value: Any) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise refuse("nvme", value, "a folder or None", TypeError)
    if not os.path.isdir(value):
        raise refuse("nvme", os.fspath(value), "a folder")
    return os.path.abspath(value)


def host_memory(value: Any) -> Optional[int]:
    """None: "auto"."""
    if value == "auto":
        return None
    return size("host_memory", value, 1, 'bytes, a size such as "100 GiB", or "auto"')


def bucket(value: Any) -> Optional[int]:
    return None if value is None else size("bucket", value, SMALLEST_BUCKET, 'bytes or a size such as "42 MiB", 64 KiB to 1 TiB')


def depth(value: Any) -> Optional[int]:
    return None if value is None else count("depth", value, "a count of slots, 1 to 1024")


def clip_norm(value: Any) -> float:
    """0: do not clip."""
    if value is None:
        return 0.0
    expected = "a finite number above 0, or None"
    found = number("clip_norm", value, expected)
    if not 0.0 < found < float("inf"):
        raise refuse("clip_norm", value, expected)
    return found


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False", TypeError)
    return value


def moments(value: Any) -> Optional[str]:
    if value is None:
        return None
    if value not in (torch.float32, torch.bfloat16):
        raise refuse("moments", value, "torch.float32, torch.bfloat16 or None")
    return "bf16" if value == torch.bfloat16 else "fp32"


def backend(value: Any) -> Optional[str]:
    if value not in (None, "cuda", "host"):
        raise refuse("backend", value, '"cuda", "host" or None')
    return value


def process_group(value: Any) -> Any:
    known = getattr(torch.distributed, "ProcessGroup", None)
    if value is not None and not (known is not None and isinstance(value, known)):
        raise refuse("process_group", value, "a torch.distributed.ProcessGroup or None", TypeError)
    return value


def plan(value: Any) -> Optional[Plan]:
    if isinstance(value, (str, os.PathLike)):
        return Plan.read(value)
    if value is not None and not isinstance(value, Plan):
        raise refuse("plan", value, "a stowage.Plan, or the path of a plan file", TypeError)
    return value


def betas(value: Any, where: str) -> Tuple[float, float]:
    name, expected = f"betas of {where}", "two numbers, 0 to 0.99999994"
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise refuse(name, value, expected, TypeError)
    found = [number(name, beta, expected) for beta in value]
    if len(found) != 2 or not all(0.0 <= beta <= 1.0 - 2.0**-24 for beta in found):
        raise refuse(name, value, expected)
    return found[0], found[1]


def check_groups(groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse settings that no step can have."""
    same: Dict[str, Any] = {}
    for index, group in enumerate(groups):
        where = f"parameter group {index}"
        for key in ["amsgrad", "maximize", "capturable", "differentiable"]:
            if group.get(key):
                raise ValueError(f"{key}=True is not supported by stowage.torch.AdamW ({where})")
        between(f"lr of {where}", group["lr"], 0.0, 1000.0, "a number from 0 to 1000")
        between(f"weight_decay of {where}", group["weight_decay"], 0.0, 1e30, "a finite number, 0 or more")
        found = {"betas": betas(group["betas"], where),
                 "eps": between(f"eps of {where}", group["eps"], 0.0, 1e30, "a finite number, 0 or more")}
        for key, value in found.items():
            if same.setdefault(key, value) != value:
                raise ValueError(f"{key}: {where} has {group[key]}, group 0 has {groups[0][key]}; they must be the same in all "
                                 "groups. Use one optimizer for each")
