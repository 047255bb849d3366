"""From the bytes of a source to records with fields, one bad record never costing another. No torch."""

import csv
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from genx.engine.rows.sources import InputFormat, Source
from genx.errors import ArgumentError, GenxError

BLANK_LINE = "blank-line"
TEXT_FIELD = "text"
"""The field that holds the prompt of a record which is plain text."""

_MAX_RECORD = 64 << 20  # bytes


@dataclass(frozen=True)
class Record:
    """One record of a source: its fields, or why it has none; neither for a blank line, which is counted only.

    `number` counts the lines or records of its source from 1.
    """

    source: Source
    number: int
    fields: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing in it."""
        return self.fields is None and self.error is None

    @property
    def is_whole_file(self) -> bool:
        """Whether it is all that its source holds."""
        return self.source.format is InputFormat.FILE


class _BadRecord(GenxError):
    """This record cannot be read; the next one may."""


@dataclass(frozen=True)
class Separator:
    """What stands between the prompts of a .txt file: line ends, blank lines, or matches of a pattern."""

    pattern: re.Pattern[str] | None = None
    blank_lines: bool = False

    @classmethod
    def parse(cls, text: str | None) -> "Separator":
        """`blank-line`, a regular expression (^ and $ match at line ends), or None for line ends.

        Raises:
            ArgumentError: it is no regular expression, or one that matches nothing at all.
        """
        if text is None or text == BLANK_LINE:
            return cls(blank_lines=text is not None)
        try:
            pattern = re.compile(text, re.MULTILINE)
        except (re.error, RecursionError, OverflowError) as error:
            raise ArgumentError(
                "{separator} is {given!r}: {why}; allowed: blank-line, or a regular expression", given=text, why=error
            ) from None
        if pattern.fullmatch(""):
            raise ArgumentError("{separator} is {given!r}, which matches between any two characters", given=text)
        return cls(pattern)


def read_records(source: Source, separator: Separator) -> Iterator[Record]:
    """The records of a source, blank ones too, in order.

    Text is UTF-8; lines end at LF, and a CR before it goes with it. A source that breaks off, for instance a damaged
    .gz, ends with one bad record.
    """
    number = 0
    try:
        with source.open() as stream:
            for number, content in enumerate(_contents(source.format, stream, separator), start=1):
                if isinstance(content, _BadRecord):
                    yield Record(source, number, error=str(content))
                else:
                    yield Record(source, number, fields=content)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        yield Record(source, number + 1, error=f"{source.name} cannot be read on: {reason}")


Content = Mapping[str, Any] | _BadRecord | None


def _contents(chosen: InputFormat, stream: BinaryIO, separator: Separator) -> Iterator[Content]:
    match chosen:
        case InputFormat.JSONL:
            return map(_parse_json, _lines(stream))
        case InputFormat.CSV:
            return _table(stream, ",")
        case InputFormat.TSV:
            return _table(stream, "\t")
        case InputFormat.FILE:
            return iter([_whole_file(stream)])
        case InputFormat.TXT if separator.pattern is not None:
            return _matches_apart(stream, separator.pattern)
        case InputFormat.TXT if separator.blank_lines:
            return _paragraphs(stream)
        case InputFormat.TXT:
            return map(_plain_line, _lines(stream))


def _lines(stream: BinaryIO) -> Iterator[bytes | _BadRecord]:
    """Lines without their ends; one that is too long is read past."""
    while line := stream.readline(_MAX_RECORD + 1):
        if len(line) <= _MAX_RECORD:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(_MAX_RECORD)
        yield _BadRecord(f"the line has more than {_MAX_RECORD:,} bytes; allowed: at most that many")


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise _BadRecord(f"not UTF-8: byte {error.start} is 0x{byte:02x}; convert the file, e.g. by iconv") from None


def _plain_line(line: bytes | _BadRecord) -> Content:
    if isinstance(line, _BadRecord):
        return line
    try:
        text = _decode(line)
    except _BadRecord as error:
        return error
    return {TEXT_FIELD: text} if text.strip() else None


def _parse_json(line: bytes | _BadRecord) -> Content:
    if isinstance(line, _BadRecord) or not line.strip():
        return line if isinstance(line, _BadRecord) else None
    try:
        value = json.loads(_decode(line), parse_constant=_refuse_constant, parse_float=_finite)
    except _BadRecord as error:
        return error
    except RecursionError:
        return _BadRecord("the JSON is nested too deeply")
    except ValueError as error:
        return _BadRecord(f"not JSON: {error}")
    if not isinstance(value, dict):
        return _BadRecord(f'not a JSON object but {_kind(value)}; a row is written as {{"prompt": "..."}}')
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return number


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def _whole_file(stream: BinaryIO) -> Content:
    content = stream.read(_MAX_RECORD + 1)
    if len(content) > _MAX_RECORD:
        return _BadRecord(f"the file has more than {_MAX_RECORD:,} bytes; allowed: at most that many for a prompt")
    # One final line end is the editor's, not the prompt's; `genx run -f` has the same rule.
    return _plain_line(content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content)


def _paragraphs(stream: BinaryIO) -> Iterator[Content]:
    lines: list[bytes] = []
    size = 0
    bad: _BadRecord | None = None
    for line in chain(_lines(stream), [b""]):
        if isinstance(line, _BadRecord):
            bad = line
        elif line.strip():
            size += len(line) + 1
            if size > _MAX_RECORD:
                bad = bad or _BadRecord(f"the paragraph has more than {_MAX_RECORD:,} bytes")
                lines.clear()
            lines.append(line)
        elif lines or bad:
            yield bad or _plain_line(b"\n".join(lines))
            lines, size, bad = [], 0, None


def _matches_apart(stream: BinaryIO, pattern: re.Pattern[str]) -> Iterator[Content]:
    content = stream.read(_MAX_RECORD + 1)
    if len(content) > _MAX_RECORD:
        yield _BadRecord(f"a file that a pattern separates may have {_MAX_RECORD:,} bytes; split it, or use JSONL")
        return
    try:
        text = _decode(content).replace("\r\n", "\n")
    except _BadRecord as error:
        yield error
        return
    start = 0
    for match in pattern.finditer(text):
        yield _piece(text[start : match.start()])
        start = match.end()
    if text[start:].strip():
        yield _piece(text[start:])


def _piece(text: str) -> Content:
    text = text.strip("\n")
    return {TEXT_FIELD: text} if text.strip() else None


def _table(stream: BinaryIO, delimiter: str) -> Iterator[Content]:
    csv.field_size_limit(_MAX_RECORD)
    # Bytes that are not UTF-8, and lines that are too long, become lone surrogates here: only their record is bad.
    lines = (
        "\udcff\n" if isinstance(line, _BadRecord) else line.decode("utf-8", "surrogateescape") + "\n"
        for line in _lines(stream)
    )
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        try:
            values = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            yield _BadRecord(f"not CSV: {error}")
            continue
        if header is None:
            header = values
            continue
        yield _table_row(header, values) if values else None


def _table_row(header: list[str], values: list[str]) -> Content:
    if len(values) != len(header):
        return _BadRecord(f"{len(values)} fields; the header names {len(header)}")
    if not _is_unicode("".join((*header, *values))):
        return _BadRecord(f"not UTF-8, or a line of more than {_MAX_RECORD:,} bytes; convert the file, e.g. by iconv")
    return dict(zip(header, values, strict=True))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
