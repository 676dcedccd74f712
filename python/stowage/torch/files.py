# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors: headers, the tensors of a folder, and boxes of tensors as runs of bytes."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from .. import _native
from .boxes import Box, Ints, product, row_major

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
         "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
for _name, _attribute in [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")]:
    if hasattr(torch, _attribute):
        TYPES[_name] = getattr(torch, _attribute)
_SIZES = {name: torch.empty((), dtype=dtype).element_size() for name, dtype in TYPES.items()}
INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library


class Stored(NamedTuple):
    """A tensor in a file; begin: its first byte."""

    path: str
    dtype: str
    shape: Ints
    begin: int


def element_size(dtype: str, where: str) -> int:
    if dtype not in TYPES:
        raise _native.Error(f"{where}: found dtype {dtype}, expected one of {', '.join(TYPES)}")
    return _SIZES[dtype]


def read_header(path: str) -> Dict[str, Stored]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            n = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else HEADER_LIMIT
            if n > min(HEADER_LIMIT, size):
                raise _native.Error(f"{path}: not a safetensors file (its header does not fit in {size} bytes)")
            rows = json.loads(file.read(n))
        out: Dict[str, Stored] = {}
        for name, row in rows.items():
            if name == "__metadata__":
                continue
            begin, end = row["data_offsets"]
            stored = Stored(path, row["dtype"], tuple(int(d) for d in row["shape"]), 8 + n + begin)
            if stored.dtype in TYPES and end - begin != product(stored.shape) * element_size(stored.dtype, path):
                raise _native.Error(f"{path}: {name}: found {end - begin} bytes, expected those of {stored.dtype} {stored.shape}")
            if begin < 0 or 8 + n + end > size:
                raise _native.Error(f"{path}: {name} ends at byte {8 + n + end}, the file has {size}")
            out[name] = stored
        return out
    except OSError as failure:
        raise _native.Error(f"{path}: {failure.strerror or failure}") from failure
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise _native.Error(f"{path}: not a safetensors file ({failure})") from None


def read_folder(folder: str) -> Dict[str, Stored]:
    """The tensors of a folder of safetensors (by its index, if it has one), or of a file."""
    folder = os.fspath(folder)
    if os.path.isfile(folder):
        return read_header(folder)
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
        index = os.path.join(folder, INDEX)
        if os.path.exists(index):
            with open(index, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
    except OSError as failure:
        raise _native.Error(f"{folder}: {failure.strerror or failure}") from failure
    except (ValueError, KeyError, AttributeError) as failure:
        raise _native.Error(f"{index}: not an index of safetensors ({failure})") from None
    if not names:
        raise _native.Error(f"{folder}: found no *.safetensors")
    out: Dict[str, Stored] = {}
    for name in names:
        for tensor, stored in read_header(os.path.join(folder, name)).items():
            if tensor in out:
                raise _native.Error(f"{folder}: {tensor} is in {os.path.basename(out[tensor].path)} and in {name}")
            out[tensor] = stored
    return out


def make_header(rows: Sequence[Tuple[str, str, Ints]], metadata: Dict[str, str]) -> Tuple[bytes, Dict[str, int], int]:
    """Header of a file with tensors (name, dtype, shape) one after another, the byte at which each begins, and the bytes of the
    file. Values of metadata are padded, so that the layout does not depend on them."""
    at = 0
    entries: Dict[str, Any] = {"__metadata__": metadata}
    for name, dtype, shape in rows:
        size = product(shape) * element_size(dtype, name)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    room = -(-(len(text) + 24 * len(metadata) - sum(len(v) for v in metadata.values())) // 64) * 64
    header = struct.pack("<Q", room) + text.ljust(room)
    return header, {name: 8 + room + entries[name]["data_offsets"][0] for name, _, _ in rows}, 8 + room + at


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor in host memory."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")


def runs(box: Box, shape: Ints) -> Iterator[Tuple[int, int, int]]:
    """(element of the tensor, element of the box, elements) of a box in C order."""
    first, count = box
    inner = len(shape)
    while inner and count[inner - 1] == shape[inner - 1]:
        inner -= 1
    inner = max(inner - 1, 0)  # dimensions from here on are one run
    length = product(count[inner:])
    stride = row_major(shape)
    start = sum(f * s for f, s in zip(first, stride))
    outer = product(count[:inner])
    for i in range(outer):
        at, rest = start, i
        for d in range(inner - 1, -1, -1):
            at += rest % count[d] * stride[d]
            rest //= count[d]
        yield at, i * length, length


def read_fully(descriptor: int, into: memoryview, offset: int, path: str) -> None:
    done = 0
    while done < len(into):
        n = os.preadv(descriptor, [into[done:]], offset + done)
        if n == 0:
            raise _native.Error(f"{path}: ended at byte {offset + done}; it changed while it was read")
        done += n


def write_fully(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def chunks(box: Box, limit: int) -> List[Box]:
    """Boxes of at most `limit` elements (at least one row), cut along the first dimensions."""
    first, count = box
    d = next((d for d, n in enumerate(count) if n > 1), None)
    if d is None or product(count) <= limit:
        return [box]
    step = max(1, limit * count[d] // product(count))
    out: List[Box] = []
    for at in range(0, count[d], step):
        part = ((*first[:d], first[d] + at, *first[d + 1:]), (*count[:d], min(step, count[d] - at), *count[d + 1:]))
        out += chunks(part, limit) if step == 1 else [part]
    return out
