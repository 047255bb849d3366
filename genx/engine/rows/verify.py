"""Rows generated again, each alone, to see whether what ran beside them has changed them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from genx.engine.rows.prefixes import common_length
from genx.engine.rows.run import Sampled
from genx.engine.stream import Summary, stream

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel


def differences(model: "BaseModel", rows: Iterable[Sampled]) -> Iterator[str]:
    """A line for each row whose tokens are others when it is generated alone, as `genx run` does it."""
    for entry in rows:
        job = entry.job
        *_, summary = stream(
            model,
            job.new_decoder(),
            job.prompt,
            job.settings,
            stop_token_ids=job.stop_token_ids,
            show_eos=job.show_eos,
        )
        assert isinstance(summary, Summary)
        if summary.ids != entry.ids:
            token = 1 + common_length(summary.ids, entry.ids)
            of = f" of {entry.row.file}" if entry.row.file else ""
            yield f"row {entry.row.record.number}{of}, generated alone, differs from its token {token} on"
