"""The command line of genx kv-size, read into questions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from genx.cli.kv_size_inputs import Source, find_source, measure_weights
from genx.cli.terminal import Terminal
from genx.errors import UsageError
from genx.kv_size import quantities
from genx.kv_size.allocation import Request
from genx.kv_size.dtypes import FLOAT_DTYPES, KvDtype, config_dtype, find_dtype
from genx.kv_size.engines import ENGINES
from genx.kv_size.layer_kinds import parse_layer_types
from genx.kv_size.layers import Model, read_model, with_state_bytes
from genx.kv_size.plan import Question
from genx.kv_size.quantities import LARGEST_BATCH, LARGEST_TOKENS, parse_count, parse_counts

_LARGEST_SIZE = 1 << 40

# Options that set one field of the configuration.
_SIZES: Mapping[str, tuple[str, str]] = {
    "layers": ("--layers", "num_hidden_layers"),
    "heads": ("--heads", "num_attention_heads"),
    "kv_heads": ("--kv-heads", "num_key_value_heads"),
    "head_dim": ("--head-dim", "head_dim"),
    "value_dim": ("--value-dim", "v_head_dim"),
    "hidden_size": ("--hidden-size", "hidden_size"),
    "full_every": ("--full-every", "sliding_window_pattern"),
    "kv_lora_rank": ("--kv-lora-rank", "kv_lora_rank"),
    "rope_head_dim": ("--rope-head-dim", "qk_rope_head_dim"),
    "max_positions": ("--max-positions", "max_position_embeddings"),
}
# Options that make a model without a configuration.
_ENOUGH = ("layers", "layer_types")


def read_questions(terminal: Terminal, values: Mapping[str, Any]) -> Iterator[Question]:
    """One question for each model, number of tokens, batch, element type and engine.

    Args:
        values: the options by the names of genx.cli.kv_size.

    Raises:
        UsageError: a value is not allowed, or a model cannot be read.
    """
    overrides = _overrides(values)
    engines = _engines(values["engine"])
    memory = None if values["memory"] is None else quantities.parse_memory(values["memory"])
    reserve = quantities.parse_reserve(values["reserve"])
    for source in _sources(terminal, values):
        model = _model(source, overrides, values)
        if "genx" in engines:
            _check_that_genx_runs(model)
        weights = measure_weights(values["weights"], source)
        for sequences in _workloads(source, model, values):
            for key_dtype, value_dtype in _dtypes(model, values):
                for engine in engines:
                    request = _request(values, model, sequences, key_dtype, value_dtype, engine)
                    is_mix = values["mix"] is not None
                    yield Question(source.name, model, request, memory, weights, reserve, is_mix)


def _sources(terminal: Terminal, values: Mapping[str, Any]) -> Iterable[Source]:
    given = values["models"] or ()
    if given:
        return [find_source(name, terminal, hub=values["hub"]) for name in given]
    if not any(values[name] is not None for name in _ENOUGH):
        raise UsageError(
            "no model is given; give a config.json, a folder, a preset (--list shows them), or --layers, --kv-heads "
            "and --head-dim"
        )
    return [Source("flags", {})]


def _overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for text in values["set_fields"] or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set is {text!r}; allowed: NAME=VALUE, such as sliding_window_pattern=6")
        overrides[name] = _value(value)
    for option, (flag, field) in _SIZES.items():
        if values[option] is not None:
            overrides[field] = parse_count(values[option], flag, _LARGEST_SIZE)
    window = values["window"]
    if window is not None:
        overrides["sliding_window"] = -1 if window == "none" else parse_count(window, "--window", _LARGEST_SIZE, 1)
    if values["layer_types"] is not None:
        overrides["layer_types"] = parse_layer_types(values["layer_types"])
        overrides.setdefault("num_hidden_layers", len(overrides["layer_types"]))
    return overrides


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: 6, true, null, ["full"], gemma2."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _engines(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ENGINES:
            raise UsageError(f"--engine is {name!r}; allowed: {', '.join(ENGINES)}")
    return names


def _model(source: Source, overrides: Mapping[str, Any], values: Mapping[str, Any]) -> Model:
    try:
        model = read_model(source.config, overrides)
    except UsageError as error:
        raise UsageError(f"{source.name}: {error}") from error
    if values["state_bytes"] is None:
        return model
    return with_state_bytes(model, quantities.parse_bytes(values["state_bytes"], "--state-bytes"))


def _check_that_genx_runs(model: Model) -> None:
    from genx.models.registry import ARCHITECTURES  # imports no torch

    if model.model_type is not None and model.model_type not in ARCHITECTURES:
        raise UsageError(
            f"--engine genx is for what genx runs ({', '.join(ARCHITECTURES)}); model_type is {model.model_type!r}; "
            "use another engine"
        )


def _workloads(source: Source, model: Model, values: Mapping[str, Any]) -> list[tuple[tuple[int, int], ...]]:
    if values["mix"] is not None:
        if values["tokens"] is not None or values["batch"] != "1":
            raise UsageError("--mix is given with --tokens or --batch; allowed: --mix alone, which says both")
        return [quantities.parse_mix(values["mix"])]
    if values["tokens"] is not None:
        lengths = parse_counts(values["tokens"], "--tokens", LARGEST_TOKENS)
    elif model.positions is not None:
        lengths = (model.positions,)
    else:
        raise UsageError(f"{source.name} does not tell its context; give --tokens")
    batches = parse_counts(values["batch"], "--batch", LARGEST_BATCH, smallest=1)
    return [((batch, tokens),) for tokens in lengths for batch in batches]


def _dtypes(model: Model, values: Mapping[str, Any]) -> list[tuple[KvDtype, KvDtype]]:
    group = values["kv_group_size"]
    group_size = None if group is None else parse_count(group, "--kv-group-size", 1 << 16, smallest=1)
    names = values["kv_dtype"] or config_dtype(model.dtype) or "fp16"
    pairs = []
    for name in names.split(","):
        both = find_dtype(name, "--kv-dtype", group_size)
        key, value = values["kv_dtype_k"], values["kv_dtype_v"]
        pairs.append(
            (
                both if key is None else find_dtype(key, "--kv-dtype-k", group_size),
                both if value is None else find_dtype(value, "--kv-dtype-v", group_size),
            )
        )
    if group_size is not None and not any(dtype.name in ("int8", "int4") for pair in pairs for dtype in pair):
        raise UsageError(
            "--kv-group-size is given without int8 or int4; the other types' groups are fixed; leave it out"
        )
    return pairs


def _request(
    values: Mapping[str, Any],
    model: Model,
    sequences: tuple[tuple[int, int], ...],
    key_dtype: KvDtype,
    value_dtype: KvDtype,
    engine: str,
) -> Request:
    def knob(name: str, largest: int = 1 << 20) -> int:
        return parse_count(values[name], "--" + name.replace("_", "-"), largest, smallest=1)

    batch = sum(count for count, _ in sequences)
    slots = None if values["slots"] is None else knob("slots")
    if slots is not None and batch not in (1, slots):
        raise UsageError(f"--batch is {batch} and --slots {slots}; allowed: one of them, --slots shares --tokens")
    encoder = values["encoder_tokens"]
    return Request(
        sequences=sequences,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        engine=engine,
        state_bytes_per_element=_state_width(values),
        encoder_tokens=(
            model.encoder_positions or 0
            if encoder is None
            else parse_count(encoder, "--encoder-tokens", LARGEST_TOKENS)
        ),
        tensor_parallel=knob("tp"),
        pipeline_parallel=knob("pp"),
        block_size=knob("block_size"),
        max_num_batched_tokens=knob("max_num_batched_tokens", LARGEST_TOKENS),
        ubatch=knob("ubatch", LARGEST_TOKENS),
        slots=slots,
    )


def _state_width(values: Mapping[str, Any]) -> int:
    """Bytes of an element of a recurrent state; one that was given in bytes has elements of one."""
    dtype = find_dtype(values["state_dtype"], "--state-dtype")
    if dtype.name not in FLOAT_DTYPES:
        raise UsageError(f"--state-dtype is {dtype.name}; allowed: {', '.join(FLOAT_DTYPES)}")
    return 1 if values["state_bytes"] is not None else dtype.bits // 8
