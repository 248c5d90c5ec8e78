"""Reads safetensors files lazily, and writes them as a stream.

A damaged or manipulated file gives an error that says so.

The format: eight bytes of header length, a JSON header of dtype, shape and byte range for each
  name, then the bytes.
"""

import json
import logging
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from flaxformer_lite.files.read import Json, open_regular, parse_object, quote_name, quote_value

LOG = logging.getLogger("flaxformer_lite")
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,  # with scales beside it (tensor_forms.py)
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
HEADER_LIMIT = 100_000_000  # bytes; the limit of the format
MAX_TENSOR_SIZE = 2**60  # numbers and axes of a tensor, characters of its name
MOST_AXES = 32  # numpy before 2.0 has no more
LONGEST_NAME = 1000
SAMPLED_NUMBERS = 1000  # numbers of a tensor that are looked at for NaN


class WeightsError(ValueError):
    """Weights that cannot be used; the message names the file, the tensor and the way out."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that is read on demand, whole or in part."""

    array: np.ndarray  # or a memory map; bfloat16 is ml_dtypes'

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        _release(self.array)
        return np.ascontiguousarray(self.array[slices])


def _release(array: np.ndarray) -> None:
    """Drops the pages of an array's file from the memory of this process.

    What was read before is on its device by now; else the file would stay in memory beside its
    copy. A page that is needed again is mapped again.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        base.madvise(mmap.MADV_DONTNEED)


def open_file(path: Path) -> dict[str, Tensor]:
    """Opens the tensors of one file without reading them.

    Raises:
      WeightsError: the file is truncated or not safetensors, or ranges, shapes or dtypes in its
        header do not fit it.
    """
    header, body = _header(path)
    size = len(body)
    spans = []
    tensors = {}
    for name, entry in header.items():
        dtype, shape, (begin, end) = _entry(path, name, entry)
        if not 0 <= begin <= end <= size:
            raise WeightsError(
                f"{path}: tensor {name} lies at bytes {begin} to {end}, but the file holds {size}:"
                " it is truncated or its header is damaged; fetch it again."
            )
        needed = math.prod(shape) * dtype.itemsize
        if needed != end - begin:
            raise WeightsError(
                f"{path}: tensor {name} of shape {list(shape)} and dtype {dtype} needs {needed}"
                f" bytes, its header gives {end - begin}: damaged."
            )
        spans.append((begin, end, name))
        tensors[name] = Tensor(body[begin:end].view(dtype).reshape(shape))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            raise WeightsError(
                f"{path}: tensor {name} begins at byte {begin} instead of {at}: its header has"
                " overlaps or gaps, which no writer produces; fetch it again from a source you"
                " trust."
            )
        at = end
    if at != size:
        raise WeightsError(
            f"{path}: {size - at} bytes belong to no tensor: the file is damaged; fetch it again."
        )
    return tensors


def save_file(
    path: Path,
    entries: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    arrays: Iterable[np.ndarray],
) -> None:
    """Writes tensors one after the other, so that only one is in memory at a time.

    Args:
      path: path of the file.
      entries: name -> (shape, dtype), in the order of `arrays`.
      arrays: the tensors.
    """
    # transformers refuses a file whose metadata do not name a format it knows.
    header: dict[str, Json] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, dtype) in entries.items():
        end = at + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {
            "dtype": NAMES[np.dtype(dtype)],
            "shape": list(shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # So that the data begin at a multiple of eight bytes, as the format's own writer has it.
    text += b" " * (-len(text) % 8)
    damaged = []
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in zip(entries, arrays, strict=True):
            if holds_nan(array):
                damaged.append(name)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    warn_of_nan(damaged, len(entries))


def holds_nan(array: np.ndarray) -> bool:
    """Returns whether some of about SAMPLED_NUMBERS numbers spread over an array are NaN.

    A training that fails leaves whole tensors of NaN, and to look at all numbers takes as long as
    to write them.
    """
    step = max(1, array.size // SAMPLED_NUMBERS) | 1  # odd, or it would visit few columns
    return bool(np.isnan(array.flat[::step].astype(np.float64)).any())


def warn_of_nan(names: Sequence[str], count: int) -> None:
    """Says which of `count` tensors hold NaN."""
    if names:
        LOG.warning(
            "%d of %d tensors hold NaN, such as %s: what the model computes is NaN, too; take"
            " weights from before the training failed.",
            len(names),
            count,
            quote_name(names[0]),
        )


def _header(path: Path) -> tuple[Json, np.ndarray]:
    """Reads the header; returns it and a memory map of the data after it."""
    with open_regular(path, error=WeightsError) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if head == b"version ":
            raise WeightsError(
                f"{path}: only a Git LFS pointer to the weights; run git lfs pull in its directory."
            )
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > min(HEADER_LIMIT, size - 8):
            raise WeightsError(
                f"{path}: not a whole safetensors file ({size} bytes); fetch it again."
            )
        header = parse_object(file.read(length), f"{path}: the header", error=WeightsError)
        header.pop("__metadata__", None)
        # Mapped as bytes, as tensors may not be aligned to their dtype.
        return header, np.memmap(file, np.uint8, "r")[8 + length :].view(np.ndarray)


def check_name(path: Path, name: str) -> None:
    """Refuses the name of a tensor that could not be printed."""
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise WeightsError(
            f"{path}: tensor {quote_name(name)}: a name must be printable and at most"
            f" {LONGEST_NAME} characters; fetch it again from a source you trust."
        )


def _entry(path: Path, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], tuple[int, int]]:
    check_name(path, name)
    try:
        kind = entry["dtype"]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise WeightsError(
            f"{path}: the header's entry for {name} lacks dtype, shape or data_offsets."
        ) from None
    if not isinstance(kind, str) or kind not in DTYPES:
        raise WeightsError(
            f"{path}: tensor {name} has dtype {quote_name(str(kind))}; must be one of"
            f" {', '.join(DTYPES)}."
        )
    if not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (*shape, begin, end)
    ):
        raise WeightsError(
            f"{path}: the header's entry for {name} has sizes that are not natural numbers."
        )
    if len(shape) > MOST_AXES or math.prod(max(n, 1) for n in shape) > MAX_TENSOR_SIZE:
        raise WeightsError(
            f"{path}: tensor {name} of shape {quote_value(list(shape))} is larger than any:"
            " damaged."
        )
    return np.dtype(DTYPES[kind]), shape, (begin, end)
