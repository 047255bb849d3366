"""A GGUF model as a whole: one file, or several that are called NAME-00001-of-00003.gguf."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genx.errors import CheckpointError
from genx.gguf.element_types import ELEMENT_TYPES, ElementType
from genx.gguf.header import GgufHeader, GgufTensor, read_gguf_header
from genx.messages import name_some, printable

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MAX_PARTS = 1000  # beyond, the name is just a name


@dataclass(frozen=True)
class PackedTensor:
    """One tensor: its bytes are [start, stop) of the file.

    Attributes:
        path: the file.
        shape: the slowest dimension first, as everywhere but in GGUF itself.
        element: how its values are packed.
    """

    path: Path
    shape: tuple[int, ...]
    element: ElementType
    start: int
    stop: int


@dataclass(frozen=True)
class GgufModel:
    """What the files of a model say: the metadata of the first, and the tensors of all."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedTensor]


def gguf_parts(path: Path) -> Sequence[Path]:
    """The files of the model that `path` is a file of, in order."""
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) > _MAX_PARTS:
        return [path]
    return [path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf") for part in range(1, int(match[3]) + 1)]


def read_gguf_model(path: Path, *, whole: Collection[str] = ()) -> GgufModel:
    """Read the headers of a model's files, and check that each tensor has the bytes that its shape needs.

    Args:
        path: of its file, or of any of its files.
        whole: see `read_gguf_header`.

    Raises:
        CheckpointError: a file is missing, is no GGUF file, or contradicts itself.
    """
    files = gguf_parts(path)
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(
            f"{printable(path.parent)} lacks {len(absent)} of the {len(files)} files of {printable(path.name)}: "
            f"{name_some(absent)}; download them"
        )
    headers = [read_gguf_header(file, whole=whole if file is files[0] else ()) for file in files]
    tensors: dict[str, PackedTensor] = {}
    for header in headers:
        for name, tensor in _packed(header).items():
            if name in tensors:
                raise _broken(header.path, f"{printable(name)} is in another file of this model too")
            tensors[name] = tensor
    return GgufModel(path, headers[0].metadata, tensors)


def _packed(header: GgufHeader) -> dict[str, PackedTensor]:
    packed = {name: _pack(header.path, name, tensor) for name, tensor in header.tensors.items()}
    size = header.path.stat().st_size
    end = 0
    for name, tensor in sorted(packed.items(), key=lambda item: item[1].start):
        if tensor.start < end:  # else a small file could name the same bytes often, and ask for any memory
            raise _broken(header.path, f"{printable(name)} overlaps the tensor before it")
        if tensor.stop > size:
            raise CheckpointError(
                f"{printable(header.path)} is truncated: {printable(name)} ends at byte {tensor.stop:,}, "
                f"the file at {size:,}; download the file again"
            )
        end = tensor.stop
    return packed


def _pack(path: Path, name: str, tensor: GgufTensor) -> PackedTensor:
    element = ELEMENT_TYPES.get(tensor.ggml_type)
    label = printable(name)
    if element is None:
        raise CheckpointError(
            f"{printable(path)}: {label} has elements of ggml's type {tensor.ggml_type}; "
            f"known: {', '.join(known.name for known in ELEMENT_TYPES.values())}"
        )
    count = math.prod(tensor.shape)
    if not tensor.shape or not count or tensor.shape[0] % element.values:
        raise _broken(
            path,
            f"{label} has the shape {list(tensor.shape)}; allowed: rows of whole blocks of {element.values} values",
        )
    size = count // element.values * element.size
    return PackedTensor(path, tensor.shape[::-1], element, tensor.offset, tensor.offset + size)


def _broken(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(f"the header of {printable(path)} is damaged: {fault}; download the file again")
