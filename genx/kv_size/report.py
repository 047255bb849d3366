"""Answers as plain data: what `genx kv-size --json` and `--csv` print.

`--json` prints an array with one object for each model, number of tokens, batch, element type and engine, in the order
of the command line. Sizes are whole bytes; under `--tp` and `--pp` they are those of the fullest GPU.

    model             str    as it was named
    model_type        str?   the configuration's
    tokens            int    of each sequence; of the longest one for a mix
    batch             int    sequences
    mix               [[int, int]]?  (sequences, tokens) of `--mix`
    kv_dtype          str    of keys and values, `K/V` where they differ
    engine            str    whose rule it is
    engine_rule       str    that rule, with the version it was read in
    kv_bytes          int    keys and values
    state_bytes       int?   recurrent states; null if the configuration does not tell them
    total_bytes       int?   both; null if one is
    bytes_per_token   int    of one more token of one sequence at this length
    floor_bytes       int    kv_bytes of the engine `ideal`
    full_bytes        int    kv_bytes of the engine `full`
    layers            [{}]   groups of equal layers: kind, layers, kv_heads, key_size, value_size, window, shares_with,
                             positions (of one layer, all sequences), kv_bytes, state_bytes, note
    fields            {}     name -> {value, origin}
    positions         int?   the context the model was made for
    encoder_tokens    int
    tp, pp            int
    replicated        bool   devices hold copies, since there are fewer key/value heads than devices
    weights_bytes     int?   of all devices together; null if left out
    memory_bytes      int?   of one device, or of all where --tp and --pp are 1; null, as all below, without --memory
    reserve_bytes     int?
    fits              bool?
    shortfall_bytes   int?   what is missing, 0 if it fits
    max_tokens        int?   largest context at this batch; 0 if nothing fits; null for a mix
    max_batch         int?   most sequences of this length
    max_mixes         int?   how many times the whole mix fits
    fit_table         [{}]?  tokens, batch, total_bytes, fits
    notes, warnings   [str]
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from genx.kv_size.allocation import Part
from genx.kv_size.engines import ENGINES
from genx.kv_size.plan import Answer, Fit

# What a row of CSV holds, of the object that JSON holds.
CSV_COLUMNS = (
    "model", "model_type", "tokens", "batch", "kv_dtype", "engine", "kv_bytes", "state_bytes", "total_bytes",
    "bytes_per_token", "floor_bytes", "full_bytes", "tp", "pp", "memory_bytes", "weights_bytes", "reserve_bytes",
    "fits", "shortfall_bytes", "max_tokens", "max_batch", "max_mixes",
)  # fmt: skip


def as_object(answer: Answer) -> dict[str, Any]:
    """One answer as JSON's kinds of values."""
    question, request = answer.question, answer.question.request
    return {
        "model": question.name,
        "model_type": question.model.model_type,
        "tokens": request.longest,
        "batch": request.batch,
        "mix": [list(part) for part in request.sequences] if question.is_mix else None,
        "kv_dtype": dtype_name(answer),
        "engine": request.engine,
        "engine_rule": ENGINES[request.engine].rule,
        "kv_bytes": answer.size.kv_bytes,
        "state_bytes": answer.size.state_bytes,
        "total_bytes": answer.size.total_bytes,
        "bytes_per_token": answer.bytes_per_token,
        "floor_bytes": answer.floor_bytes,
        "full_bytes": answer.full_bytes,
        "layers": [_group(part) for part in answer.size.parts],
        "fields": {
            name: {"value": field.value, "origin": field.origin} for name, field in question.model.fields.items()
        },
        "positions": question.model.positions,
        "encoder_tokens": request.encoder_tokens,
        "tp": request.tensor_parallel,
        "pp": request.pipeline_parallel,
        "replicated": answer.replicated,
        "weights_bytes": question.weights,
        **_fit(answer.fit),
        "notes": list(question.model.notes),
        "warnings": list(answer.warnings),
    }


def as_json(answers: Sequence[Answer]) -> str:
    """All answers as a JSON array."""
    return json.dumps([as_object(answer) for answer in answers], indent=2, allow_nan=False) + "\n"


def as_csv(answers: Sequence[Answer]) -> str:
    """All answers as CSV with a header; null is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_object(answer) for answer in answers)
    return out.getvalue()


def dtype_name(answer: Answer) -> str:
    """`q8_0`, or `q8_0/q4_0` where keys and values differ."""
    key, value = answer.question.request.key_dtype, answer.question.request.value_dtype
    return key.name if key == value else f"{key.name}/{value.name}"


def _group(part: Part) -> dict[str, Any]:
    layer = part.layer
    return {
        "kind": layer.kind,
        "layers": part.layers,
        "kv_heads": layer.kv_heads,
        "key_size": layer.key_size,
        "value_size": layer.value_size,
        "window": layer.window,
        "shares_with": layer.shares_with,
        "positions": part.positions,
        "kv_bytes": part.kv_bytes,
        "state_bytes": part.state_bytes,
        "note": part.note,
    }


def _fit(fit: Fit | None) -> dict[str, Any]:
    if fit is None:
        names = "memory_bytes reserve_bytes fits shortfall_bytes max_tokens max_batch max_mixes fit_table"
        return dict.fromkeys(names.split())
    return {
        "memory_bytes": fit.budget.memory,
        "reserve_bytes": fit.budget.reserve,
        "fits": fit.fits,
        "shortfall_bytes": fit.shortfall,
        "max_tokens": fit.max_tokens,
        "max_batch": fit.max_batch,
        "max_mixes": fit.max_copies,
        "fit_table": [
            {"tokens": cell.tokens, "batch": cell.batch, "total_bytes": cell.total_bytes, "fits": cell.fits}
            for cell in fit.table
        ],
    }
