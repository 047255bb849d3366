"""Where rows come from: files, folders and stdin, plain or gzipped, each with the format it is read in. No torch."""

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from genx.errors import ArgumentError, UsageError

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputFormat(StrEnum):
    """How bytes become rows."""

    TXT = "txt"  # a prompt a line
    JSONL = "jsonl"  # a JSON object a line
    CSV = "csv"
    TSV = "tsv"
    FILE = "file"  # the whole file is one prompt


_BY_SUFFIX = {
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".csv": InputFormat.CSV,
    ".tsv": InputFormat.TSV,
}


@dataclass(frozen=True)
class Source:
    """One input: its name for people, its format, and how to read its bytes, gunzipped and without a byte-order mark.

    `path_in_folder` is set for a file that a folder was searched for.
    """

    name: str
    format: InputFormat
    open: Callable[[], AbstractContextManager[BinaryIO]]
    path_in_folder: str | None = None
    can_be_read_again: bool = True

    def again(self) -> "Source":
        """This source as one that can be read again; a pipe is read to its end and kept in memory."""
        if self.can_be_read_again:
            return self
        with self.open() as stream:
            content = stream.read()
        return replace(self, open=lambda: nullcontext(io.BytesIO(content)), can_be_read_again=True)


def find_sources(inputs: Sequence[str], stdin: BinaryIO, chosen: InputFormat | None = None) -> list[Source]:
    """The sources that the given inputs stand for, in order; a folder stands for its files, sorted by path.

    The format follows the name: .jsonl or .ndjson, .csv, .tsv, each also with .gz; anything else is a prompt a line.
    In a folder every other file is one prompt as a whole, and hidden files are left out. stdin is JSONL if its first
    line is a JSON object, else a prompt a line.

    Args:
        inputs: paths, or `-` for stdin.
        stdin: what `-` reads.
        chosen: the format of all of them instead.

    Raises:
        UsageError: a path does not exist, is neither file nor folder, or an input is given twice.
    """
    sources: list[Source] = []
    for given in inputs:
        if inputs.count(given) > 1:
            raise ArgumentError("{input} {given} is given twice; allowed: each input once", given=given)
        if given == STDIN:
            sources.append(_stdin(stdin, chosen))
            continue
        path = Path(given)
        if _is_folder(path):
            sources += _folder(path, chosen)
        else:
            sources.append(_file(path, given, chosen or _format_of(path.name, InputFormat.TXT)))
    return sources


def _is_folder(path: Path) -> bool:
    try:
        if path.is_dir():
            return True
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the input {path} cannot be read: {reason}; give a file or folder, or - for stdin") from error
    return False


def _folder(folder: Path, chosen: InputFormat | None) -> list[Source]:
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    sources = []
    for path in sorted(found, key=lambda path: path.relative_to(folder).parts):
        inside = path.relative_to(folder).as_posix()
        if path.is_file():  # no pipe or device, at which reading might wait for ever
            sources.append(_file(path, str(path), chosen or _format_of(path.name, InputFormat.FILE), inside))
    if not sources:
        raise UsageError(f"the folder {folder} has no files; give one with prompts in it")
    return sources


def _format_of(name: str, otherwise: InputFormat) -> InputFormat:
    return _BY_SUFFIX.get(Path(name.lower().removesuffix(".gz")).suffix, otherwise)


def _file(path: Path, name: str, chosen: InputFormat, inside: str | None = None) -> Source:
    @contextmanager
    def reading() -> Iterator[BinaryIO]:
        with path.open("rb") as stream:
            yield _plain(stream)

    return Source(name, chosen, reading, inside, can_be_read_again=path.is_file())


def _stdin(stdin: BinaryIO, chosen: InputFormat | None) -> Source:
    try:
        stream = _plain(stdin)
        head = stream.peek()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"stdin cannot be read: {error}") from error
    if chosen is None:
        chosen = InputFormat.JSONL if _begins_json_lines(head) else InputFormat.TXT
    return Source("stdin", chosen, lambda: nullcontext(stream), can_be_read_again=False)


def _begins_json_lines(head: bytes) -> bool:
    line, end, _ = head.lstrip().partition(b"\n")
    if not end and len(line) >= io.DEFAULT_BUFFER_SIZE:
        return line.startswith(b'{"')  # the first row goes on
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _plain(stream: BinaryIO) -> io.BufferedReader:
    """The bytes of a stream, gunzipped where they are gzipped, without a byte-order mark."""
    buffered = stream if isinstance(stream, io.BufferedReader) else _buffered(stream)
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        buffered = io.BufferedReader(gzip.GzipFile(fileobj=buffered))
    if buffered.peek(3)[:3] == _BYTE_ORDER_MARK:
        buffered.read(3)
    return buffered


def _buffered(stream: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(stream)  # type: ignore[arg-type]
