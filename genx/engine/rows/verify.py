"""Rows generated again, each alone, to see whether what ran beside them has changed them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from genx.engine.rows.active_row import Job
from genx.engine.rows.batch import Batch, Finished
from genx.engine.rows.prefixes import common_length
from genx.engine.rows.run import Remembered
from genx.engine.stream import Summary, stream

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel


def differences(model: "BaseModel", rows: Iterable[Remembered], *, batch_invariant: bool) -> Iterator[str]:
    """A line for each row whose tokens are others when it is generated alone.

    Args:
        model: that generated them.
        rows: what was generated.
        batch_invariant: generate in blocks, as the rows were; otherwise as `genx run` does it.
    """
    for entry in rows:
        ids = (_in_a_block if batch_invariant else _as_one_prompt)(model, entry.job)
        if ids != entry.ids:
            of = f" of {entry.row.file}" if entry.row.file else ""
            token = 1 + common_length(ids, entry.ids)
            yield f"row {entry.row.record.number}{of}, generated alone, differs from its token {token} on"


def _as_one_prompt(model: "BaseModel", job: Job) -> tuple[int, ...]:
    *_, summary = stream(
        model,
        job.new_decoder(),
        job.prompt,
        job.settings,
        stop_token_ids=job.stop_token_ids,
        show_eos=job.show_eos,
    )
    assert isinstance(summary, Summary)
    return summary.ids


def _in_a_block(model: "BaseModel", job: Job) -> tuple[int, ...]:
    batch = Batch(model, size=1, cache_bytes=1 << 62, batch_invariant=True)
    [finished] = [event for event in batch.run(iter([job])) if isinstance(event, Finished)]
    return finished.summary.ids
