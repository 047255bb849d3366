"""The header of a GGUF file: its metadata and where its tensors lie, read without trusting a single count in it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from genx.errors import CheckpointError
from genx.messages import printable

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 256 << 20  # vocabularies of a million words take some tens of megabytes
_MAX_TEXT_BYTES = 16 << 20  # chat templates are the longest texts
_MAX_DIMENSIONS = 8
_MAX_PAIRS = 2048  # published files have some dozens
_MAX_TENSORS = 1 << 16  # the largest published models have some thousands
_LONGEST = 4096  # values of an array that is not asked for
_MAX_VOCABULARY = 1 << 21  # merges, of which there may be twice as many as tokens
_DEFAULT_ALIGNMENT = 32

# Numbers of the format's value types: struct's letter, or what is handled by hand.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True)
class LongArray:
    """Stands for an array that was passed over because it is long, such as a vocabulary."""

    length: int


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as the header describes it.

    Attributes:
        shape: as stored, the fastest dimension first.
        ggml_type: ggml's number of its element type.
        offset: of its first byte, from the start of the file.
    """

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself. An array that was passed over is a `LongArray`."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path, *, whole: Collection[str] = ()) -> GgufHeader:
    """Read the header of `path`: every length is checked against the bytes that the file really has.

    Args:
        whole: keys of arrays to read whatever their length; others are passed over from 4,097 values on.

    Raises:
        CheckpointError: the file cannot be read, is no GGUF file of version 2 or 3, is cut off, contradicts itself, or
            has more of anything than a model has.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file, whole).header()
    except OSError as error:
        raise CheckpointError(f"{printable(path)} cannot be read: {error.strerror or error}") from error


def is_gguf(path: Path) -> bool:
    """Whether the file begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, whole: Collection[str]) -> None:
        self._path = path
        self._file = file
        self._whole = whole
        self._left = min(path.stat().st_size, _MAX_HEADER_BYTES)

    def header(self) -> GgufHeader:
        if self._take(len(MAGIC)) != MAGIC:
            raise CheckpointError(f"{printable(self._path)} does not begin with GGUF; allowed: a GGUF file")
        version = self._number("I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{printable(self._path)} is a GGUF file of version {version} or of a big-endian machine; "
                "allowed: version 2 or 3, little-endian; convert it again"
            )
        tensor_count, pair_count = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(self._check_count(pair_count, "metadata pairs", 13, _MAX_PAIRS)):
            key = self._text()
            if key in metadata:
                raise self._broken(f"it has the key {printable(key)!r} twice")
            metadata[key] = self._value(self._number("I"), longest=_MAX_VOCABULARY if key in self._whole else _LONGEST)
        entries = [self._tensor() for _ in range(self._check_count(tensor_count, "tensors", 24, _MAX_TENSORS))]
        return GgufHeader(self._path, version, metadata, self._place(entries, metadata))

    def _place(self, entries: list[tuple[str, GgufTensor]], metadata: Mapping[str, Any]) -> Mapping[str, GgufTensor]:
        """The tensors with offsets from the start of the file: they follow the header, aligned."""
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
            raise self._broken(f"general.alignment is {printable(alignment)}; allowed: multiples of 8 to {1 << 20:,}")
        start = -(-self._file.tell() // alignment) * alignment
        size = self._path.stat().st_size
        placed: dict[str, GgufTensor] = {}
        for name, tensor in entries:
            if name in placed:
                raise self._broken(f"it stores the tensor {printable(name)!r} twice")
            if tensor.offset % alignment:
                raise self._broken(f"the tensor {printable(name)!r} is not aligned to {alignment} bytes")
            if start + tensor.offset > size:
                raise self._broken(
                    f"the tensor {printable(name)!r} begins at byte {start + tensor.offset:,} of {size:,}"
                )
            placed[name] = GgufTensor(tensor.shape, tensor.ggml_type, start + tensor.offset)
        return placed

    def _tensor(self) -> tuple[str, GgufTensor]:
        name = self._text()
        dimensions = self._number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise self._broken(
                f"the tensor {printable(name)!r} has {dimensions:,} dimensions; allowed: {_MAX_DIMENSIONS}"
            )
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, GgufTensor(shape, self._number("I"), self._number("Q"))

    def _value(self, kind: int, longest: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number("I"), self._number("Q"), longest)
        raise self._broken(f"it has a value of the unknown type {kind}")

    def _array(self, kind: int, length: int, longest: int) -> list[Any] | LongArray:
        if kind == _TEXT:
            self._check_count(length, "texts", 8)
            if length <= longest:
                return self._texts(length)
            self._skip_texts(length)
            return LongArray(length)
        if kind not in _SCALARS:
            raise self._broken(f"it has an array of the type {kind}; allowed: arrays of numbers or texts")
        letter = _SCALARS[kind]
        width = struct.calcsize("<" + letter)
        self._check_count(length, "values", width)
        if length > longest:
            self._skip(length * width)
            return LongArray(length)
        return list(struct.unpack(f"<{length}{letter}", self._take(length * width)))

    def _text(self) -> str:
        length = self._number("Q")
        if length > _MAX_TEXT_BYTES:
            raise self._broken(f"it has a text of {length:,} bytes; allowed: {_MAX_TEXT_BYTES:,}")
        return self._take(length).decode("utf-8", errors="replace")

    def _number(self, letter: str) -> Any:
        return struct.unpack("<" + letter, self._take(struct.calcsize("<" + letter)))[0]

    def _check_count(self, count: int, what: str, smallest_entry: int, most: int | None = None) -> int:
        if count * smallest_entry > self._left:
            raise self._broken(f"it announces {count:,} {what}, more than its {self._left:,} further bytes can hold")
        if most is not None and count > most:
            raise self._broken(f"it announces {count:,} {what}; allowed: at most {most:,}")
        return count

    def _take(self, count: int) -> bytes:
        self._spend(count)
        taken = self._file.read(count)
        if len(taken) < count:
            raise self._broken("it is cut off")
        return taken

    def _skip(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    # A vocabulary is the one place where a header has hundreds of thousands of values: no calls within these loops.

    def _texts(self, count: int) -> list[str]:
        unpack, read, left = struct.Struct("<Q").unpack, self._file.read, self._left
        texts: list[str] = []
        for _ in range(count):
            prefix = read(8)
            if len(prefix) < 8:
                raise self._broken("it is cut off")
            length = unpack(prefix)[0]
            left -= 8 + length
            if left < 0:
                raise self._broken("it is cut off")
            text = read(length)
            if len(text) < length:
                raise self._broken("it is cut off")
            texts.append(text.decode("utf-8", "replace"))
        self._left = left
        return texts

    def _skip_texts(self, count: int) -> None:
        unpack, read, left = struct.Struct("<Q").unpack, self._file.read, self._left
        for _ in range(count):
            prefix = read(8)
            if len(prefix) < 8:
                raise self._broken("it is cut off")
            length = unpack(prefix)[0]
            left -= 8 + length
            if left < 0 or len(read(length)) < length:
                raise self._broken("it is cut off")
        self._left = left

    def _spend(self, count: int) -> None:
        if count > self._left:
            raise self._broken(f"it is cut off, or longer than {_MAX_HEADER_BYTES:,} bytes")
        self._left -= count

    def _broken(self, fault: str) -> CheckpointError:
        return CheckpointError(f"the header of {printable(self._path)} is damaged: {fault}; download the file again")
