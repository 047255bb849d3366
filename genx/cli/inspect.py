"""genx inspect: what a model is, from its headers and small files."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from genx.cli.commands import GroupedCommand
from genx.cli.inspect_facts import RUN_DTYPES, Inspection
from genx.cli.loading import find_model, name_of
from genx.cli.output import Output
from genx.cli.status import Row
from genx.cli.terminal import Terminal
from genx.errors import ExitCode
from genx.kv_size.quantities import human_bytes
from genx.messages import printable

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(cls=GroupedCommand)
def inspect(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Describe MODEL, a folder, GGUF file, name or hub id: sizes, tensors, context, tokenizer, cache and memory.

    Weights are not loaded. Memory is that of the weights and a cache of the whole context: with weights as they are
    stored and a cache in float32, as natively on a CPU, and all in float32 or bfloat16; a pass needs some more.
    """
    terminal: Terminal = context.obj
    found = Inspection(find_model(model, terminal))
    text = json.dumps(_as_object(found), indent=2, ensure_ascii=False) + "\n" if as_json else _lines(_rows(found))
    Output(terminal).write(text)
    return ExitCode.OK


def _as_object(found: Inspection) -> dict[str, Any]:
    tokenizer, defaults = found.tokenizer, found.defaults
    return {
        "name": name_of(found.path),
        "path": str(found.path),
        "format": found.format,
        "architecture": found.model_type,
        "supported": found.is_known,
        "parameters": found.parameters,
        "size_bytes": found.size_bytes,
        "tensors": [
            {"dtype": part.dtype, "tensors": part.tensors, "parameters": part.parameters, "bytes": part.nbytes}
            for part in found.stored_as
        ],
        "context": found.context,
        "vocab_size": found.config.get("vocab_size"),
        "tokenizer": None
        if tokenizer is None
        else {"vocab_size": tokenizer.vocab_size, "has_chat_template": tokenizer.has_chat_template},
        "eos_token_ids": list(defaults.eos_token_ids),
        "bos_token_id": defaults.bos_token_id,
        "pad_token_id": defaults.pad_token_id,
        "sampling": dict(defaults.sampling),
        "cache_bytes_per_token": {dtype: found.cache_bytes(dtype, 1) for dtype in RUN_DTYPES},
        "memory_bytes": {
            "as_stored": found.memory_as_stored(),
            **{dtype: found.memory_bytes(dtype) for dtype in RUN_DTYPES},
        },
    }


def _rows(found: Inspection) -> list[Row]:
    tokenizer = found.tokenizer
    unknown = "" if found.is_known else " (genx does not have it)"
    return [
        ("model", name_of(found.path)),
        ("path", str(found.path)),
        ("format", found.format),
        ("architecture", f"{found.model_type}{unknown}"),
        ("parameters", f"{found.parameters:,}"),
        ("weights", human_bytes(found.size_bytes)),
        *(
            ("" if number else "tensors", f"{part.tensors:,} {part.dtype}, {part.parameters:,} values")
            for number, part in enumerate(found.stored_as)
        ),
        ("context", "unknown" if found.context is None else f"{found.context:,} tokens"),
        ("tokenizer", "none" if tokenizer is None else f"{tokenizer.vocab_size:,} tokens"),
        ("chat template", "yes" if tokenizer is not None and tokenizer.has_chat_template else "no"),
        ("stop ids", _stop_ids(found)),
        ("as stored", f"{human_bytes(found.memory_as_stored())}, {_cache(found, 'float32')}"),
        *((f"in {dtype}", f"{human_bytes(found.memory_bytes(dtype))}, {_cache(found, dtype)}") for dtype in RUN_DTYPES),
    ]


def _cache(found: Inspection, dtype: str) -> str:
    whole = human_bytes(found.cache_bytes(dtype, found.context or 0))
    return f"of which cache {whole}; {human_bytes(found.cache_bytes(dtype, 1))} a token"


def _stop_ids(found: Inspection) -> str:
    tokenizer = found.tokenizer
    told = [
        str(token_id) if tokenizer is None else f"{token_id} {tokenizer.decode([token_id], skip_special_tokens=False)}"
        for token_id in found.defaults.eos_token_ids
    ]
    return ", ".join(told) or "none"


def _lines(rows: Sequence[Row]) -> str:
    width = max(len(label) for label, _ in rows)
    return "".join(f"{label:<{width}}  {printable(text)}\n" for label, text in rows)
