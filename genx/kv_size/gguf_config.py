"""A GGUF file's metadata as the configuration it was converted from.

The keys: genx/gguf/names.py.
"""

from collections.abc import Mapping
from typing import Any

from genx.errors import UsageError
from genx.gguf.header import LongArray
from genx.gguf.names import CONFIG_NAMES, MODEL_TYPES


def config_of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `config.json` that the size of the cache depends on.

    Raises:
        UsageError: the file names no architecture, or a list in it is too long to be one value a layer.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise UsageError("the GGUF file names no general.architecture; allowed: a language model's file")
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    for key, value in own.items():
        if isinstance(value, LongArray):
            raise UsageError(f"{architecture}.{key} has {value.length:,} entries; allowed: one a layer")
    config: dict[str, Any] = {name: own[key] for key, name in CONFIG_NAMES.items() if key in own}
    config["model_type"] = MODEL_TYPES.get(architecture, architecture)
    config["multi_query"] = False  # a GGUF file gives the number of key/value heads, or means all heads
    _add_heads(config, own)
    _add_latent(config, own)
    _add_windows(config, own)
    _add_state(config, own)
    if isinstance(config.get("num_hidden_layers"), int) and isinstance(config.get("num_nextn_predict_layers"), int):
        config["num_hidden_layers"] -= config["num_nextn_predict_layers"]  # block_count counts them in
    return config


def _add_heads(config: dict[str, Any], own: Mapping[str, Any]) -> None:
    heads, kv_heads = own.get("attention.head_count"), own.get("attention.head_count_kv")
    if isinstance(heads, list):
        heads = max(heads, default=0) or None
    config["num_attention_heads"] = heads
    config["num_key_value_heads"] = kv_heads
    if isinstance(kv_heads, list) and 0 in kv_heads:
        config["layer_types"] = _types_of_heads(kv_heads, own)


def _types_of_heads(kv_heads: list[Any], own: Mapping[str, Any]) -> list[str]:
    """A layer without key/value heads is recurrent, or, with a feed-forward size of its own list, nothing but that."""
    sizes = own.get("feed_forward_length")
    return [
        "full" if heads else "none" if isinstance(sizes, list) and index < len(sizes) and sizes[index] else "recurrent"
        for index, heads in enumerate(kv_heads)
    ]


def _add_latent(config: dict[str, Any], own: Mapping[str, Any]) -> None:
    if "kv_lora_rank" not in config:
        return
    rotary = own.get("rope.dimension_count")
    key = own.get("attention.key_length_mla", own.get("attention.key_length"))
    config["qk_rope_head_dim"] = rotary
    config["v_head_dim"] = own.get("attention.value_length_mla", own.get("attention.value_length"))
    if isinstance(key, int) and isinstance(rotary, int):
        config["qk_nope_head_dim"] = key - rotary


def _add_windows(config: dict[str, Any], own: Mapping[str, Any]) -> None:
    pattern = own.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding" if slides else "full" for slides in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern


def _add_state(config: dict[str, Any], own: Mapping[str, Any]) -> None:
    """llama.cpp's ssm keys, under the names of the architecture that they describe."""
    inner, size = own.get("ssm.inner_size"), own.get("ssm.state_size")
    kernel, heads, groups = own.get("ssm.conv_kernel"), own.get("ssm.time_step_rank"), own.get("ssm.group_count")
    if inner is None or size is None or kernel is None:
        return
    if config["model_type"] in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
        config |= {
            "linear_num_key_heads": groups,
            "linear_num_value_heads": heads,
            "linear_key_head_dim": size,
            "linear_value_head_dim": inner // heads if heads else None,
            "linear_conv_kernel_dim": kernel,
        }
    elif groups:
        config |= {
            "mamba_n_heads": heads,
            "mamba_d_ssm": inner,
            "mamba_n_groups": groups,
            "mamba_d_state": size,
            "mamba_d_conv": kernel,
        }
    else:
        config |= {"state_size": size, "conv_kernel": kernel, "intermediate_size": inner}
