# SPDX-License-Identifier: Apache-2.0
"""How published files name, fuse and cut the tensors of a model: by the library's tables, from the config.json beside them."""

from __future__ import annotations

import ctypes
import os
from ctypes import Structure, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from .. import _native
from .boxes import BYTES, Box, Ints, product, whole
from .target import Table

RANK = 8  # STOWAGE_MAX_RANK
_Dims = c_uint64 * RANK


class _Tensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("kind", c_char_p), ("dimensions", c_uint32), ("shape", _Dims)]


class _Part(Structure):
    _fields_ = [("tensor_name", c_char_p), ("tensor", c_uint32), ("published", c_uint32), ("scale", c_uint32), ("way", c_char_p),
                ("dimensions", c_uint32), ("published_dimensions", c_uint32), ("first", _Dims), ("count", _Dims),
                ("published_first", _Dims), ("published_count", _Dims)]


class Part(NamedTuple):
    """A box of a tensor of the job, and the box of the published one that has its elements. Dimensions of one element may be
    absent in either; way: "as is", "transposed" (the last two dimensions), or how it is packed. tensor: the model's number."""

    own: str
    tensor: int
    first: Ints
    count: Ints
    published: str
    published_first: Ints
    published_count: Ints
    way: str

    def published_box(self, box: Box) -> Box:
        """The published box of a box of the job's tensor inside this part."""
        own = [d for d, n in enumerate(self.count) if n > 1]
        there = [d for d, n in enumerate(self.published_count) if n > 1]
        last = len(self.count) - 1
        if self.way == "transposed" and own[-2:] == [last - 1, last]:
            own = [*own[:-2], last, last - 1]
        if [self.count[d] for d in own] != [self.published_count[d] for d in there]:
            raise _native.Error(f"{self.own}: found a box of {self.count} published as {self.published_count}")
        first, count = list(self.published_first), list(self.published_count)
        for d, e in zip(own, there):
            first[e] += box[0][d] - self.first[d]
            count[e] = box[1][d]
        return tuple(first), tuple(count)


class Published(NamedTuple):
    name: str
    dtype: str
    shape: Ints
    parts: List[Part]
    bytes: int


class Names:
    """Published names of a model; without a model those of the job itself."""

    def __init__(self, model: Optional["Model"]) -> None:
        self.model = model

    @staticmethod
    def of(folder: Optional[str], own: Iterable[str]) -> "Names":
        """By a folder's config.json, if the job's names are those of the library's model of it."""
        if folder is None:
            return Names(None)
        model = Model.open(folder)
        if model is not None and not set(own) <= set(part.own for part in model.parts):
            model = None
        return Names(model)

    def published(self, table: Table) -> List[Published]:
        """What files hold of a job's tensors, in the order of the job's tensors."""
        if self.model is None:
            out = []
            for name, shape in table.shapes.items():
                first, count = whole(shape)
                part = Part(name, _native.NONE, first, count, name, first, count, "as is")
                out.append(Published(name, table.dtypes[name], shape, [part], product(shape) * BYTES[table.dtypes[name]]))
            return out
        rows: Dict[str, Published] = {}
        for part in self.model.parts:
            if part.own not in table.shapes:
                continue
            if part.way not in ("as is", "transposed") or self.model.scaled[part.published]:
                raise _native.Error(f"{part.published}: the published files of this model are quantised ({part.own}); weights are "
                                    "written as they are trained: give `like` a folder whose config.json is not quantised")
            shape, dtype = self.model.shapes[part.published], table.dtypes[part.own]
            if part.published not in rows:
                rows[part.published] = Published(part.published, dtype, shape, [], product(shape) * BYTES[dtype])
            rows[part.published].parts.append(part)
        for row in rows.values():
            if sum(product(p.count) for p in row.parts) != product(row.shape):
                raise _native.Error(f"{row.name}: the job has a part of it alone ({', '.join(p.own for p in row.parts)})")
        return list(rows.values())


class Model:
    """Both lists of the library. shapes and scaled: by published name; numbers: of the model's tensors, by name."""

    def __init__(self, library: Any, path: bytes) -> None:
        self.library = library
        self.handle, self._list = c_void_p(), c_void_p()
        library.call("stw_open_model", path, ctypes.byref(self.handle))
        library.call("stw_list_published", self.handle, ctypes.byref(self._list))
        self.shapes: Dict[str, Ints] = {}
        self.kinds: Dict[str, str] = {}
        self.scaled: Dict[str, bool] = {}
        names: List[str] = []
        row = _Tensor()
        while library.fill("stw_get_published", row, self._list, len(names)):
            names.append(_native.text(row.name))
            self.shapes[names[-1]] = tuple(row.shape[:row.dimensions])
            self.kinds[names[-1]] = _native.text(row.kind)
            self.scaled[names[-1]] = False
        self.parts: List[Part] = []
        c = _Part()
        while library.fill("stw_get_published_part", c, self._list, len(self.parts)):
            n, m = c.dimensions, c.published_dimensions
            name = names[c.published]
            self.scaled[name] = self.scaled[name] or c.scale != _native.NONE
            self.parts.append(Part(_native.text(c.tensor_name), c.tensor, tuple(c.first[:n]), tuple(c.count[:n]), name,
                                   tuple(c.published_first[:m]), tuple(c.published_count[:m]), _native.text(c.way)))

    @staticmethod
    def open(folder: str) -> Optional["Model"]:
        """None: no library with these tables, no config.json, or a model that the library does not know."""
        path = os.path.join(folder, "config.json")
        if not os.path.exists(path):
            return None
        try:
            library = _native.load()
        except _native.Error:
            return None
        if not library.has("stw_list_published"):
            return None
        try:
            model = Model(library, os.fsencode(path))
        except _native.Error:
            return None
        return model if model.parts else None

    def __del__(self) -> None:
        if getattr(self, "_list", None):
            self.library.stw_free_published(self._list)
        if getattr(self, "handle", None):
            self.library.stw_free_model(self.handle)
