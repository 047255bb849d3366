"""A run over all rows: planned, encoded, generated together and written, with a tally as it goes."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from genx.engine.rows.active_row import Job
from genx.engine.rows.answers import answer_object, failed_summary
from genx.engine.rows.batch import Advanced, Finished
from genx.engine.rows.encode import Encoding
from genx.engine.rows.formats import AnswerFormat
from genx.engine.rows.identity import RowIdentity, row_seed
from genx.engine.rows.plan import Plan, Row
from genx.engine.rows.resume import Resumption
from genx.engine.rows.writers import Writer
from genx.errors import GenxError


class JobBatch(Protocol):
    """Generates jobs, in any order: `Batch` here, `RemoteBatch` elsewhere."""

    def run(self, jobs: Iterator[Job]) -> Iterator[Finished | Advanced]:
        """Generate every job; tell of each that ends, and now and then how far it is."""


@dataclass(frozen=True)
class Tally:
    """What has been done so far. `kept` and `failed` count rows of an earlier run too, the others do not."""

    done: int = 0  # rows written, failed ones too
    kept: int = 0
    failed: int = 0
    blank: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    most_cache_bytes: int = 0

    @property
    def rows(self) -> int:
        """Rows that have an answer."""
        return self.done + self.kept


@dataclass(frozen=True)
class Remembered:
    """A row that was generated, kept to be generated again alone."""

    row: Row
    job: Job
    ids: tuple[int, ...]


class RowsRun:
    """One run over all rows of a plan."""

    def __init__(
        self,
        plan: Plan,
        encoding: Encoding,
        batch: JobBatch,
        answer_format: AnswerFormat,
        writer: Writer,
        resumption: Resumption,
        verified: int = 0,
    ) -> None:
        """
        Args:
            plan: the rows.
            encoding: how their prompts are read.
            batch: generates them.
            answer_format: how answers are written.
            writer: takes them.
            resumption: which of them are there.
            verified: how many rows to keep for `remembered`.
        """
        self._plan = plan
        self._encoding = encoding
        self._batch = batch
        self._format = answer_format
        self._writer = writer
        self._resumption = resumption
        self._verified = verified
        self._pending: dict[int, tuple[Row, str | None]] = {}
        self._remembered: list[tuple[int, int, Remembered]] = []
        self.tally = Tally(failed=resumption.failed)

    def steps(self, interrupted: Callable[[], bool] = lambda: False) -> Iterator[Tally]:
        """Do it; yields the tally after each turn of the batch.

        Args:
            interrupted: asked after each turn; True ends the run, and rows that are not finished are dropped.
        """
        complete = False
        try:
            for event in self._batch.run(self._jobs()):
                if isinstance(event, Finished):
                    row, key = self._pending.pop(event.job.place)
                    self._write(row, answer_object(row, event.summary, key))
                    self._remember(row, event)
                    continue
                self._count(
                    prompt_tokens=self.tally.prompt_tokens + event.prompt_tokens,
                    new_tokens=self.tally.new_tokens + event.new_tokens,
                    most_cache_bytes=max(self.tally.most_cache_bytes, event.cache_bytes),
                )
                yield self.tally
                if interrupted():
                    return
            complete = True
        finally:
            self._writer.close(complete=complete)

    def remembered(self) -> list[Remembered]:
        """Some of the rows that were generated, spread over the input."""
        return [entry[-1] for entry in sorted(self._remembered, key=lambda entry: entry[1])]

    def _jobs(self) -> Iterator[Job]:
        for row in self._plan.rows():
            if row is None:
                self._count(blank=self.tally.blank + 1)
            elif row.place in self._resumption.kept:
                self._count(kept=self.tally.kept + 1)
                self._writer.keep(row.place)
            else:
                job = self._job(row)
                if job is not None:
                    yield job

    def _job(self, row: Row) -> Job | None:
        """The job of a row; a row that cannot be one is written as failed."""
        try:
            if row.settings is None:
                raise GenxError(row.error or "the row asks for nothing")
            prompt = self._encoding.prompt(row)
        except GenxError as error:
            self._write(row, answer_object(row, failed_summary(str(error)), row.key()))
            return None
        self._pending[row.place] = row, self._encoding.key(row, prompt)
        return Job(
            row.place,
            prompt,
            row.settings,
            self._encoding.decoder,
            self._encoding.stop_token_ids(row.settings.stop),
            self._encoding.special,
        )

    def _write(self, row: Row, answer: dict[str, object]) -> None:
        self._writer.put(row.place, self._format.encode(answer))
        failed = answer["error"] is not None
        self._count(done=self.tally.done + 1, failed=self.tally.failed + failed)

    def _remember(self, row: Row, event: Finished) -> None:
        if self._verified and event.summary.error is None:
            # The rows whose numbers, hashed, are lowest: spread over the input, and the same in each run.
            order = -row_seed(0, RowIdentity(None, "verify", row.place))
            heapq.heappush(self._remembered, (order, row.place, Remembered(row, event.job, event.summary.ids)))
            if len(self._remembered) > self._verified:
                heapq.heappop(self._remembered)

    def _count(self, **changes: int) -> None:
        self.tally = replace(self.tally, **changes)
