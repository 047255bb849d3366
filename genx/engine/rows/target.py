"""The file of answers before a run: whether it may be written, what an earlier run has left in it, and its writer.

No torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from genx.engine.rows.formats import AnswerFormat, StoredRow
from genx.engine.rows.lock import LockedError, locked
from genx.engine.rows.resume import Resumption
from genx.engine.rows.writers import AnswerFile, Ordered, Parking, Rewriting, Unordered, Writer
from genx.errors import ArgumentError, UsageError


@dataclass(frozen=True)
class Leftovers:
    """The whole rows that an earlier run has left in FILE and in FILE.partial."""

    in_file: Sequence[StoredRow] = ()
    parked: Sequence[StoredRow] = ()


class Target:
    """FILE, where answers go, with FILE.partial beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._lock = path.with_name(path.name + ".lock")

    def check(self, *, may_exist: bool) -> None:
        """Refuse a file that is there already, and one that cannot be written.

        A pipe or a device may always be there.

        Raises:
            UsageError: it exists and may not, is a folder, or its folder does not exist.
        """
        if self._path.is_dir() or not self._path.parent.is_dir():
            what = "is a folder" if self._path.is_dir() else f"cannot be made: there is no folder {self._path.parent}"
            raise UsageError(f"the output {self._path} {what}; give a file")
        if self._is_regular() and not may_exist:
            raise ArgumentError(
                "{output} {path} exists; {resume} goes on with it, {overwrite} starts afresh", path=str(self._path)
            )

    @contextmanager
    def claimed(self, *, may_exist: bool) -> Iterator[None]:
        """Keep other runs from writing the file; `check` it once more, since one may just have ended.

        Raises:
            UsageError: another run writes it, or as `check`.
        """
        with ExitStack() as stack:
            if self._is_regular() or not self._path.exists():
                try:
                    with suppress(OSError):  # a folder that takes no new file has no lock, and no FILE.partial either
                        stack.enter_context(locked(self._lock))
                except LockedError as error:
                    raise ArgumentError(
                        "{output} {path} is being written by another run; wait for it, or give another file",
                        path=str(self._path),
                    ) from error
            self.check(may_exist=may_exist)
            yield

    def leftovers(self, answers: AnswerFormat) -> Leftovers:
        """What an earlier run has left; a row that was torn by a sudden end is not counted.

        Raises:
            UsageError: something else than answers of this format is there.
        """
        in_file = list(answers.scan(self._path, has_header=True)) if self._path.is_file() else []
        parked = list(answers.scan(self._partial, has_header=False)) if self._partial.is_file() else []
        return Leftovers(in_file, parked)

    def writer(self, answers: AnswerFormat, left: Leftovers, resumption: Resumption, *, in_order: bool) -> Writer:
        """What takes the answers; from here on the file is written.

        Raises:
            GenxError: it cannot be.
        """
        parking = Parking(self._partial, keep_bytes=left.parked[-1].end if left.parked else 0)
        if resumption.must_rewrite:
            return Rewriting(self._path, answers.header(), parking, resumption.kept)
        file = AnswerFile(self._path, keep_bytes=left.in_file[-1].end if left.in_file else 0)
        if not left.in_file and answers.header():
            file.append(answers.header().encode())
        if in_order:
            return Ordered(file.append, parking, resumption.kept, end=file.close)
        return Unordered(file.append, end=file.close)

    def _is_regular(self) -> bool:
        return self._path.is_file()
