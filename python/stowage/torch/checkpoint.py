# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a torch job whose optimizer is stowage.torch.AdamW: `Checkpoint`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import tempfile
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch

from .. import _native
from .._checkpoint import Held, Place, Saved, SavedTensor, SaveResult, Stored
from .._sync import Piece
from .adamw import AdamW
from .boxes import DTYPES, product
from .group import Group
from .part import Part
from .source import Described, Source, describe, join
from .tensors import Member

BUCKET = 32 << 20
STEP, GROUPS = "torch.optimizer_step", "torch.param_groups"  # terms of the manifest


class _Mine(NamedTuple):
    """What a rank tells the others at set-up."""

    described: Described
    trained: List[str]
    dtypes: Dict[str, str]
    number: int
    folder: str
    keep: int


class Checkpoint:
    """Saves a model and its optimizer into folder/step-00000100, and resumes from there: in another world size, sharding,
    placement or precision of moments, too.

    Parameters and floating-point buffers become sharded safetensors with the model's own names, the optimizer's state lies beside
    them. Tensors are plain ones, of which every rank that names them has all elements, or DTensors of any placement but Partial.

    Every rank of process_group makes one at the same point, when model and optimizer are complete; after add_param_group make
    another. keep: complete checkpoints beside which older ones are removed; 0: all stay. config: path of the model's config.json,
    or of its folder, which is saved too; None: that of a transformers model is model.config, others have none.
    bucket_bytes: of each of two buckets of host memory, which the first save takes. copies: bytes of further buckets on each rank: the
    next step waits for the disk only for what they do not hold (checkpoint.copies of a plan)."""

    def __init__(self, model: torch.nn.Module, optimizer: AdamW, folder: Union[str, "os.PathLike[str]"], *, keep: int = 0,
                 config: Union[str, "os.PathLike[str]", None] = None, process_group: Any = None, bucket_bytes: int = BUCKET,
                 copies: int = 0) -> None:
        if copies < 0:
            raise _native.Error(f"copies: found {copies}, expected bytes, 0 for none")
        self.folder = os.fspath(folder)
        self.keep = keep
        self._config = config
        self._optimizer = optimizer
        self._group = Group(process_group)
        ranks = self._group.exchange(lambda: self._describe(model))
        for what, values in [("folder", [r.folder for r in ranks]), ("keep", [r.keep for r in ranks])]:
            if len(set(values)) > 1:
                raise _native.Error(f"{what}: found {', '.join(map(str, values))} on ranks 0 to {len(values) - 1}, expected the same "
                                    "on all")
        self._number = ranks[0].number
        sums = self._group.exchange(lambda: self._plan(ranks, bucket_bytes, copies))
        if len(set(sums)) > 1:
            raise _native.Error("the ranks plan different checkpoints; they must run one version of libstowage")
        optimizer._saves.append(self._saved)
        self._close = weakref.finalize(self, _close, optimizer._saves, self._saved)

    # ---- set-up --------------------------------------------------------------------------------

    def _describe(self, model: torch.nn.Module) -> _Mine:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: found a {type(model).__name__}, expected a torch.nn.Module")
        if not isinstance(self._optimizer, AdamW):
            raise TypeError(f"optimizer: found a {type(self._optimizer).__name__}, expected a stowage.torch.AdamW")
        if not isinstance(self.keep, int) or self.keep < 0:
            raise ValueError(f"keep: found {self.keep!r}, expected a whole number, 0 or more")
        with self._optimizer._turn():
            self._optimizer._overlap.land()
            self._optimizer._open()
        self._config_json = _config_json(model) if self._config is None else _read_config(os.fspath(self._config))
        self._source = Source(model, "Checkpoint")
        names = {id(t): n for n, t in zip(self._source.names, self._source._known)}
        self._members: Dict[str, Tuple[Part, Member]] = {}
        for part in self._optimizer._parts:
            for member in part.members:
                if id(member.param) not in names:
                    raise _native.Error(f"{member.name}: the optimizer has it, but the model does not")
                self._members[names[id(member.param)]] = (part, member)
        for name, tensor in zip(self._source.names, self._source.tensors()):
            if not tensor.is_contiguous():
                raise _native.Error(f"{name}: found strides {tensor.stride()}, expected contiguous memory; use state_dict()")
        dtypes = {c: DTYPES[part.types[c]] for part in self._optimizer._parts for c in part.components}
        return _Mine(describe(self._source, None), list(self._members), dtypes, random.SystemRandom().getrandbits(63),
                     os.path.abspath(self.folder), self.keep)

    def _plan(self, ranks: List[_Mine], bucket_bytes: int, copies: int) -> int:
        table, rows, pieces = join([r.described for r in ranks], self._group.rank, self._source)
        trained = {name for r in ranks for name in r.trained}
        dtypes: Dict[str, str] = {}
        for number, rank in enumerate(ranks):
            for component, dtype in rank.dtypes.items():
                if dtypes.setdefault(component, dtype) != dtype:
                    raise _native.Error(f"{component}: found {dtype} on rank {number}, {dtypes[component]} on a lower rank")
            frozen = trained.intersection(row.name for row in rank.described.rows).difference(rank.trained)
            if frozen:
                raise _native.Error(f"{min(frozen)}: rank {number} does not train it, another rank does")
        self._names = [row.name for row in rows]
        for i, piece in enumerate(pieces):
            _check(self._names[piece.tensor], piece, pieces[i - 1] if i else None)
        self._pieces = [(i, p) for i, p in enumerate(pieces) if p.rank == self._group.rank]
        self._master = "master" in dtypes
        self._saved = Saved([SavedTensor(r.name, r.dtype, r.shape, r.name in trained) for r in rows],
                            [Held(p.rank, p.tensor, p.first, p.count) for p in pieces], self._group.rank, self._group.size, dtypes,
                            bucket_bytes, copies)
        return self._saved.sum()

    # ---- saves ---------------------------------------------------------------------------------

    def save(self, step: Optional[int] = None) -> None:
        """Save the state after `step` (None: the optimizer's own count). Returns when everything that training may change is read,
        but state on the host and on NVMe: that is written behind training, and the optimizer's next step waits where it catches
        up. All ranks call it; they do not wait for each other. A save under way is finished first; what failed in it is raised
        here, and the new save is not begun."""
        self._saved.check_open()
        self.wait()
        optimizer = self._optimizer
        with torch.no_grad(), optimizer._turn():
            optimizer._check_whole()
            optimizer._overlap.land()
            optimizer._match_masters()
            own = self._optimizer_step()
            groups = [{k: _plain(v) for k, v in g.items() if k not in ("params", "param_names")} for g in optimizer.param_groups]
            rates = [(float(g["lr"]), float(g["weight_decay"])) for g in optimizer.param_groups]
            terms = {STEP: str(own), GROUPS: json.dumps(groups)}
            with _file_of(self._config_json) as config:
                self._saved.begin(self.folder, own if step is None else step, self._number, self.keep, self._places(False), terms,
                                  rates, config)

    def is_saving(self) -> bool:
        """A save is under way on this rank. Does not wait."""
        return self._saved.is_saving()

    def wait(self) -> SaveResult:
        """Wait for the end of this rank's part of a save. Raises what failed in it (a full disk); earlier checkpoints are as they
        were, and the next save may succeed."""
        return self._saved.finish()

    # ---- loads ---------------------------------------------------------------------------------

    def load(self, step: Optional[int] = None) -> Optional[int]:
        """Go on from a checkpoint, None: from the newest complete one. Sets parameters, buffers, the optimizer's state and its
        groups' settings. All ranks call it. Returns the checkpoint's step; None if the folder has no complete checkpoint and no step is
        named. Newer folders that are not complete are passed over with a warning. What is missing, or what the model lacks, is an
        error that changes nothing. Every byte is read once, and verified before it is used, so that a damaged one is found when a
        part is loaded: an error names it, and the newest older checkpoint, if there is one. It costs a second load then:
        load(step). Until a load succeeds, or the optimizer's load_state_dict, step(), save() and state_dict() are refused."""
        self._saved.check_open()
        self.wait()
        found = self._group.exchange(lambda: self._find(step))
        own = step is None and self._group.rank == 0
        partial = self._group.exchange(lambda: self._partial() if own else [])  # no rank begins its next save meanwhile
        for number, text in partial[0] if own else []:
            if number > (found[0][0] if found[0] is not None else -1):
                warnings.warn(text, stacklevel=2)
        if set(found) == {None}:
            return None
        if len(set(found)) > 1:
            raise _native.Error(f"{self.folder}: the ranks found different checkpoints, expected a folder that all ranks see")
        stored = self._stored
        try:
            with torch.no_grad(), self._optimizer._turn():
                self._optimizer._overlap.land()
                for part in self._optimizer._parts:
                    if part.native is not None:
                        part.native.finish()
                steps = self._group.exchange(lambda: self._check(stored))
                self._take(stored, steps[0])
            return stored.step
        finally:
            stored.close()

    def _take(self, stored: Stored, step: int) -> None:
        """From here on an error leaves the state torn."""
        optimizer = self._optimizer
        optimizer._torn = f"{stored.path}: its load failed, and model and optimizer hold a part of it"
        try:
            self._group.exchange(lambda: stored.load(self._saved, self._places(True)))
        except _native.Error as error:
            older = self._older(stored)
            raise _native.Error(f"{error}. Model and optimizer hold a part of it; " + (
                "no older checkpoint is complete" if older is None else f"load({older}) takes the newest older checkpoint"),
                error.status, error.native) from None
        for part in optimizer._parts:
            part.set_step(step)
        for group, saved in zip(optimizer.param_groups, json.loads(stored.terms[GROUPS])):
            group.update({k: _like(group.get(k), v) for k, v in saved.items() if k not in _OWN})
        optimizer._loaded = False  # these masters are of these parameters
        optimizer._torn = None

    def _older(self, stored: Stored) -> Optional[int]:
        """The step of the newest complete checkpoint that is older."""
        steps = [int(name[5:]) for name in os.listdir(self.folder) if re.fullmatch(r"step-\d{8,}", name)]
        for step in sorted((n for n in steps if n < stored.step), reverse=True):
            try:
                Stored(os.path.join(self.folder, f"step-{step:08d}")).close()
                return step
            except _native.Error:
                pass
        return None

    def _find(self, step: Optional[int]) -> Optional[Tuple[int, int]]:
        path = self.folder
        if step is not None:
            path = os.path.join(path, f"step-{step:08d}")
        elif not os.path.isdir(path) or not any(_STEP.match(name) for name in os.listdir(path)):
            return None
        try:
            self._stored = Stored(path)
        except _native.Error as error:
            if error.status == _native.BAD_INPUT and step is None and not any(n.startswith("step-") for n in os.listdir(path)):
                return None  # saves that did not end
            raise
        return self._stored.step, self._stored.save

    def _partial(self) -> List[Tuple[int, str]]:
        """Steps whose saves not all ranks ended, and what to say of them."""
        found = []
        for name in sorted(os.listdir(self.folder) if os.path.isdir(self.folder) else []):
            match = _STEP.match(name)
            if match is not None:
                path = os.path.join(self.folder, name)
                found.append((int(match[1]), f"{path}: passed over: it is not complete: {_lacking(path)}"))
        return found

    def _check(self, stored: Stored) -> int:
        """Model, optimizer and checkpoint match; nothing is changed. Returns the optimizer's step in the checkpoint."""
        for key in [STEP, GROUPS]:
            if key not in stored.terms:
                raise _native.Error(f"{stored.path}: found no {key}, expected a checkpoint of stowage.torch.Checkpoint")
        saved, own = json.loads(stored.terms[GROUPS]), self._optimizer.param_groups
        if len(saved) != len(own):
            raise _native.Error(f"{stored.path}: found {len(saved)} parameter groups, the optimizer has {len(own)}")
        self._optimizer_step()
        stored.check(self._saved)
        with open(os.path.join(stored.path, "model.safetensors.index.json"), encoding="utf-8") as file:
            left = sorted(set(json.load(file)["weight_map"]).difference(self._names))
        if left:
            raise _native.Error(f"{stored.path}: the model has no {', '.join(left[:5])}{f' and {len(left) - 5} more' if left[5:] else ''}, "
                                "expected every tensor of the checkpoint. Load the folder with stowage.torch.load(strict=False), "
                                "which takes parameters alone")
        return int(stored.terms[STEP])

    # ---- where things lie ----------------------------------------------------------------------

    def _optimizer_step(self) -> int:
        """The step that all parameters have."""
        parts = self._optimizer._parts
        if self._optimizer._new_members() or sum(len(part.members) for part in parts) != len(self._members):
            raise _native.Error("parameters were added to the optimizer; make a new Checkpoint")
        steps = sorted({part.step for part in parts})
        if len(steps) > 1:
            raise _native.Error(f"found parameters of steps {steps[0]} and {steps[-1]}, expected one step; use state_dict()")
        return steps[0] if steps else 0

    def _places(self, load: bool) -> List[Place]:
        """Every component of every piece of this rank. A tensor of fp32 is its own master in a job where others have one."""
        shards = dict(zip(self._source.names, self._source.tensors()))
        out: List[Place] = []
        for i, piece in self._pieces:
            name = self._names[piece.tensor]
            move = _mover(shards[name], load)
            part, member = self._members.get(name, (None, None))
            alone = part is not None and self._master and "master" not in part.components
            out.append(Place(i, "params", copy=_drop if alone and load else move))
            if alone:
                out.append(Place(i, "master", copy=move))
            if part is not None and member is not None:
                out += [Place(i, c, part.native, part.index[id(member.param)]) for c in part.components]
        return out

    def close(self) -> None:
        """Finish a save under way, without an error, and free the buckets."""
        self._close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


