"""Tiny models of every architecture, written by transformers: one entry here is all that a new architecture needs.

Sizes are odd on purpose: head sizes that are not hidden / heads, one key/value head, windows shorter than the prompt.
Weights are wide (std 0.6, norms near their identity), so that greedy text varies and every constant shows in it.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

import genx
from genx.core.base_model import BaseModel

CONTEXT = 40
REMOVED = object()  # as a change: the field is left out
VOCAB = 97
TOLERANCE = 5e-5  # of the largest |logit|


@dataclass(frozen=True)
class Recipe:
    """How to make one tiny model, and which changes of its config.json must show in its logits."""

    config: str  # transformers' configuration class
    sizes: Mapping[str, Any]
    visible: Mapping[str, Any] = field(default_factory=dict)
    rope: bool = True  # whether rope_parameters hold one theta for all layers and channels
    positions: str = "max_position_embeddings"


_LLAMA_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 52,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_WITHOUT_HEAD_DIM = {name: size for name, size in _LLAMA_SIZES.items() if name != "head_dim"}
_LAYER_NORM_SIZES = {name: size for name, size in _WITHOUT_HEAD_DIM.items() if name != "rms_norm_eps"}
_NEOX_SIZES = {name: size for name, size in _LAYER_NORM_SIZES.items() if name != "num_key_value_heads"}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1.5e5,
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 10,
}
# Texts of the tests' usual length are short to it; those that pass CONTEXT are long.
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e3,
    "short_factor": [1.0, 1.25, 0.75],
    "long_factor": [1.5, 2.5, 7.0],
    "attention_factor": 1.1875,
    "original_max_position_embeddings": CONTEXT,
}
_GPT_SIZES = {"vocab_size": VOCAB, "n_embd": 36, "n_layer": 3, "n_head": 3, "n_positions": CONTEXT}
_NO_IDS = {"bos_token_id": None, "eos_token_id": None}

RECIPES: Mapping[str, Recipe] = {
    "gpt": Recipe(
        "OpenAIGPTConfig",
        {**_GPT_SIZES, "layer_norm_epsilon": 1e-3},
        {"layer_norm_epsilon": 3e-3, "afn": "relu"},
        rope=False,
        positions="n_positions",
    ),
    "gpt2": Recipe(
        "GPT2Config",
        {**_GPT_SIZES, **_NO_IDS, "n_inner": 28, "layer_norm_epsilon": 1e-3},
        {"layer_norm_epsilon": 3e-3, "activation_function": "gelu"},
        rope=False,
        positions="n_positions",
    ),
    "llama": Recipe("LlamaConfig", _LLAMA_SIZES, {"rms_norm_eps": 3e-3, "hidden_act": "gelu"}),
    "llama-tied": Recipe(
        "LlamaConfig",
        {
            **_LLAMA_SIZES,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
        {"rms_norm_eps": 3e-3},
    ),
    "mistral": Recipe(
        "MistralConfig", {**_LLAMA_SIZES, "sliding_window": 7}, {"sliding_window": 6, "rms_norm_eps": 3e-3}
    ),
    "mixtral": Recipe(
        "MixtralConfig",
        # transformers' experts in bfloat16 want rows of whole 16 bytes
        {**_LLAMA_SIZES, "hidden_size": 40, "intermediate_size": 56, "sliding_window": 5}
        | {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"sliding_window": 6, "num_experts_per_tok": 3, "rms_norm_eps": 3e-3},
    ),
    "gemma": Recipe(
        "GemmaConfig",
        {**_LLAMA_SIZES, "num_key_value_heads": 1, "head_dim": 16},
        {"hidden_activation": "gelu", "rms_norm_eps": 3e-3},
    ),
    "qwen2": Recipe(
        "Qwen2Config",
        {**_WITHOUT_HEAD_DIM, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3},
    ),
    "qwen3": Recipe("Qwen3Config", _LLAMA_SIZES, {"rms_norm_eps": 3e-3}),
    "qwen3-moe": Recipe(
        "Qwen3MoeConfig",
        {**_LLAMA_SIZES, "hidden_size": 40, "moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}
        | {"mlp_only_layers": [1], "norm_topk_prob": True},
        {"norm_topk_prob": False, "num_experts_per_tok": 3},
    ),
    "gemma2": Recipe(
        "Gemma2Config",
        {**_LLAMA_SIZES, "sliding_window": 6, "query_pre_attn_scalar": 13, "tie_word_embeddings": False}
        | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 25.0},
        {"sliding_window": 7, "query_pre_attn_scalar": 14, "attn_logit_softcapping": 21.0}
        | {"final_logit_softcapping": None, "hidden_activation": "gelu"},
    ),
    "gemma3": Recipe(
        "Gemma3TextConfig",
        {**_LLAMA_SIZES, "sliding_window": 5, "query_pre_attn_scalar": 13, "tie_word_embeddings": False}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        {"sliding_window": 6, "layer_types": ["full_attention"] * 3, "query_pre_attn_scalar": 14}
        | {"rope_parameters": {"full_attention": {"rope_theta": 9e5}, "sliding_attention": {"rope_theta": 1e4}}},
        rope=False,
    ),
    "phi3": Recipe("Phi3Config", {**_WITHOUT_HEAD_DIM, "sliding_window": 7}, {"sliding_window": 8}),
    "phi3-partial": Recipe(
        "Phi3Config",
        {**_WITHOUT_HEAD_DIM, "hidden_size": 48} | {"rope_parameters": _PARTIAL | {"partial_rotary_factor": 0.75}},
        {"rope_parameters": _PARTIAL | {"partial_rotary_factor": 0.5}},
        rope=False,
    ),
    "phi3-longrope": Recipe(
        "Phi3Config",
        {**_WITHOUT_HEAD_DIM, "original_max_position_embeddings": CONTEXT, "rope_parameters": _LONGROPE},
        {"rope_parameters": {**_LONGROPE, "short_factor": [1.0, 1.25, 0.875]}},
        rope=False,
    ),
    "gpt-neox": Recipe(
        "GPTNeoXConfig",
        {**_NEOX_SIZES, "hidden_size": 48, "layer_norm_eps": 1e-3} | {"rope_parameters": _PARTIAL},
        {"layer_norm_eps": 3e-3, "use_parallel_residual": False, "rope_parameters": {**_PARTIAL, "rope_theta": 9e3}},
        rope=False,
    ),
    "olmo2": Recipe("Olmo2Config", _WITHOUT_HEAD_DIM, {"rms_norm_eps": 3e-3}),
    "smollm3": Recipe(
        "SmolLM3Config", {**_WITHOUT_HEAD_DIM, "no_rope_layer_interval": 2}, {"no_rope_layers": [1, 1, 1]}
    ),
    "starcoder2": Recipe(
        "Starcoder2Config",
        {**_LAYER_NORM_SIZES, "sliding_window": 6, "norm_epsilon": 1e-3},
        {"norm_epsilon": 3e-3, "sliding_window": 7, "hidden_act": "gelu"},
    ),
    "cohere": Recipe(
        "CohereConfig",
        {**_LAYER_NORM_SIZES, "layer_norm_eps": 1e-3, "logit_scale": 0.25, "use_qk_norm": True},
        {"layer_norm_eps": 3e-3, "logit_scale": 0.3},
    ),
    "gpt-oss": Recipe(
        "GptOssConfig",
        {**_LLAMA_SIZES, "hidden_size": 40, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"sliding_window": 6, "rope_parameters": _YARN},
        {"sliding_window": 7, "swiglu_limit": 3.0, "rope_parameters": {**_YARN, "factor": 5.0}},
        rope=False,
    ),
}


@dataclass(frozen=True)
class Tiny:
    """One tiny model: the folder that transformers wrote, and transformers' own model of it."""

    name: str
    recipe: Recipe
    folder: Path
    peer: PreTrainedModel

    def model(self, **changes: Any) -> BaseModel:
        """genx's model of the folder, in float32, with fields of config.json changed."""
        return genx.load_model(self.changed(**changes) if changes else self.folder, dtype=torch.float32)

    def changed(self, **changes: Any) -> Path:
        """A folder beside this one with the same weights and other fields in config.json."""
        folder = self.folder.parent / f"{self.folder.name}-{abs(hash(str(changes)))}"
        if not folder.exists():
            folder.mkdir()
            config = json.loads((self.folder / "config.json").read_text())
            changed = {name: value for name, value in {**config, **changes}.items() if value is not REMOVED}
            (folder / "config.json").write_text(json.dumps(changed))
            for weights in self.folder.glob("*.safetensors*"):
                (folder / weights.name).write_bytes(weights.read_bytes())
        return folder


def make_tiny(name: str, parent: Path, **changes: Any) -> Tiny:
    """Make the model of a recipe, with fields of its configuration changed, and save it under `parent`."""
    recipe = RECIPES[name]
    config = getattr(transformers, recipe.config)(**{**recipe.sizes, **copy.deepcopy(changes)})
    config._attn_implementation = "eager"
    torch.manual_seed(20)
    peer = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in peer.named_parameters():
            if "norm" in parameter_name or ".ln_" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.6)
    folder = parent / name
    peer.save_pretrained(folder)
    return Tiny(name, recipe, folder, peer)


def prompt(batch: int = 2, length: int = 13, seed: int = 3) -> torch.Tensor:
    """Token ids [batch, length]."""
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def distance(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, as a share of the largest |logit| of the reference."""
    return float((logits.double() - reference.double()).abs().max() / reference.double().abs().max())


def assert_near(logits: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal but for the order of float32 sums."""
    assert logits.shape == reference.shape
    assert distance(logits, reference) <= TOLERANCE
