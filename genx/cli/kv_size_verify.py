"""genx kv-size --verify: load a model, generate, and compare the cache's real bytes with the prediction."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genx.cli.kv_size_inputs import Source, find_source
from genx.cli.output import Output
from genx.cli.terminal import Terminal
from genx.errors import ExitCode, UsageError
from genx.kv_size.allocation import Request
from genx.kv_size.dtypes import FLOAT_DTYPES, find_dtype
from genx.kv_size.engines import size
from genx.kv_size.layers import read_model
from genx.kv_size.quantities import LARGEST_BATCH, LARGEST_TOKENS, parse_count
from genx.messages import printable

_DEFAULT_TOKENS = 512
_NEW_TOKENS = 8  # the rest is read as a prompt, which is much faster


def verify_models(terminal: Terminal, values: Mapping[str, Any]) -> int:
    """Verify each folder of the command line.

    Args:
        values: the options by the names of genx.cli.kv_size.

    Returns:
        0 if every prediction is exact, 1 if one is not.

    Raises:
        UsageError: a model is no checkpoint folder, or an option says something that a real run cannot do.
    """
    if not values["models"]:
        raise UsageError("--verify is given without a model; give a checkpoint folder")
    rows = [_verify(find_source(name, terminal, hub=False), values) for name in values["models"]]
    output = Output(terminal)
    if values["as_json"]:
        output.write(json.dumps(rows, indent=2) + "\n")
    else:
        output.write("".join(_line(row) for row in rows))
    return ExitCode.OK if all(row["difference"] == 0 for row in rows) else ExitCode.FAILED


def _verify(source: Source, values: Mapping[str, Any]) -> dict[str, Any]:
    folder = source.weights
    if folder is None or not folder.is_dir():
        raise UsageError(f"--verify loads a model, and {printable(source.name)} is no checkpoint folder; give one")
    described = read_model(source.config)
    batch = parse_count(values["batch"], "--batch", LARGEST_BATCH, smallest=1)
    longest = min(described.positions or _DEFAULT_TOKENS, _DEFAULT_TOKENS)
    tokens = longest if values["tokens"] is None else parse_count(values["tokens"], "--tokens", LARGEST_TOKENS, 2)
    allocated, dtype_name = _allocated(folder, tokens, batch, values["kv_dtype"])
    dtype = find_dtype(dtype_name, "the model's dtype")
    request = Request(((batch, tokens),), dtype, dtype, "genx")
    predicted = size(described, request).kv_bytes
    floor = size(described, Request(((batch, tokens),), dtype, dtype, "ideal")).kv_bytes
    return {
        "model": source.name,
        "tokens": tokens,
        "batch": batch,
        "kv_dtype": dtype.name,
        "predicted_bytes": predicted,
        "allocated_bytes": allocated,
        "difference": allocated - predicted,
        "floor_bytes": floor,
    }


def _allocated(folder: Path, tokens: int, batch: int, dtype: str | None) -> tuple[int, str]:
    """Bytes of the cache after generating to `tokens` tokens, and the element type they were in."""
    import torch

    from genx.checkpoint import load_model
    from genx.core.generation import Sampled

    if dtype is not None and find_dtype(dtype, "--kv-dtype").name not in FLOAT_DTYPES:
        raise UsageError(f"--kv-dtype is {dtype!r}; with --verify allowed: {', '.join(FLOAT_DTYPES)}")
    model = load_model(folder, None if dtype is None else _TORCH_NAMES[find_dtype(dtype, "--kv-dtype").name])
    limit = model.config.max_position_embeddings
    if tokens > limit:
        raise UsageError(f"--tokens is {tokens:,}; with --verify allowed: up to the model's context, {limit:,}")
    new = min(_NEW_TOKENS, tokens - 1)
    prompt = torch.zeros((batch, tokens - new), dtype=torch.long)
    allocated = 0
    for event in model.generate_steps(prompt, new, do_sample=False):
        if isinstance(event, Sampled):
            allocated = event.cache_bytes
    return allocated, str(next(model.parameters()).dtype).removeprefix("torch.")


_TORCH_NAMES: Mapping[str, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _line(row: Mapping[str, Any]) -> str:
    verdict = "exact" if row["difference"] == 0 else f"off by {row['difference']:,} bytes"
    return (
        f"{printable(row['model'])}: {row['tokens']:,} tokens x {row['batch']:,}, {row['kv_dtype']}: predicted "
        f"{row['predicted_bytes']:,}, allocated {row['allocated_bytes']:,} bytes: {verdict}; "
        f"the floor is {row['floor_bytes']:,}\n"
    )