_STEP = re.compile(r"\.?step-(\d+)(?:$|\..*\.partial$)")
_OWN = {"foreach", "fused", "capturable", "differentiable"}  # how a step is computed is the optimizer's own


def _lacking(path: str) -> str:
    """Whose part of a save is missing."""
    ended = sorted(int(name[5:-5]) for name in os.listdir(path) if re.fullmatch(r"rank-\d+\.done", name))
    if not ended:
        return "no rank ended its save before the run was stopped"
    with open(os.path.join(path, f"rank-{ended[0]:05d}.done"), encoding="utf-8") as file:
        world = re.search(r"^rank \d+ of (\d+)$", file.read(4096), re.MULTILINE)
    left = sorted(set(range(int(world[1]) if world else ended[-1] + 1)).difference(ended))
    shown = ", ".join(map(str, left[:5])) + (f" and {len(left) - 5} more" if left[5:] else "")
    return f"rank {shown} did not end its save: it was stopped before, or did not call save(), which all ranks call" if left else (
        "its last rank did not rename it")


def _read_config(path: str) -> bytes:
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, "rb") as file:
            text = file.read()
        json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"config: {path}: {getattr(error, 'strerror', None) or error}; expected a config.json, or its folder") from None
    return text


def _config_json(model: torch.nn.Module) -> Optional[bytes]:
    """The config.json that transformers' save_pretrained would write; None for other modules."""
    for module in [model, getattr(model, "module", None)]:  # DDP
        config = getattr(module, "config", None)
        if callable(getattr(config, "to_dict", None)) and callable(getattr(config, "save_pretrained", None)):
            values = config.to_dict()
            kind = type(getattr(module, "_orig_mod", module)).__name__
            values["architectures"] = values.get("architectures") or [kind[4:] if kind.startswith("FSDP") else kind]
            dtype = next((p.dtype for p in module.parameters()), None)
            for key in ["dtype", "torch_dtype"]:  # the newer and the older name
                if key in values and dtype is not None:
                    values[key] = str(dtype)[len("torch."):]
            return (json.dumps(values, indent=2, default=str) + "\n").encode()
    return None


