"""Rows that generate together: in one pass each gets its next token, while prompts are read beside them.

Continuous batching (iteration-level scheduling: Yu et al. 2022, Orca, section 3.2) with prompts read in chunks in the
steps of the others (Agrawal et al. 2023, SARATHI, arXiv:2308.16369), over the pieces of the core's own loop. No step is
spent on padding or on rows that have ended. Shapes: see the legend in genx/core/base_model.py.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import torch

from genx.core.cache import LayerCache, cache_nbytes
from genx.core.generation import next_generation_input
from genx.core.loop import fitting_cache, read_columns, result_of
from genx.engine.continuation import Summary
from genx.engine.rows.active_row import ActiveRow, Job, choose_tokens
from genx.engine.rows.budget import CacheCost
from genx.engine.rows.invariance import BLOCK
from genx.engine.rows.prefixes import Prefixes, SharedPrefix, shared_length
from genx.engine.rows.reading import Part, groups_to_read, parts_to_read, read_parts
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


class Batch:
    """Generates rows together; in a turn each row that is read gets one token, and others are read on."""

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
        self._rows: list[ActiveRow] = []
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
            yield from self._begin_rows()
            if not self._rows and not self._upcoming:
                return
            prompt_tokens = self._step()
            yield from self._dismiss()
            yield Advanced(prompt_tokens, self._chosen, self._allocated())
            self._chosen = 0

    def _begin_rows(self) -> Iterator[Finished]:
        """Let rows begin while there is room."""
        # Rows to come may begin with what one is being read for.
        while self._upcoming and len(self._rows) < self._size and not any(row.shares for row in self._rows):
            if self._admit(self._upcoming[0]):
                row = ActiveRow(self._upcoming.popleft(), self._context, self._device, self._clock)
                self._rows.append(row)
                if not row.is_finished:
                    self._prepare(row)
            elif self._rows:
                return  # until another row leaves
            else:
                yield self._refuse(self._upcoming.popleft())

    def _admit(self, job: Job) -> bool:
        """Whether the row's cache fits; kept prefixes make room for it once no row is left to wait for."""
        needed = self._cost.of(job.positions(self._context))
        if not self._fits(needed) and not self._rows:
            self._prefixes.release(lambda: self._fits(needed))
        return self._fits(needed)

    def _fits(self, more: int) -> bool:
        reserved = sum(self._cost.of(row.at_most) + self._cost.of(row.shares) for row in self._rows)
        return reserved + self._prefixes.nbytes + more <= self._cache_bytes

    def _prepare(self, row: ActiveRow) -> None:
        """Give a new row its cache: that of the longest beginning that is read already, or an empty one.

        A row whose prompt begins as others to come is stopped there for a moment, and leaves a copy for them.
        """
        ids = row.job.prompt.ids
        row.cache = self._model.new_cache(row.at_most, len(ids))
        if self._batch_invariant:
            return
        known = self._prefixes.find(ids)
        if known is not None and self._model.reads_alike(len(known.ids), len(ids)):
            row.cache, row.read = known.fork(row.at_most), len(known.ids)
        length = shared_length(ids, (job.prompt.ids for job in self._upcoming))
        if length > row.read and self._fits(self._cost.of(length)) and self._model.reads_alike(length, len(ids)):
            row.shares = length

    @torch.no_grad()
    def _step(self) -> int:
        """Read on in every row whose turn it is, and choose a token where a row is read; return prompt tokens read."""
        going = [row for row in self._rows if not row.is_finished]
        alone = [row for row in going if row.generates and not self._goes_on(row)]
        parts = parts_to_read([row for row in going if row not in alone], self._batch_invariant)
        prompt_tokens = sum(part.length for part in parts if not part.row.generates)
        for group in groups_to_read(parts, self._batch_invariant):
            self._advance(group)
        for row in alone:
            self._read_again(row)
        return prompt_tokens

    def _goes_on(self, row: ActiveRow) -> bool:
        """Whether the row's cache serves its next token; else its text is read again."""
        is_within = row.text.length <= self._context
        return is_within and fitting_cache(self._model, row.cache, row.text.columns, None) is not None

    def _advance(self, parts: Sequence[Part]) -> None:
        """Read some of each row within the context, and choose where a row is read."""
        try:
            logits = read_parts(self._model, parts, self._batch_invariant)  # [rows, V]
        except (torch.OutOfMemoryError, MemoryError) as error:
            if all(part.row.generates for part in parts):
                raise _out_of_memory(error) from error
            for part in parts:  # alone, and from its text: some layers have read more of it than others
                self._read_again(part.row)
            return
        chosen: list[tuple[ActiveRow, torch.Tensor]] = []
        for part, own in zip(parts, torch.split(logits, 1), strict=True):
            part.row.read += part.length
            if part.row.shares and part.row.read == part.row.shares:
                self._keep_prefix(part.row)
            if not part.row.unread:
                chosen.append((part.row, own))
        choose_tokens(chosen)
        self._chosen += len(chosen)

    def _keep_prefix(self, row: ActiveRow) -> None:
        """Keep a copy of what the row has read so far for those that begin alike."""
        length, row.shares = row.shares, 0
        assert row.cache is not None
        copies = [layer.fork(length) for layer in row.cache]
        self._prefixes.keep(SharedPrefix(row.job.prompt.ids[:length], copies, self._cost.of(length)))

    def _read_again(self, row: ActiveRow) -> None:
        """The next token of a row whose text, or the window at its end, has to be read from scratch."""
        row.cache, row.read, row.shares = None, row.text.length, 0
        window, _ = next_generation_input(row.text.columns, None, True, self._context)
        keep = row.text.length <= self._context
        try:
            logits, cache = result_of(read_columns(self._model, window, None, None, keep, row.at_most))
        except (torch.OutOfMemoryError, MemoryError) as error:
            row.fail(_out_of_memory(error))
            return
        row.cache = cast("list[LayerCache] | None", cache)
        choose_tokens([(row, logits)])
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
        rows = sum(cache_nbytes(row.cache) for row in self._rows)
        return rows + self._prefixes.allocated


def _out_of_memory(error: Exception) -> GenxError:
    return GenxError(f"out of memory: {error}; a smaller --batch-size or --kv-memory needs less")
