"""Rows that generate together: each is read alone, all advance by one token a step, and each leaves when it ends.

Continuous batching (iteration-level scheduling: Yu et al. 2022, Orca, section 3.2) over the pieces of the core's own
loop. No step is spent on padding or on rows that have ended. Shapes: see the legend in genx/core/base_model.py.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F

from genx.core.cache import LayerCache, join_rows, split_rows
from genx.core.generation import next_generation_input
from genx.core.loop import PREFILL_CHUNK, fitting_cache, read_columns, result_of
from genx.engine.continuation import Summary
from genx.engine.rows.active_row import ActiveRow, Job
from genx.engine.rows.budget import CacheCost
from genx.engine.rows.invariance import BLOCK, FixedBlocks
from genx.engine.rows.prefixes import Prefixes, SharedPrefix, shared_length
from genx.errors import GenxError

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

# Rows that are looked at ahead for what their prompts share.
_LOOK_AHEAD = 64


@dataclass(frozen=True)
class Finished:
    """A row has ended."""

    job: Job
    summary: Summary


@dataclass(frozen=True)
class Advanced:
    """A turn is over: prompt tokens that it read, tokens that it chose, and bytes that all caches take now."""

    prompt_tokens: int
    new_tokens: int
    cache_bytes: int


Reading = Generator[int, None, None]


class Batch:
    """Generates rows together; a turn reads some prompt tokens, then gives each row one token."""

    def __init__(
        self,
        model: "BaseModel",
        *,
        size: int,
        cache_bytes: int,
        batch_invariant: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            model: in eval mode, on its device.
            size: at most this many rows at once.
            cache_bytes: what the caches of all rows and prefixes may take together; never exceeded.
            batch_invariant: make every row the same to the last bit whatever runs beside it: steps go in blocks of
                always as many rows, and prompts that begin alike are each read as a whole.
            clock: seconds since whenever.
        """
        self._model = model
        self._device = model.device
        self._size = size
        self._cost = CacheCost(model.config, model.layer_windows, model.cache_dtype.itemsize)
        # A block is filled up with rows of one position.
        self._cache_bytes = cache_bytes - (BLOCK - 1) * self._cost.of(1) * batch_invariant
        self._batch_invariant = batch_invariant
        self._clock = clock
        self._context = model._max_seq_len
        self._rows: list[ActiveRow] = []  # read, and generating
        self._reading: tuple[ActiveRow, Reading] | None = None
        self._prefixes = Prefixes()
        self._upcoming: deque[Job] = deque()
        self._chosen = 0  # tokens in this turn

    def run(self, jobs: Iterator[Job]) -> Iterator[Finished | Advanced]:
        """Generate every job, taken from the iterator a few ahead of need; stop asking to drop what is not finished.

        A row that cannot be generated, for instance since its cache does not fit, finishes with an error.

        Raises:
            GenxError: out of memory in a step of several rows.
        """
        while True:
            self._upcoming.extend(islice(jobs, max(self._size + _LOOK_AHEAD - len(self._upcoming), 0)))
            prompt_tokens = yield from self._read_prompts()
            if not self._rows and self._reading is None and not self._upcoming:
                return
            try:
                self._step()
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise GenxError(f"out of memory: {error}; a smaller --batch-size or --kv-memory needs less") from error
            yield from self._dismiss()
            yield Advanced(prompt_tokens, self._chosen, self._allocated())
            self._chosen = 0

    def _read_prompts(self) -> Generator[Finished, None, int]:
        """Read up to a chunk of prompt tokens; several short prompts, or a part of a long one."""
        read = 0
        while read < PREFILL_CHUNK:
            if self._reading is None:
                if not self._upcoming or len(self._rows) == self._size:
                    break
                if not self._admit(self._upcoming[0]):
                    if self._rows:
                        break  # until another row leaves
                    yield self._refuse(self._upcoming.popleft())
                    continue
                self._begin(self._upcoming.popleft())
            read += self._advance_reading()
            yield from self._dismiss()
        return read

    def _admit(self, job: Job) -> bool:
        """Whether the row's cache fits; kept prefixes make room for it once no row is left to wait for."""
        needed = self._cost.of(self._positions(job))
        if not self._fits(needed) and not self._rows:
            self._prefixes.release(lambda: self._fits(needed))
        return self._fits(needed)

    def _positions(self, job: Job) -> int:
        return min(len(job.prompt.ids) + job.settings.max_new_tokens, self._context)

    def _fits(self, more: int) -> bool:
        reserved = sum(self._cost.of(row.at_most) for row in self._active())
        return reserved + self._prefixes.nbytes + more <= self._cache_bytes

    def _active(self) -> list[ActiveRow]:
        return self._rows if self._reading is None else [*self._rows, self._reading[0]]

    def _begin(self, job: Job) -> None:
        row = ActiveRow(job, self._context, self._device, self._clock)
        self._reading = row, self._read(row)

    def _advance_reading(self) -> int:
        """Read on; return how many prompt tokens that were."""
        assert self._reading is not None
        row, reading = self._reading
        try:
            return next(reading)
        except StopIteration:
            pass
        except (torch.OutOfMemoryError, MemoryError) as error:
            row.fail(GenxError(f"out of memory: {error}; a smaller --batch-size or --kv-memory needs less"))
        self._reading = None
        self._rows.append(row)
        return 0

    @torch.no_grad()
    def _read(self, row: ActiveRow) -> Reading:
        """Read the prompt and choose the first token; yields the number of tokens of each chunk."""
        if row.is_finished:
            return
        prefix = None if self._batch_invariant else (yield from self._prefix_of(row))
        ids = row.text.columns
        seen = 0 if prefix is None else len(prefix.ids)
        cache = None if prefix is None else prefix.fork(row.at_most)
        row.cache, logits = yield from self._read_ids(ids[:, seen:], cache, row.at_most)
        self._choose(row, logits)

    def _prefix_of(self, row: ActiveRow) -> Generator[int, None, SharedPrefix | None]:
        """The longest beginning that is read already, or is worth reading now since rows to come have it too."""
        ids = row.job.prompt.ids
        known = self._prefixes.find(ids)
        if known is not None and not self._model.reads_alike(len(known.ids), len(ids)):
            known = None
        length = shared_length(ids, (job.prompt.ids for job in self._upcoming))
        seen = 0 if known is None else len(known.ids)
        size = self._cost.of(length)
        if length <= seen or not self._fits(size) or not self._model.reads_alike(length, len(ids)):
            return known
        cache = None if known is None else known.fork(length)
        inputs = torch.tensor([ids[seen:length]], device=self._device)
        cache, _ = yield from self._read_ids(inputs, cache, length)
        prefix = SharedPrefix(ids[:length], cache, size)
        self._prefixes.keep(prefix)
        return prefix

    def _read_ids(
        self, inputs: torch.Tensor, cache: list[LayerCache] | None, at_most: int
    ) -> Generator[int, None, tuple[list[LayerCache], torch.Tensor]]:
        reading = read_columns(self._model, inputs, cache, None, True, at_most)
        done = 0
        while True:
            try:
                progress = next(reading)
            except StopIteration as end:
                logits, cache = end.value
                return cache, logits
            yield progress.done - done
            done = progress.done

    @torch.no_grad()
    def _step(self) -> None:
        """Give each row its next token."""
        going_on = [row for row in self._rows if self._goes_on(row)]
        others = [row for row in self._rows if not self._goes_on(row)]
        for group in self._groups(going_on):
            self._advance(group)
        for row in others:
            row.cache = None
            window, _ = next_generation_input(row.text.columns, None, True, self._context)
            keep = row.text.length <= self._context
            logits, cache = result_of(read_columns(self._model, window, None, None, keep, row.at_most))
            row.cache = cast("list[LayerCache] | None", cache)
            self._choose(row, logits)

    def _goes_on(self, row: ActiveRow) -> bool:
        """Whether the row's cache serves its next token; else its text is read again."""
        is_within = row.text.length <= self._context
        return is_within and fitting_cache(self._model, row.cache, row.text.columns, None) is not None

    def _groups(self, rows: list[ActiveRow]) -> Iterator[list[ActiveRow]]:
        """The rows that go through the model together."""
        width = BLOCK if self._batch_invariant else max(len(rows), 1)
        for start in range(0, len(rows), width):
            yield rows[start : start + width]

    def _advance(self, rows: list[ActiveRow]) -> None:
        """Give rows within the context their next token."""
        tokens = torch.cat([row.text.columns[:, -1:] for row in rows])  # [B, 1]
        caches = [row.cache for row in rows if row.cache is not None]
        if self._batch_invariant:
            empty = BLOCK - len(rows)
            tokens = F.pad(tokens, (0, 0, 0, empty))
            caches += [self._model.new_cache(at_most=1) for _ in range(empty)]
        with FixedBlocks() if self._batch_invariant else nullcontext():
            logits, joined = self._model(tokens, join_rows(caches), use_cache=True, logits_to_keep=1)  # [B, 1, V]
        for row, cache, own in zip(rows, split_rows(joined), logits.split(1), strict=False):
            row.cache = cache
            self._choose(row, own[:, -1])

    def _choose(self, row: ActiveRow, logits: torch.Tensor) -> None:
        row.choose(logits)
        self._chosen += 1

    def _dismiss(self) -> Iterator[Finished]:
        """Let the rows go that have ended."""
        ended = [row for row in self._rows if row.is_finished]
        self._rows = [row for row in self._rows if not row.is_finished]
        for row in ended:
            yield Finished(row.job, row.summary())

    def _refuse(self, job: Job) -> Finished:
        row = ActiveRow(job, self._context, self._device, self._clock)
        needed = self._cost.of(row.at_most)
        row.fail(
            GenxError(
                f"the row's cache needs {needed:,} bytes for {row.at_most:,} positions; allowed: "
                f"{self._cache_bytes:,} for all caches (--kv-memory); a smaller max_new_tokens needs less"
            )
        )
        return Finished(job, row.summary())

    def _allocated(self) -> int:
        rows = sum(layer.nbytes for row in self._active() for layer in row.cache or ())
        return rows + self._prefixes.allocated
