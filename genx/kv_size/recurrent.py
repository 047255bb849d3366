"""What a recurrent layer (linear attention, Mamba, gated convolution) keeps of a sequence, whatever its length.

Counted in elements of one sequence: the recurrent matrix, and the last `kernel - 1` inputs of the short convolution, as
llama.cpp and vLLM store them (transformers keeps `kernel` of them).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genx.kv_size.fields import Fields, check_count


def state_elements(fields: Fields) -> tuple[int | None, str]:
    """Elements of one recurrent layer's state, or None and which fields are missing."""
    for recognised_by, rule in _RULES:
        if any(fields.find(name) is not None for name in recognised_by):
            return rule(fields)
    config = fields.part("linear_attn_config")
    if config is not None:
        return _kimi_delta(config)
    if fields.model_type == "minimax":
        return _lightning(fields)
    return None, "no linear_*, mamba_*, conv_L_cache or lru_width fields"


def _gated_delta(fields: Fields) -> tuple[int | None, str]:
    """Qwen3-Next and Qwen3.5: a matrix a value head, and a convolution over queries, keys and values."""
    names = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    values = _all(fields, names)
    if isinstance(values, str):
        return None, values
    key_heads, value_heads, key_size, value_size, kernel = values
    convolved = 2 * key_heads * key_size + value_heads * value_size
    return (kernel - 1) * convolved + value_heads * key_size * value_size, ""


def _mamba_2(fields: Fields) -> tuple[int | None, str]:
    """Mamba-2 as in Bamba, Granite 4, Nemotron-H, Zamba2 and Falcon-H1."""
    heads = _first(fields, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    groups = _first(fields, "mamba_n_groups", "n_groups", "mamba_ngroups")
    size = _first(fields, "mamba_d_state", "ssm_state_size")
    kernel = _first(fields, "mamba_d_conv", "conv_kernel")
    head_size = _first(fields, "mamba_head_dim", "mamba_headdim")
    if head_size is None:
        written = fields.find("mamba_d_head")
        head_size = written.value if written is not None and written.value != "auto" else None
    if head_size is None and heads is not None:
        inner = _first(fields, "mamba_d_ssm") or _expanded(fields)
        head_size = None if inner is None else inner // heads
    if heads is None or groups is None or size is None or kernel is None or head_size is None:
        return None, "a Mamba-2 layer needs its heads, head size, groups, state size and convolution width"
    inner = heads * check_count("mamba_d_head", head_size)
    return (kernel - 1) * (inner + 2 * groups * size) + inner * size, ""


def _mamba_1(fields: Fields) -> tuple[int | None, str]:
    size, kernel, inner = _first(fields, "mamba_d_state"), _first(fields, "mamba_d_conv"), _expanded(fields)
    if size is None or kernel is None or inner is None:
        return None, "a Mamba layer needs mamba_d_state, mamba_d_conv, mamba_expand and hidden_size"
    return (kernel - 1) * inner + inner * size, ""


def _pure_mamba(fields: Fields) -> tuple[int | None, str]:
    """Models of nothing but Mamba layers: mamba, falcon_mamba, mamba2."""
    size, kernel, heads = _first(fields, "state_size"), _first(fields, "conv_kernel"), fields.count("num_heads")
    groups = _first(fields, "n_groups") if heads is not None else 0
    inner = _first(fields, "intermediate_size") or _first(fields, "d_inner")
    if inner is None:
        hidden, expand = fields.count("hidden_size"), fields.count("expand")
        inner = None if hidden is None or expand is None else hidden * expand
    if size is None or kernel is None or inner is None or groups is None:
        return None, "a Mamba layer needs state_size, conv_kernel, expand and hidden_size"
    return (kernel - 1) * (inner + 2 * groups * size) + inner * size, ""


def _short_convolution(fields: Fields) -> tuple[int | None, str]:
    """LFM2: the last inputs of a convolution and nothing else."""
    hidden, width = fields.count("hidden_size"), fields.count("conv_L_cache")
    return (None, "hidden_size") if hidden is None or width is None else ((width - 1) * hidden, "")


def _linear_recurrent_unit(fields: Fields) -> tuple[int | None, str]:
    """RecurrentGemma: a vector, and a convolution over it."""
    width = fields.count("lru_width") or fields.count("hidden_size")
    kernel = fields.count("conv1d_width")
    return (None, "lru_width and conv1d_width") if width is None or kernel is None else (kernel * width, "")


def _kimi_delta(config: Mapping[str, Any]) -> tuple[int | None, str]:
    """Kimi Linear: a matrix a head, and three convolutions, over queries, keys and values."""
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    missing = [name for name in names if config.get(name) is None]
    if missing:
        return None, f"linear_attn_config lacks {', '.join(missing)}"
    heads, size, kernel = (check_count(f"linear_attn_config.{name}", config[name]) for name in names)
    return 3 * (kernel - 1) * heads * size + heads * size * size, ""


def _lightning(fields: Fields) -> tuple[int | None, str]:
    """MiniMax: a matrix a query head."""
    heads, size = fields.count("num_attention_heads"), fields.count("head_dim")
    return (None, "num_attention_heads and head_dim") if heads is None or size is None else (heads * size * size, "")


# By what a rule is recognised: the first one of which the configuration has a field.
_RULES: Sequence[tuple[tuple[str, ...], Callable[[Fields], tuple[int | None, str]]]] = (
    (("linear_num_value_heads", "linear_key_head_dim"), _gated_delta),
    (("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), _mamba_2),
    (("mamba_d_state",), _mamba_1),
    (("state_size",), _pure_mamba),
    (("conv_L_cache",), _short_convolution),
    (("conv1d_width", "lru_width"), _linear_recurrent_unit),
)


def _first(fields: Fields, *names: str) -> int | None:
    return next((value for name in names if (value := fields.count(name)) is not None), None)


def _expanded(fields: Fields) -> int | None:
    expand, hidden = fields.count("mamba_expand"), fields.count("hidden_size")
    return None if expand is None or hidden is None else expand * hidden


def _all(fields: Fields, names: Sequence[str]) -> tuple[int, ...] | str:
    values = [fields.count(name) for name in names]
    present = tuple(value for value in values if value is not None)
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    return present if not missing else f"no {', '.join(missing)}"
