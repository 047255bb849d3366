"""Jobs that others generate, in blocks: their reports, and what becomes of rows that never come back. No torch."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from genx.engine.rows.answers import failed_summary
from genx.errors import GenxError

if TYPE_CHECKING:
    from genx.engine.continuation import Summary
    from genx.engine.rows.active_row import Job
    from genx.engine.rows.batch import Advanced, Finished
    from genx.tokenization import Tokenizer

# Jobs in hand at once: what is known of them takes memory, and workers load the model anew for the next ones.
_WINDOW = 1 << 15
# Jobs that are taken from the plan between two looks at whether the run is to end.
_BETWEEN_LOOKS = 64
# A batch drains at the end of a block, so the first attempt's are long; the last one's tell which row does the harm.
_BATCHES_IN_A_BLOCK = 8


@dataclass
class Report:
    """What a worker has done since its last report.

    Attributes:
        finished: rows that have ended, by their places.
        prompt_tokens: that were read.
        new_tokens: that were chosen.
        cache_bytes: the most that all caches took.
        trouble: why the rest of the block does not follow.
        failure: why the worker can generate nothing at all.
    """

    finished: "list[tuple[int, Summary]]" = field(default_factory=list)
    prompt_tokens: int = 0
    new_tokens: int = 0
    cache_bytes: int = 0
    trouble: str | None = None
    failure: str | None = None


Generate = Callable[[Sequence[bytes]], Iterable[Report | None]]
"""Has blocks of jobs generated; yields reports in any order, and None now and then while there is none."""


class RemoteBatch:
    """Generates jobs as `Batch` does, by way of others.

    A row that does not come back, for instance since its worker died, is tried again in smaller blocks, at last in one
    of its own; then it fails.
    """

    def __init__(self, generate: Generate, batch_size: int) -> None:
        """
        Args:
            generate: called once an attempt.
            batch_size: rows that a worker generates together.
        """
        self._generate = generate
        self._block_sizes = (_BATCHES_IN_A_BLOCK * batch_size, batch_size, 1)
        self._pending: dict[int, Job] = {}
        self._trouble = "its worker ended before it"

    def run(self, jobs: "Iterator[Job]") -> "Iterator[Finished | Advanced]":
        """Generate every job.

        Raises:
            GenxError: a worker cannot generate anything.
        """
        from genx.engine.rows.batch import Finished

        while True:
            yield from self._fill(jobs)
            if not self._pending:
                return
            for size in self._block_sizes:
                yield from self._attempt(size)
                if not self._pending:
                    break
            for job in self._pending.values():
                why = f"{self._trouble}, in each of {len(self._block_sizes)} attempts"
                yield Finished(job, failed_summary(why, len(job.prompt.ids)))
            self._pending.clear()

    def _fill(self, jobs: "Iterator[Job]") -> "Iterator[Advanced]":
        from genx.engine.rows.batch import Advanced

        while len(self._pending) < _WINDOW and (more := list(islice(jobs, _BETWEEN_LOOKS))):
            self._pending |= {job.place: job for job in more}
            yield Advanced(0, 0, 0)

    def _attempt(self, size: int) -> "Iterator[Finished | Advanced]":
        """Have all pending jobs generated, in blocks of this many."""
        from genx.engine.rows.batch import Advanced, Finished

        jobs = list(self._pending.values())
        blocks = [encode_jobs(jobs[start : start + size]) for start in range(0, len(jobs), size)]
        for report in self._generate(blocks):
            if report is None:
                yield Advanced(0, 0, 0)
                continue
            if report.failure is not None:
                raise GenxError(report.failure)
            self._trouble = report.trouble or self._trouble
            for place, summary in report.finished:
                job = self._pending.pop(place, None)
                if job is not None:  # else it has come before
                    yield Finished(job, summary)
            yield Advanced(report.prompt_tokens, report.new_tokens, report.cache_bytes)


def encode_jobs(jobs: "Sequence[Job]") -> bytes:
    """A block of jobs, without their decoders."""
    return pickle.dumps([(job.place, job.prompt, job.settings, job.stop_token_ids, job.show_eos) for job in jobs])


def decode_jobs(block: bytes, tokenizer: "Tokenizer") -> "list[Job]":
    """The jobs of a block, whose answers this tokenizer decodes."""
    from genx.engine.rows.active_row import Job

    return [
        Job(
            place,
            prompt,
            settings,
            partial(tokenizer.incremental, skip_special_tokens=not show_eos),
            stop_token_ids,
            show_eos,
        )
        for place, prompt, settings, stop_token_ids, show_eos in pickle.loads(block)
    ]
