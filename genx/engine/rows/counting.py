"""What a run would need, told without its weights: tokens, rows that do not fit, and memory for caches. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from genx.engine.rows.budget import CacheCost
from genx.engine.rows.encode import Encoding
from genx.engine.rows.plan import Plan, Row
from genx.errors import GenxError


@dataclass(frozen=True)
class CountedRow:
    """The tokens of one row: of its prompt, and at most of its answer; or why it cannot be run."""

    row: Row
    prompt_tokens: int = 0
    max_new_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Counts:
    """All rows of a run, counted."""

    rows: Sequence[CountedRow]
    blank: int

    @property
    def fitting(self) -> list[CountedRow]:
        """Rows that can be run."""
        return [row for row in self.rows if row.error is None]

    @property
    def prompt_tokens(self) -> int:
        """Of all rows that can be run."""
        return sum(row.prompt_tokens for row in self.fitting)

    @property
    def max_new_tokens(self) -> int:
        """The most that all rows can give."""
        return sum(row.max_new_tokens for row in self.fitting)

    def past_context(self, context: int) -> int:
        """Rows whose text may grow past the context, where each token costs a pass over all of it."""
        return sum(row.prompt_tokens + row.max_new_tokens > context for row in self.fitting)

    def cache_bytes(self, cost: CacheCost, context: int, batch_size: int) -> int:
        """The most that the caches of a batch can take: those of its largest rows at once."""
        needs = sorted(
            (cost.of(min(row.prompt_tokens + row.max_new_tokens, context)) for row in self.fitting), reverse=True
        )
        return sum(needs[:batch_size])


def count_rows(plan: Plan, encoding: Encoding) -> Counts:
    """Encode every prompt of a plan and count."""
    rows = []
    blank = 0
    for row in plan.rows():
        if row is None:
            blank += 1
            continue
        try:
            if row.settings is None:
                raise GenxError(row.error or "the row asks for nothing")
            prompt = encoding.prompt(row)
        except GenxError as error:
            rows.append(CountedRow(row, error=str(error)))
        else:
            rows.append(CountedRow(row, len(prompt.ids), row.settings.max_new_tokens))
    return Counts(rows, blank)
