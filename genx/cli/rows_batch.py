"""What generates the rows of a run: the model on this machine, or workers of a Ray cluster that have one each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from genx.checkpoint.read_ahead import read_ahead
from genx.cli.loading import load_model
from genx.cli.requests import ModelRequest
from genx.cli.rows_request import RowsRequest
from genx.cli.status import Status
from genx.cli.terminal import Terminal

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel
    from genx.engine.rows.run import JobBatch


@contextmanager
def ready_batch(
    folder: Path, digest: str, wanted: ModelRequest, rows: RowsRequest, terminal: Terminal, status: Status
) -> Iterator[tuple["JobBatch", "BaseModel | None"]]:
    """A batch that is ready to run, and its model if that is on this machine.

    Args:
        folder: the model.
        digest: `model_digest` of it.
        wanted: how the model is to run.
        rows: how rows are to run.
        terminal: whose clock times rows.
        status: shows what takes a while.

    Raises:
        GenxError: the model cannot be loaded here, or the cluster cannot be reached.
    """
    if rows.ray is None:
        read_ahead(folder)
        model = load_model(folder, wanted, status).model
        yield _on_this_machine(model, wanted, rows, terminal), model
        return
    from genx.engine.rows.ray_cluster import RayCluster, silenced
    from genx.engine.rows.remote import RemoteBatch
    from genx.engine.rows.worker import Work

    work = Work(
        model=folder.absolute(),
        digest=digest,
        arithmetic=wanted.arithmetic(),
        threads=wanted.threads,
        batch_size=rows.batch_size,
        cache_bytes=rows.kv_memory,
        batch_invariant=rows.batch_invariant,
    )
    status.hide()  # Rich takes over sys.stderr while it shows a line, and would give it back too late
    with silenced():
        try:
            status.show("connecting to Ray")
            with RayCluster(rows.ray, work) as cluster:
                yield RemoteBatch(cluster, rows.batch_size), None
        finally:
            status.hide()


def _on_this_machine(model: "BaseModel", wanted: ModelRequest, rows: RowsRequest, terminal: Terminal) -> "JobBatch":
    from genx.engine.free_memory import free_memory_bytes
    from genx.engine.rows.batch import Batch
    from genx.engine.rows.budget import worked_out_budget

    cache_bytes = rows.kv_memory
    if cache_bytes is None:
        cache_bytes = worked_out_budget(free_memory_bytes(wanted.arithmetic().device))
    return Batch(
        model,
        size=rows.batch_size,
        cache_bytes=cache_bytes,
        batch_invariant=rows.batch_invariant,
        clock=terminal.clock,
    )
