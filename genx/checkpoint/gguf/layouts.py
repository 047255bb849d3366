"""Where llama.cpp puts each architecture's tensors, and how it lays their values out, against the published files.

A layer's tensor is `blk.NUMBER.STEM.weight` or `.bias`. Most differ in the stem alone. Sources: llama.cpp, gguf-py/
gguf/tensor_mapping.py for the names, conversion/*.py for the layouts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genx.config import ModelConfig

Change = Callable[[Tensor, ModelConfig], Tensor]
"""From llama.cpp's layout, the slowest dimension first, to the published one."""


@dataclass(frozen=True)
class Merged:
    """A published tensor that llama.cpp stores as several.

    Attributes:
        stems: what they are called, with `.weight` or `.bias`.
        published: what follows the number of the layer.
        join: makes it of them.
    """

    stems: tuple[str, ...]
    published: str
    join: Callable[..., Tensor]


@dataclass(frozen=True)
class Layout:
    """One architecture.

    Attributes:
        model: stems outside the layers, and their published names.
        layers: what comes before a layer's number in published names.
        layer: stems within a layer, and what follows the number in published names.
        changes: of the tensors that differ in layout, by their stem.
        experts: stems of stacked experts [E, out, in], and the name of one expert's, with {} for its number.
        merged: tensors that llama.cpp stores in several.
    """

    model: Mapping[str, str]
    layers: str
    layer: Mapping[str, str]
    changes: Mapping[str, Change] = field(default_factory=dict)
    experts: Mapping[str, str] = field(default_factory=dict)
    merged: tuple[Merged, ...] = ()


def _half_split(heads: int, tensor: Tensor) -> Tensor:
    """llama.cpp rotates neighbouring rows of a head, the published files rows half a head apart: [H * D, ...]."""
    return torch.unflatten(tensor, 0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _half_split_queries(tensor: Tensor, config: ModelConfig) -> Tensor:
    return _half_split(config.num_attention_heads, tensor)


def _half_split_keys(tensor: Tensor, config: ModelConfig) -> Tensor:
    return _half_split(config.num_key_value_heads, tensor)


def _less_one(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Gemma's norms multiply by 1 + weight; llama.cpp stores that sum."""
    del config
    return tensor - 1


def _input_first(tensor: Tensor, config: ModelConfig) -> Tensor:
    del config
    return tensor.t().contiguous() if tensor.dim() == 2 else tensor


def _head_by_head(tensor: Tensor, config: ModelConfig) -> Tensor:
    """All queries, then keys, then values [3 * H * D, ...], to the three of each head side by side."""
    return torch.unflatten(tensor, 0, (3, config.num_attention_heads, -1)).transpose(0, 1).flatten(0, 2)


def _interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Gates and inputs of all experts [E, I, C] or [E, I], in alternate columns: [E, C, 2I] or [E, 2I]."""
    both = torch.stack((gate, up), dim=2)  # [E, I, 2, C] or [E, I, 2]
    joined = both.flatten(1, 2)
    return joined.transpose(1, 2).contiguous() if joined.dim() == 3 else joined


def _inner_first(down: Tensor) -> Tensor:
    return down.transpose(1, 2).contiguous() if down.dim() == 3 else down


_DECODER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_BEFORE = {"ffn_norm": "post_attention_layernorm"}
_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}

_ROTATED: Mapping[str, Change] = {"attn_q": _half_split_queries, "attn_k": _half_split_keys}


def _decoder(*stems: Mapping[str, str], **further: object) -> Layout:
    layer = {gguf: published for part in stems for gguf, published in part.items()}
    return Layout(_DECODER, "model.layers.", layer, **further)  # type: ignore[arg-type]


def _norms_less_one(*stems: Mapping[str, str]) -> Layout:
    names = {"output_norm": "", **{stem: "" for part in stems for stem in part if stem.endswith("norm")}}
    return _decoder(*stems, changes=dict.fromkeys(names, _less_one))


_LLAMA = _decoder(_ATTENTION, _BEFORE, _GATED, changes=_ROTATED)
_QWEN3 = _decoder(_ATTENTION, _HEAD_NORMS, _BEFORE, _GATED)
_SANDWICH = {**_AFTER, "ffn_norm": "pre_feedforward_layernorm"}

LAYOUTS: Mapping[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": _LLAMA,
    "mixtral": _decoder(
        _ATTENTION,
        _BEFORE,
        {"ffn_gate_inp": "block_sparse_moe.gate"},
        changes=_ROTATED,
        experts={
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        },
    ),
    "gemma": _norms_less_one(_ATTENTION, _BEFORE, _GATED),
    "gemma2": _norms_less_one(_ATTENTION, _SANDWICH, _GATED),
    "gemma3_text": _norms_less_one(_ATTENTION, _HEAD_NORMS, _SANDWICH, _GATED),
    "qwen2": _decoder(_ATTENTION, _BEFORE, _GATED),
    "qwen3": _QWEN3,
    "qwen3_moe": _decoder(
        _QWEN3.layer,
        {"ffn_gate_inp": "mlp.gate"},
        experts={
            "ffn_gate_exps": "mlp.experts.{}.gate_proj",
            "ffn_up_exps": "mlp.experts.{}.up_proj",
            "ffn_down_exps": "mlp.experts.{}.down_proj",
        },
    ),
    "cohere": _decoder(_ATTENTION, _HEAD_NORMS, _GATED),
    "olmo2": _decoder(_ATTENTION, _HEAD_NORMS, _AFTER, _GATED),
    "phi3": _decoder(
        _ATTENTION,
        _BEFORE,
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
    ),
    "starcoder2": _decoder(_ATTENTION, _BEFORE, {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "gpt_oss": _decoder(
        _ATTENTION,
        {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
        merged=(
            Merged(("attn_sinks.weight",), "self_attn.sinks", lambda sinks: sinks),
            Merged(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "mlp.experts.gate_up_proj", _interleave),
            Merged(("ffn_gate_exps.bias", "ffn_up_exps.bias"), "mlp.experts.gate_up_proj_bias", _interleave),
            Merged(("ffn_down_exps.weight",), "mlp.experts.down_proj", _inner_first),
            Merged(("ffn_down_exps.bias",), "mlp.experts.down_proj_bias", _inner_first),
        ),
    ),
    "gpt2": Layout(
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.",
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        changes=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), _input_first),
    ),
    "gpt_neox": Layout(
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.",
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        changes={"attn_qkv": _head_by_head},
    ),
}
"""By the `model_type` of the published configuration."""
