"""Answers on their way out: as they come or in the order of rows, and into files that a kill at any moment spares.

A row that is done is in FILE, or waits in FILE.partial for its predecessors; each is flushed before the next is
generated. What must be rewritten is written anew beside FILE and takes its place at once. No torch.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from genx.engine.rows.formats import StoredRow
from genx.errors import GenxError

_ENCODING = "utf-8"


class Writer(Protocol):
    """Takes each row's answer once."""

    def put(self, place: int, answer: str) -> None:
        """Write the answer to the row of this place."""

    def keep(self, place: int) -> None:
        """The answer to the row of this place is there from an earlier run."""

    def close(self, *, complete: bool) -> None:
        """End; `complete` says that every row has been put or kept."""


class Unordered:
    """Writes answers as they come."""

    def __init__(self, emit: Callable[[bytes], None], end: Callable[[], None] = lambda: None) -> None:
        self._emit = emit
        self._end = end

    def put(self, place: int, answer: str) -> None:
        self._emit(_encoded(answer))

    def keep(self, place: int) -> None:
        pass

    def close(self, *, complete: bool) -> None:
        self._end()


class Ordered:
    """Writes answers in the order of rows; one that is done early waits."""

    def __init__(
        self,
        emit: Callable[[bytes], None],
        parking: "Parking | None" = None,
        kept: Mapping[int, StoredRow] | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            emit: writes an answer after those before it.
            parking: where waiting answers survive; None where nothing survives.
            kept: rows of an earlier run: the first ones in the file, others parked.
            end: called last of all.
        """
        self._emit = emit
        self._parking = parking
        self._end = end
        parked = {
            place: stored.read()
            for place, stored in (kept or {}).items()
            if parking is not None and stored.path == parking.path
        }
        self._waiting = parked
        self._next = len(kept or {}) - len(parked)
        self._write_ready()

    def put(self, place: int, answer: str) -> None:
        line = _encoded(answer)
        if place != self._next and self._parking is not None:
            self._parking.add(line)
        self._waiting[place] = line
        self._write_ready()

    def keep(self, place: int) -> None:
        pass

    def close(self, *, complete: bool) -> None:
        self._end()
        if self._parking is not None:
            self._parking.close(keep=bool(self._waiting))

    def _write_ready(self) -> None:
        while self._next in self._waiting:
            self._emit(self._waiting.pop(self._next))
            self._next += 1
        if self._parking is not None and not self._waiting:
            self._parking.clear()


class Rewriting:
    """Parks all new answers, and in the end writes them and the kept ones anew, in the order of rows."""

    def __init__(self, path: Path, header: str, parking: "Parking", kept: Mapping[int, StoredRow]) -> None:
        self._path = path
        self._header = header
        self._parking = parking
        self._kept = kept
        self._spans: dict[int, tuple[int, int]] = {}

    def put(self, place: int, answer: str) -> None:
        self._spans[place] = self._parking.add(_encoded(answer))

    def keep(self, place: int) -> None:
        pass

    def close(self, *, complete: bool) -> None:
        if complete:
            self._rewrite()
        self._parking.close(keep=not complete)

    def _rewrite(self) -> None:
        new = self._path.with_name(self._path.name + ".new")
        sources: dict[Path, BinaryIO] = {}
        try:
            with new.open("wb") as out:
                out.write(_encoded(self._header))
                for place in sorted({*self._kept, *self._spans}):
                    path, start, end = self._where(place)
                    if path not in sources:
                        sources[path] = path.open("rb")
                    sources[path].seek(start)
                    out.write(sources[path].read(end - start))
                out.flush()
                os.fsync(out.fileno())
            for source in sources.values():
                source.close()  # Windows replaces no file that is open
            new.replace(self._path)
        except OSError as error:
            raise _cannot_write(new, error) from error

    def _where(self, place: int) -> tuple[Path, int, int]:
        if place in self._spans:
            return self._parking.path, *self._spans[place]
        stored = self._kept[place]
        return stored.path, stored.start, stored.end


class AnswerFile:
    """A file that answers are appended to, each flushed."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        """
        Args:
            path: made if absent.
            keep_bytes: how much of it stays; what follows was torn.
        """
        self.path = path
        try:
            self._stream = path.open("r+b" if path.is_file() else "wb")
            if path.is_file():  # no pipe or device
                self._stream.truncate(keep_bytes)
                self._stream.seek(keep_bytes)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._size = keep_bytes

    def append(self, line: bytes) -> None:
        """Write one answer.

        Raises:
            GenxError: it cannot be written, for instance since the disk is full.
        """
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self._size += len(line)

    def clear(self) -> None:
        """Leave nothing in it."""
        self._stream.seek(0)
        self._stream.truncate()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes written and kept."""
        return self._size

    def close(self) -> None:
        """Close it."""
        with suppress(OSError):
            self._stream.close()


class Parking:
    """FILE.partial: answers that wait; made when the first one comes, gone when none is left."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        """
        Args:
            path: of FILE.partial.
            keep_bytes: how much of it stays from an earlier run.
        """
        self.path = path
        self._keep_bytes = keep_bytes
        self._file: AnswerFile | None = None

    def add(self, line: bytes) -> tuple[int, int]:
        """Keep an answer; return where its bytes start and end."""
        if self._file is None:
            self._file = AnswerFile(self.path, keep_bytes=self._keep_bytes)
        start = self._file.size
        self._file.append(line)
        return start, self._file.size

    def clear(self) -> None:
        """No answer waits any more."""
        self._keep_bytes = 0
        if self._file is not None and self._file.size:
            self._file.clear()

    def close(self, *, keep: bool) -> None:
        """End; `keep` says that an answer still waits in it."""
        if self._file is not None:
            self._file.close()
        if not keep:
            self.path.unlink(missing_ok=True)


def _encoded(text: str) -> bytes:
    return text.encode(_ENCODING, errors="replace")


def _cannot_write(path: Path, error: OSError) -> GenxError:
    return GenxError(
        f"{path} cannot be written: {error.strerror or error}; what is done stays, --resume goes on from there"
    )
