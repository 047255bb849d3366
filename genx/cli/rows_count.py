"""genx run -i ... --count: what a run would need, without loading a weight."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genx.checkpoint import open_source, read_config_json
from genx.checkpoint.quantization import WEIGHT_BITS
from genx.cli.loading import read_config
from genx.cli.output import Output
from genx.cli.requests import ModelRequest
from genx.cli.rows_progress import duration
from genx.cli.terminal import Terminal
from genx.engine.arithmetic import STORED, Arithmetic
from genx.engine.result import as_json_line
from genx.engine.rows.budget import CacheCost
from genx.engine.rows.counting import CountedRow, Counts
from genx.errors import CheckpointError, ExitCode
from genx.kv_size.quantities import human_bytes

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_MOST_ERRORS = 10


def report_counts(
    terminal: Terminal, counts: Counts, folder: Path, wanted: ModelRequest, batch_size: int, *, as_json: bool
) -> int:
    """Print what a run over these rows needs, and return the exit code that the run would have at best."""
    if wanted.threads is not None:
        import torch

        torch.set_num_threads(wanted.threads)
    arithmetic = wanted.arithmetic()
    weights = _held(folder, arithmetic)
    model = _skeleton(folder, arithmetic.dtype or weights)
    cost = CacheCost(model.config, model.layer_windows, model.cache_dtype.itemsize)
    context = model.config.max_position_embeddings
    sizes = sorted({*_BATCH_SIZES, batch_size})
    report = {
        "rows": len(counts.rows),
        "blank_lines": counts.blank,
        "failing_rows": len(counts.rows) - len(counts.fitting),
        "rows_past_context": counts.past_context(context),
        "context": context,
        "prompt_tokens": counts.prompt_tokens,
        "max_new_tokens": counts.max_new_tokens,
        "cache_bytes": {str(size): counts.cache_bytes(cost, context, size) for size in sizes},
        "seconds_at_least": _seconds_at_least(model, weights, counts, arithmetic.device, batch_size),
    }
    output = Output(terminal)
    if as_json:
        output.write(as_json_line({**report, "tokens": [_row_object(row) for row in counts.rows]}))
    else:
        output.write("".join(f"{line}\n" for line in _lines(report, counts, batch_size)))
    if not report["failing_rows"]:
        return ExitCode.OK
    return ExitCode.SOME_ROWS_FAILED if counts.fitting else ExitCode.FAILED


def _held(folder: Path, arithmetic: Arithmetic) -> str:
    """How the weights will be held; they need not be there yet."""
    configured = read_config(folder).dtype
    try:
        return arithmetic.held(open_source(folder), configured)
    except CheckpointError:
        is_kept = arithmetic.weights == STORED and configured in WEIGHT_BITS
        return configured if configured and is_kept else "float32"


def _skeleton(folder: Path, dtype: str) -> "BaseModel":
    import torch

    from genx.checkpoint.skeleton import build_skeleton
    from genx.models.registry import model_class

    architecture = model_class(str(read_config_json(folder).get("model_type")))
    model = build_skeleton(folder, architecture, read_config(folder), stored=0)
    return model.to(getattr(torch, dtype))


def _seconds_at_least(model: "BaseModel", weights: str, counts: Counts, device: str, batch_size: int) -> float | None:
    """What this machine's memory and arithmetic, measured now, do not allow to undercut."""
    from genx.bench.machine import measure_rates
    from genx.bench.sweep import Point
    from genx.bench.work import work_of

    rows = counts.fitting
    if not rows or not counts.max_new_tokens:
        return None
    dtype = str(model.cache_dtype).removeprefix("torch.")
    mean_prompt = max(counts.prompt_tokens // len(rows), 1)
    batch = min(batch_size, len(rows))
    point = Point(mean_prompt, max(counts.max_new_tokens // len(rows), 1), batch, 0, dtype, None, weights)
    rates, work = measure_rates(device, (dtype,)), work_of(model, point)
    work = replace(work, weight_bytes=round(work.weight_bytes * WEIGHT_BITS[weights] / WEIGHT_BITS[dtype]))
    reading = counts.prompt_tokens / work.prefill_limit_tps(rates, 1, mean_prompt, dtype)
    return reading + counts.max_new_tokens / work.decode_limit_tps(rates, batch, dtype)


def _row_object(row: CountedRow) -> dict[str, Any]:
    own = row.row
    return {
        "id": own.id,
        "row": own.record.number,
        **({} if own.file is None else {"file": own.file}),
        "prompt_tokens": row.prompt_tokens,
        "max_new_tokens": row.max_new_tokens,
        "error": row.error,
    }


def _lines(report: dict[str, Any], counts: Counts, batch_size: int) -> list[str]:
    tokens = [row.prompt_tokens for row in counts.fitting]
    spread = f" (shortest {min(tokens):,}, median {statistics.median(tokens):,.0f}, longest {max(tokens):,})"
    caches = ", ".join(f"{size}: {human_bytes(need)}" for size, need in report["cache_bytes"].items())
    lines = [
        f"rows: {report['rows']:,}, {report['failing_rows']:,} cannot be run, {counts.blank:,} blank lines",
        f"prompt tokens: {counts.prompt_tokens:,}" + (spread if tokens else ""),
        f"new tokens: at most {counts.max_new_tokens:,}",
        f"past the context of {report['context']:,}: {report['rows_past_context']:,} rows",
        f"caches, at most, by batch size: {caches}",
    ]
    if report["seconds_at_least"] is not None:
        seconds = duration(report["seconds_at_least"])
        lines.append(
            f"time: at least {seconds} at batch size {batch_size}, as fast as this machine reads and multiplies"
        )
    failing = [row for row in counts.rows if row.error is not None]
    for row in failing[:_MOST_ERRORS]:
        of = f" of {row.row.file}" if row.row.file else ""
        lines.append(f"row {row.row.record.number}{of}: {row.error}")
    if len(failing) > _MOST_ERRORS:
        lines.append(f"and {len(failing) - _MOST_ERRORS:,} more that cannot be run")
    return lines
