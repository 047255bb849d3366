"""Answers as lines of JSON, as CSV or as plain text, and what can be read back of them. No torch."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from genx.engine.result import as_json_line
from genx.engine.rows.identity import RowIdentity
from genx.errors import UsageError

_FIRST_BYTES = b'{"id": '


class OutputFormat(StrEnum):
    """How answers are written."""

    JSONL = "jsonl"
    TEXT = "text"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row found in a file of answers, and the bytes it takes there."""

    path: Path
    identity: RowIdentity
    key: str | None
    has_failed: bool
    start: int
    end: int

    def read(self) -> bytes:
        """Its bytes, line end included."""
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.end - self.start)


class AnswerFormat(Protocol):
    """How answers stand in a file."""

    def header(self) -> str:
        """What stands before the first answer."""

    def encode(self, answer: Mapping[str, Any]) -> str:
        """One answer, line end included."""

    def scan(self, path: Path, *, has_header: bool) -> Iterator[StoredRow]:
        """The whole rows of a file that genx wrote, up to one that was torn by a sudden end.

        Raises:
            UsageError: there is something else in it.
        """


def answer_format(chosen: OutputFormat, columns: Sequence[str]) -> AnswerFormat:
    """The format of this name; `columns` are the fields that pass through, for formats that must know beforehand."""
    match chosen:
        case OutputFormat.JSONL:
            return JsonLines()
        case OutputFormat.CSV:
            return Csv(columns)
        case OutputFormat.TEXT:
            return PlainText()


class JsonLines:
    """One object a line."""

    def header(self) -> str:
        return ""

    def encode(self, answer: Mapping[str, Any]) -> str:
        return as_json_line(answer)

    def scan(self, path: Path, *, has_header: bool) -> Iterator[StoredRow]:
        with path.open("rb") as stream:
            start = 0
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    _check_torn(line, _FIRST_BYTES, path, f"line {number}")
                    return
                try:
                    yield _stored(json.loads(line), path, start, start + len(line))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise _foreign(path, f"line {number}") from None
                start += len(line)


class PlainText:
    """The text of each answer and a line end; a row that failed is an empty line."""

    def header(self) -> str:
        return ""

    def encode(self, answer: Mapping[str, Any]) -> str:
        return (answer["text"] or "") + "\n"

    def scan(self, path: Path, *, has_header: bool) -> Iterator[StoredRow]:
        raise UsageError("a file of plain text does not say which rows it holds; resume works with jsonl and csv")


class Csv:
    """A table with a header: columns of the answer, then the fields that pass through.

    A row's fields that are no columns stand in the last one, `more`, as a JSON object. Lists and objects are JSON.
    """

    _OWN = ("id", "row", "file", "sample", "text", "finish_reason", "prompt_tokens", "new_tokens", "seed")
    _TIMINGS = ("ttft_s", "prefill_tps", "decode_tps")
    _LAST = ("error", "key")
    _MORE = "more"
    _LEFT_OUT = ("ids", "timings")

    def __init__(self, columns: Sequence[str]) -> None:
        self._first = (*self._OWN, *self._TIMINGS, *self._LAST)
        self._passed = tuple(name for name in columns if name not in self._first and name != self._MORE)

    def header(self) -> str:
        return self._line([*self._first, *self._passed, self._MORE])

    def encode(self, answer: Mapping[str, Any]) -> str:
        flat = {**answer, **answer["timings"]}
        known = {*self._first, *self._passed, *self._LEFT_OUT}
        more = {name: value for name, value in answer.items() if name not in known}
        values = [_cell(flat.get(name)) for name in (*self._first, *self._passed)]
        return self._line([*values, _cell(more) if more else ""])

    def scan(self, path: Path, *, has_header: bool) -> Iterator[StoredRow]:
        with path.open("rb") as stream:
            lines = _CountedLines(stream)
            records = csv.reader(lines, strict=True)
            header = next(records, None) if has_header else [*self._first, *self._passed, self._MORE]
            if header is None or lines.is_torn():
                _check_torn(path.read_bytes(), ",".join(self._first).encode(), path, "the header")
                return
            if tuple(header[: len(self._first)]) != self._first or header[-1] != self._MORE:
                raise _foreign(path, "the header")
            self._passed = tuple(header[len(self._first) : -1])
            while True:
                start = lines.end
                try:
                    values = next(records)
                except (StopIteration, csv.Error):
                    return  # the end, or a quoted text without its end
                if lines.is_torn():
                    return
                yield self._stored(header, values, path, start, lines.end)

    def _stored(self, header: list[str], values: list[str], path: Path, start: int, end: int) -> StoredRow:
        try:
            row: dict[str, Any] = dict(zip(header, (value or None for value in values), strict=True))
            row |= {"row": int(row["row"]), "sample": int(row["sample"] or 1)}
        except (TypeError, ValueError):
            raise _foreign(path, f"the record at byte {start}") from None
        return _stored(row, path, start, end)

    def _line(self, values: Sequence[str]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        return text.getvalue()


class _CountedLines:
    """The lines of a stream, and how many bytes were handed out."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.end = 0
        self._last = b"\n"

    def __iter__(self) -> Iterator[str]:
        for line in self._stream:
            self._last = line
            self.end += len(line)
            yield line.decode("utf-8", "replace")

    def is_torn(self) -> bool:
        """Whether the last line has no end."""
        return not self._last.endswith(b"\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else as_json_line(value).removesuffix("\n")


def _stored(answer: Mapping[str, Any], path: Path, start: int, end: int) -> StoredRow:
    identity = RowIdentity.of(answer["id"], answer.get("file"), answer["row"], answer.get("sample") or 1)
    return StoredRow(path, identity, answer["key"], answer["error"] is not None, start, end)


def _check_torn(torn: bytes, beginning: bytes, path: Path, what: str) -> None:
    """Refuse what is no row or header that a sudden end has cut: it may be somebody's text."""
    if not torn.startswith(beginning) and not beginning.startswith(torn):
        raise _foreign(path, what)


def _foreign(path: Path, what: str) -> UsageError:
    return UsageError(f"{what} of {path} is nothing that genx wrote; give another -o, or --overwrite")
