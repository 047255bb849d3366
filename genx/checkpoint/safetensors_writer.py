"""Writing a safetensors file tensor by tensor, so that no second copy of the weights is held.

The safetensors package has a writer for torch and for numpy; both need numpy, which genx does not depend on.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from genx.checkpoint.safetensors_header import DTYPE_BITS, LENGTH_BYTES, METADATA_KEY

_ALIGNMENT = 64  # bytes; the header is filled up with spaces, so that the mapped data start as torch's own do


@dataclass(frozen=True)
class TensorSource:
    """One tensor to write: `read` gives its bytes in pieces, row-major and little-endian, when its turn comes."""

    dtype: str  # in the format's spelling, such as "F32"
    shape: tuple[int, ...]
    read: Callable[[], Iterable[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        """The bytes that `read` gives in all."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def write_safetensors(path: Path, tensors: Mapping[str, TensorSource], metadata: Mapping[str, str]) -> None:
    """Write `tensors` to `path` and wait until they are on the disk. The file appears whole or not at all.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
        ValueError: a source gives more or fewer bytes than its shape and dtype need.
    """
    ordered = sorted(tensors.items(), key=lambda item: (_place(item[1]), item[0]))
    header: dict[str, object] = {METADATA_KEY: dict(metadata)}
    offset = 0
    for name, source in ordered:
        header[name] = {
            "dtype": source.dtype,
            "shape": list(source.shape),
            "data_offsets": [offset, offset + source.nbytes],
        }
        offset += source.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(LENGTH_BYTES + len(text)) % _ALIGNMENT)

    partial = _partial_of(path)
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            for name, source in ordered:
                written = sum(file.write(piece) for piece in source.read())
                if written != source.nbytes:
                    raise ValueError(f"{name} gave {written:,} bytes, expected {source.nbytes:,}")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _place(source: TensorSource) -> int:
    """Wide dtypes first: each tensor then starts at a multiple of its element's size.

    Before them rows of bytes in whole cache lines, or halves: they are read fastest where they begin with one.
    """
    bits = DTYPE_BITS[source.dtype]
    return -1000 if bits == 8 and source.nbytes % 32 == 0 else -bits


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON. The file appears whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    partial = _partial_of(path)
    try:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _partial_of(path: Path) -> Path:
    # Beside the target, since a rename is atomic within one file system only; not *.safetensors, so that what a
    # killed process leaves behind is never taken for weights.
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
