"""Which kind each layer is: every published way of saying it, read into one list of names."""

import re
from collections.abc import Sequence

from genx.errors import UsageError
from genx.kv_size.fields import Fields, check_count
from genx.kv_size.model_types import Windows

FULL, SLIDING, CHUNKED, RECURRENT, HYBRID, NONE = "full", "sliding", "chunked", "recurrent", "hybrid", "none"

# The names of `layer_types` in transformers, of older files, and of --layer-types.
_KINDS = {
    **dict.fromkeys(("full", "full_attention", "attention", "global", "global_attention", "indexed_attention"), FULL),
    **dict.fromkeys(("sliding", "sliding_attention", "local", "local_attention", "sliding_window"), SLIDING),
    **dict.fromkeys(("chunked", "chunked_attention"), CHUNKED),
    **dict.fromkeys(("recurrent", "linear_attention", "linear", "mamba", "mamba2", "conv"), RECURRENT),
    "hybrid": HYBRID,  # attention and a recurrent state side by side
    **dict.fromkeys(("none", "moe", "mlp"), NONE),
}
_NEMOTRON_H = {"M": RECURRENT, "*": FULL, "-": NONE, "E": NONE}


def layer_kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of each of the `layers` layers.

    Raises:
        UsageError: a name is unknown, the list has another length, or the file leaves open which layers slide.
    """
    if "sliding_window_pattern" in fields.overrides and "layer_types" not in fields.overrides:
        return _from_window(fields, layers)
    named = fields.names("layer_types")
    if named is not None:
        return _from_names(named, layers, "layer_types")
    pattern = fields.find("hybrid_override_pattern")
    if pattern is not None:
        return _from_nemotron(pattern.value, layers)
    for reader in (_from_block_types, _from_type_list, _from_indices, _from_periods, _from_chunks, _from_gpt_neo):
        kinds = reader(fields, layers)
        if kinds is not None:
            return kinds
    if fields.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return [RECURRENT] * layers
    if fields.model_type == "falcon_h1":
        return [HYBRID] * layers
    return _from_window(fields, layers)


def parse_layer_types(text: str) -> list[str]:
    """`full*4,sliding*20` or `(sliding*5,full)*8`, as --layer-types takes it, spelled out."""
    grouped = re.fullmatch(r"\(([^()]*)\)\*(\d{1,4})", text.replace(" ", ""))
    if grouped:
        return parse_layer_types(grouped[1]) * int(grouped[2])
    names: list[str] = []
    for part in text.split(","):
        name, times, count = part.strip().partition("*")
        if times and not re.fullmatch(r"[0-9]{1,4}", count):
            raise UsageError(f"--layer-types has {part!r}; allowed: KIND or KIND*COUNT, such as sliding*5,full")
        names += [name] * (int(count) if times else 1)
    return names


def _from_names(names: Sequence[str], layers: int, where: str) -> list[str]:
    if len(names) != layers:
        raise UsageError(
            f"{where} has {len(names)} entries and num_hidden_layers is {layers}; give one of them with "
            "--layer-types or --layers"
        )
    unknown = next((name for name in names if name not in _KINDS), None)
    if unknown is not None:
        raise UsageError(
            f"{where} has {unknown!r}, a kind of layer that is not known here; known: {', '.join(_KINDS)}; say what it "
            "keeps with --layer-types"
        )
    return [_KINDS[name] for name in names]


def _from_nemotron(pattern: object, layers: int) -> list[str]:
    if not isinstance(pattern, str) or not set(pattern) <= _NEMOTRON_H.keys() or len(pattern) != layers:
        raise UsageError(
            f"hybrid_override_pattern is {pattern!r}; allowed: {layers} characters out of M, *, - and E; "
            "or give --layer-types"
        )
    return [_NEMOTRON_H[letter] for letter in pattern]


def _from_block_types(fields: Fields, layers: int) -> list[str] | None:
    """RecurrentGemma: a pattern that repeats."""
    block = fields.names("block_types")
    if block is None or not block:
        return None
    kinds = _from_names((block * layers)[:layers], layers, "block_types")
    return [SLIDING if kind == FULL else kind for kind in kinds]


def _from_type_list(fields: Fields, layers: int) -> list[str] | None:
    """MiniMax's attn_type_list (1 is full attention) and MiMo's hybrid_layer_pattern (1 is a sliding window)."""
    flags = fields.counts("attn_type_list", layers)
    if flags is not None:
        return [FULL if flag else RECURRENT for flag in flags]
    flags = fields.counts("hybrid_layer_pattern", layers)
    return None if flags is None else [SLIDING if flag else FULL for flag in flags]


def _from_indices(fields: Fields, layers: int) -> list[str] | None:
    """Which layers attend, by number: Bamba, LFM2, Zamba2 and, counted from 1, Kimi Linear."""
    for name in ("attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"):
        field = fields.find(name)
        if field is not None:
            chosen = HYBRID if name == "hybrid_layer_ids" else FULL
            attending = _numbers(name, field.value, layers)
            return [chosen if index in attending else RECURRENT for index in range(layers)]
    config = fields.part("linear_attn_config")
    if config is None or "full_attn_layers" not in config:
        return None
    attending = _numbers("linear_attn_config.full_attn_layers", config["full_attn_layers"], layers + 1)
    return [FULL if index + 1 in attending else RECURRENT for index in range(layers)]


def _numbers(name: str, value: object, below: int) -> set[int]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} is {value!r}; allowed: a list of layer numbers")
    numbers = {check_count(f"{name}[{index}]", number, 0) for index, number in enumerate(value)}
    if any(number >= below for number in numbers):
        raise UsageError(f"{name} names layer {max(numbers)}; allowed: below {below}")
    return numbers


def _from_periods(fields: Fields, layers: int) -> list[str] | None:
    """Jamba: one attention layer a period. Qwen3-Next and Qwen3.5: every n-th layer attends."""
    period = fields.count("attn_layer_period")
    if period is not None:
        offset = fields.count("attn_layer_offset", 0) or 0
        return [FULL if index % period == offset else RECURRENT for index in range(layers)]
    interval = fields.count("full_attention_interval")
    return None if interval is None else _every_nth(layers, interval, RECURRENT)


def _from_chunks(fields: Fields, layers: int) -> list[str] | None:
    """Llama 4: layers with rotary positions attend inside chunks, those without to everything."""
    if fields.find("attention_chunk_size") is None or fields.explicit_null("attention_chunk_size"):
        return None
    rotary = fields.counts("no_rope_layers", layers) if fields.find("no_rope_layers") else None
    if rotary is not None:
        return [CHUNKED if flag else FULL for flag in rotary]
    interval = fields.count("no_rope_layer_interval")
    if interval is None:
        raise fields.missing("layer_types", "says which layers attend inside chunks of attention_chunk_size")
    return _every_nth(layers, interval, CHUNKED)


def _from_gpt_neo(fields: Fields, layers: int) -> list[str] | None:
    """GPT-Neo: attention_layers, or attention_types as [[["global", "local"], 12]]."""
    named = fields.names("attention_layers")
    if named is not None:
        return _from_names(named, layers, "attention_layers")
    field = fields.find("attention_types")
    if field is None:
        return None
    try:
        spelled_out = [
            name for block, times in field.value for name in [*block] * check_count("attention_types", times)
        ]
    except (TypeError, ValueError) as error:
        raise UsageError("attention_types is no list of [names, count]; give --layer-types") from error
    return _from_names(spelled_out, layers, "attention_types")


def _from_window(fields: Fields, layers: int) -> list[str]:
    """One `sliding_window` for the file: which layers it means depends on the model type, or on a pattern."""
    window = window_size(fields)
    if window is None:
        return [FULL] * layers
    pattern = fields.find("sliding_window_pattern")
    if pattern is not None and isinstance(pattern.value, str):
        return _from_letters(pattern.value, layers)
    every = fields.count("sliding_window_pattern", 0)
    if every is not None:
        return _every_nth(layers, every, SLIDING) if every else [SLIDING] * layers
    rule = fields.known.windows if fields.known else None
    if rule is Windows.ALL_BUT_NTH and fields.known and fields.known.full_every:
        every = fields.known.full_every
        fields.note("sliding_window_pattern", every, f"from {fields.model_type} defaults")
        return _every_nth(layers, every, SLIDING)
    if rule is Windows.FROM_LAYER:
        first = fields.require("max_window_layers", "says from which layer on the window of use_sliding_window holds")
        return [SLIDING if index >= first else FULL for index in range(layers)]
    if rule in (Windows.EVERY_LAYER, Windows.EVERY_LAYER_IF_USED) or (rule is None and fields.model_type is None):
        return [SLIDING] * layers
    if rule is Windows.IGNORED:
        fields.note("sliding_window", window, f"ignored: {fields.model_type} attends to everything")
        return [FULL] * layers
    raise UsageError(
        f"sliding_window is {window}, and which layers of the model type {fields.model_type!r} it holds for is not "
        "known here; say with --full-every N (each N-th layer is full; 0: none is), --layer-types, or --window none"
    )


def _from_letters(pattern: str, layers: int) -> list[str]:
    """EXAONE 4: `LLLG`, local and global; the last layer is global whatever the pattern."""
    if not pattern or not set(pattern) <= {"L", "G"}:
        raise UsageError(f"sliding_window_pattern is {pattern!r}; allowed: a number, or letters L and G such as LLLG")
    kinds = [SLIDING if pattern[index % len(pattern)] == "L" else FULL for index in range(layers)]
    return [*kinds[:-1], FULL]


def _every_nth(layers: int, every: int, others: str) -> list[str]:
    return [FULL if (index + 1) % every == 0 else others for index in range(layers)]


def window_size(fields: Fields) -> int | None:
    """The sliding window, None where there is none: null, 0, -1, or use_sliding_window false."""
    used = fields.truth("use_sliding_window")
    field = fields.find("sliding_window")
    if field is None:
        return None
    if used is False:
        fields.note("sliding_window", field.value, "ignored: use_sliding_window is false")
        return None
    if field.value in (0, -1) and not isinstance(field.value, bool):
        fields.note("sliding_window", field.value, f"{field.origin}: no window")
        return None
    return check_count("sliding_window", field.value)
