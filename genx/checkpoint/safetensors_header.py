"""The header of a safetensors file, read and checked without torch and without reading any weights.

The format: 8 bytes of length (little-endian), that many bytes of JSON, then the tensors' bytes.
Source: https://github.com/huggingface/safetensors#format
"""

import json
import math
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from genx.errors import CheckpointError
from genx.messages import printable
from genx.sampling_args import is_whole_number

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"

# Bits an element takes, for every dtype of the format.
DTYPE_BITS: Mapping[str, int] = {
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

_AGAIN = "download the file again"
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a header describes it; its bytes are [start, stop) of the file."""

    dtype: str  # in the format's spelling, such as "BF16"
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """What one safetensors file holds."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check the header of `path`; at most 100 MB are read, and only if the file really has them.

    Raises:
        CheckpointError: the file cannot be read, is truncated, empty, or something else (a git-LFS pointer, a web
            page), or its header contradicts itself or the size of the file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # asked before opening, which waits for ever on a named pipe
            raise CheckpointError(f"{printable(path)} is not a regular file; expected a safetensors file")
        with path.open("rb") as file:
            text = _read_header_text(path, file, status.st_size)
    except OSError as error:
        raise CheckpointError(f"{printable(path)} cannot be read: {error.strerror or error}") from error
    entries = _parse(path, text)
    metadata = entries.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path, f"its {METADATA_KEY} is not an object of texts")
    data_start = LENGTH_BYTES + len(text)
    tensors = {name: _read_entry(path, name, entry, data_start) for name, entry in entries.items()}
    _check_layout(path, tensors, data_start, status.st_size)
    return SafetensorsHeader(path, tensors, metadata)


def _read_header_text(path: Path, file: BinaryIO, size: int) -> bytes:
    beginning = file.read(512)
    _refuse_stand_in(path, beginning, size)
    if size < LENGTH_BYTES:
        raise CheckpointError(
            f"{printable(path)} has {size} bytes, expected a safetensors file of more than {LENGTH_BYTES}; {_AGAIN}"
        )
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{printable(path)} ({size:,} bytes) announces a header of {length:,} bytes; allowed: at most "
            f"{MAX_HEADER_BYTES:,}; this is no safetensors file, or a damaged one: {_AGAIN}"
        )
    if LENGTH_BYTES + length > size:
        raise _truncated(path, LENGTH_BYTES + length, size)
    file.seek(LENGTH_BYTES)
    text = file.read(length)
    if len(text) < length:
        raise _truncated(path, LENGTH_BYTES + length, LENGTH_BYTES + len(text))
    return text


def _refuse_stand_in(path: Path, beginning: bytes, size: int) -> None:
    """Refuse what commonly lies where the weights should be."""
    if beginning.startswith(b"version https://git-lfs"):
        announced = re.search(rb"^size (\d{1,18})$", beginning, re.MULTILINE)
        expected = f"{int(announced[1]):,} bytes" if announced else "the weights"
        raise CheckpointError(
            f"{printable(path)} is a git-LFS pointer of {size} bytes, expected {expected}; "
            "run `git lfs pull` in its folder, or download the file itself"
        )
    if beginning.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise CheckpointError(
            f"{printable(path)} is a web page of {size:,} bytes, expected a safetensors file; {_AGAIN}"
        )


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for index, name in enumerate(names) if name in set(names[:index]))
            raise _broken(path, f"it stores the name {printable(twice)} twice")
        return entries

    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except RecursionError as error:
        raise _broken(path, "it is nested too deeply") from error
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise _broken(path, f"it is not JSON: {printable(error)}") from error
    if not isinstance(entries, dict):
        raise _broken(path, "it is not a JSON object")
    return entries


def _read_entry(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    """One tensor's entry: a known dtype, a shape, and exactly as many bytes as the two need."""
    label = printable(name)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _broken(path, f"{label} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(path, f"{label} has the dtype {printable(dtype)}; known: {', '.join(DTYPE_BITS)}")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _broken(path, f"{label} has the shape {printable(shape)}; allowed: up to {_MOST_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(path, f"{label} has the data_offsets {printable(offsets)}; allowed: a begin and an end")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    stored = offsets[1] - offsets[0]
    if bits != stored * 8:
        raise _broken(path, f"{label} has {stored:,} bytes; expected {bits / 8:,.0f} for {dtype} {printable(shape)}")
    return StoredTensor(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(is_whole_number(value) and 0 <= value < 1 << 63 for value in values)


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], data_start: int, size: int) -> None:
    """The tensors must fill the rest of the file, each byte belonging to exactly one of them."""
    expected = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != expected:
            fault = "overlaps the tensor before it" if tensor.start < expected else "leaves a gap before it"
            raise _broken(path, f"{printable(name)} {fault}: begins at byte {tensor.start:,}, expected {expected:,}")
        expected = tensor.stop
    if size < expected:
        raise _truncated(path, expected, size)
    if size > expected:
        raise CheckpointError(
            f"{printable(path)} has {size:,} bytes, expected {expected:,}: it goes on after its last tensor; {_AGAIN}"
        )


def _truncated(path: Path, expected: int, size: int) -> CheckpointError:
    return CheckpointError(
        f"{printable(path)} is truncated: it has {size:,} bytes, expected at least {expected:,}; {_AGAIN}"
    )


def _broken(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(f"the header of {printable(path)} is damaged: {fault}; {_AGAIN}")