@contextlib.contextmanager
def _file_of(text: Optional[bytes]) -> Iterator[Optional[str]]:
    if text is None:
        yield None
        return
    with tempfile.NamedTemporaryFile(prefix="stowage-", suffix=".json") as file:
        file.write(text)
        file.flush()
        yield file.name


def _check(name: str, piece: Piece, last: Optional[Piece]) -> None:
    if last is not None and (last.rank, last.tensor) == (piece.rank, piece.tensor):
        raise _native.Error(f"{name}: rank {piece.rank} holds several slices of it, expected one; use state_dict()")
    if product(piece.count) and not piece.offset == 0:
        raise _native.Error(f"{name}: rank {piece.rank} holds a slice that begins at element {piece.offset} of its memory, expected 0")


def _mover(shard: torch.Tensor, load: bool) -> Callable[[int, int, int], None]:
    """Copies elements of a shard to host memory, or from there."""
    flat = shard.view(-1)

    def move(first: int, elements: int, memory: int) -> None:
        raw = (ctypes.c_uint8 * (elements * flat.element_size())).from_address(memory)
        host = torch.frombuffer(raw, dtype=flat.dtype)
        part = flat[first:first + elements]
        if load:
            part.copy_(host)
        else:
            host.copy_(part)
    return move


def _drop(first: int, elements: int, memory: int) -> None:
    """A copy of what is verified alone."""


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _like(old: Any, value: Any) -> Any:
    """A value of JSON in the type that the group has."""
    if isinstance(old, torch.Tensor):
        return torch.full_like(old, value)
    return tuple(value) if isinstance(value, list) else value


def _close(saves: List[Saved], saved: Saved) -> None:
    if saved in saves:
        saves.remove(saved)
    saved.close()
