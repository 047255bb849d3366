"""One model on a machine of a cluster, which generates blocks of jobs and reports as rows end."""

import pickle
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genx.engine.arithmetic import Arithmetic
from genx.engine.rows.identity import model_digest
from genx.engine.rows.remote import Report, decode_jobs
from genx.errors import GenxError

if TYPE_CHECKING:
    from genx.engine.rows.batch import Batch

# A report is an object that the cluster keeps a record of.
_SECONDS_BETWEEN_REPORTS = 0.1


@dataclass(frozen=True)
class Work:
    """What every worker of a run does.

    Attributes:
        model: the folder or file, by a path that is right on every machine.
        digest: `model_digest` of it.
        arithmetic: what it is computed in.
        threads: of the CPU; None leaves torch's choice.
        batch_size: rows at once.
        cache_bytes: for the caches of all of them; None: half of the free memory.
        batch_invariant: see `Batch`.
        workers_beside: how many workers share a machine's memory.
    """

    model: Path
    digest: str
    arithmetic: Arithmetic
    threads: int | None
    batch_size: int
    cache_bytes: int | None
    batch_invariant: bool
    workers_beside: int = 1


class Worker:
    """Loads the model once; called with a block of jobs it yields reports, pickled, in columns as Ray Data wants."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._failure: str | None = None
        try:
            self._load()
        except Exception as error:  # told to whoever sends a block: Ray would only tell where it was raised
            self._failure = f"a worker on {socket.gethostname()} cannot run the model: {error or type(error).__name__}"

    def __call__(self, rows: dict[str, Any]) -> Iterator[dict[str, list[bytes]]]:
        for block in rows["jobs"]:
            for report in self._reports(block):
                yield {"report": [pickle.dumps(report)]}

    def _load(self) -> None:
        import torch

        from genx.engine.free_memory import free_memory_bytes
        from genx.engine.loading import load_to_run
        from genx.engine.rows.budget import worked_out_budget
        from genx.tokenization import load_tokenizer

        work = self._work
        if not work.model.exists():
            raise GenxError(f"there is no {work.model} on this machine; every machine needs the model at the same path")
        if model_digest(work.model) != work.digest:
            raise GenxError(f"{work.model} on this machine is another model; every machine needs the same one")
        if work.threads is not None:
            torch.set_num_threads(work.threads)
        self._tokenizer = load_tokenizer(work.model)
        self._model = load_to_run(work.model, work.arithmetic).model
        self._cache_bytes = work.cache_bytes
        if self._cache_bytes is None:
            self._cache_bytes = worked_out_budget(free_memory_bytes(work.arithmetic.device)) // work.workers_beside
        self._batch = self._new_batch()

    def _new_batch(self) -> "Batch":
        from genx.engine.rows.batch import Batch

        assert self._cache_bytes is not None
        return Batch(
            self._model,
            size=self._work.batch_size,
            cache_bytes=self._cache_bytes,
            batch_invariant=self._work.batch_invariant,
        )

    def _reports(self, block: bytes) -> Iterator[Report]:
        from genx.engine.rows.batch import Finished

        if self._failure is not None:
            yield Report(failure=self._failure)
            return
        report, last = Report(), time.monotonic()
        try:
            for event in self._batch.run(iter(decode_jobs(block, self._tokenizer))):
                if isinstance(event, Finished):
                    summary = event.summary
                    if summary.error is not None:  # by its text: not every error can be pickled
                        summary = replace(summary, error=GenxError(str(summary.error)))
                    report.finished.append((event.job.place, summary))
                    continue
                report.prompt_tokens += event.prompt_tokens
                report.new_tokens += event.new_tokens
                report.cache_bytes = max(report.cache_bytes, event.cache_bytes)
                if report.finished and time.monotonic() - last >= _SECONDS_BETWEEN_REPORTS:
                    yield report
                    report, last = Report(), time.monotonic()
        except Exception as error:  # whatever it is, another block may do
            self._batch = self._new_batch()
            report.trouble = str(error) or type(error).__name__
        yield report
