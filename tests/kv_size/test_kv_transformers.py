"""The calculator against transformers itself: the defaults of its configurations, and the bytes of its cache."""

import dataclasses
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from genx.kv_size.allocation import Request
from genx.kv_size.dtypes import KV_DTYPES
from genx.kv_size.engines import size
from genx.kv_size.layers import read_model
from genx.kv_size.model_types import MODEL_TYPES, Windows

FP32 = KV_DTYPES["fp32"]

# What the class keeps under another name, or only works out while it is made.
KEPT_ELSEWHERE = {"full_attention_interval", "global_head_dim", "use_sliding_window", "sliding_window"}
KNOWN_CLASSES = sorted(name for name in MODEL_TYPES if name in CONFIG_MAPPING and "vl" not in name)


def defaults_of(model_type: str) -> transformers.PreTrainedConfig:
    config = CONFIG_MAPPING[model_type]()
    text = config.get_text_config(decoder=True)
    text.allow_global_per_layer_attribute_access = True
    return text


@pytest.mark.parametrize("model_type", KNOWN_CLASSES)
def test_defaults_are_those_of_the_configuration_class(model_type: str) -> None:
    known, actual = MODEL_TYPES[model_type], defaults_of(model_type)
    for name, value in {**known.defaults, **known.nested_defaults}.items():
        if name not in KEPT_ELSEWHERE:
            assert getattr(actual, name) == value, name


@pytest.mark.parametrize(
    "model_type", [name for name in KNOWN_CLASSES if MODEL_TYPES[name].windows is Windows.ALL_BUT_NTH]
)
def test_window_patterns_are_those_of_the_configuration_class(model_type: str) -> None:
    every = MODEL_TYPES[model_type].full_every
    assert every is not None
    types = defaults_of(model_type).layer_types
    full = [index for index, kind in enumerate(types) if kind == "full_attention"]
    assert full == [index for index in range(len(types)) if (index + 1) % every == 0]
    assert defaults_of(model_type).sliding_window == MODEL_TYPES[model_type].defaults["sliding_window"]


SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
DEEPSEEK = {
    **SIZES, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "first_k_dense_replace": 6,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": {**SIZES, "sliding_window": 8},
    "gemma2": {**SIZES, "head_dim": 10, "sliding_window": 8},
    "gemma3_text": {**SIZES, "head_dim": 10, "sliding_window": 8},
    "gpt_oss": {**SIZES, "head_dim": 10, "sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "qwen2": {**SIZES, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4},
    "falcon": {
        "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "multi_query": True,
        "new_decoder_architecture": False,
    },
    "gpt2": {"vocab_size": 50, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64},
}  # fmt: skip


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("tokens", [5, 8, 21])
def test_engine_hf_predicts_the_tensors_of_a_dynamic_cache(model_type: str, tokens: int) -> None:
    held = held_bytes(model_type, MODELS[model_type], tokens)
    described = read_model({"model_type": model_type, **MODELS[model_type]})
    assert held == size(described, Request(((2, tokens),), FP32, FP32, "hf")).kv_bytes


def test_transformers_holds_mla_uncompressed_or_since_lately_as_the_latent() -> None:
    described = read_model({"model_type": "deepseek_v3", **DEEPSEEK})
    latent, uncompressed = (
        size(described, Request(((2, 9),), FP32, FP32, engine)).kv_bytes for engine in ("ideal", "hf")
    )
    assert held_bytes("deepseek_v3", DEEPSEEK, 9) in (latent, uncompressed)
    assert (latent, uncompressed) == (6 * 18 * 12 * 4, 6 * 18 * 4 * (10 + 5) * 4)


def held_bytes(model_type: str, sizes: dict[str, Any], tokens: int) -> int:
    """Bytes of the tensors in the cache after reading two rows of `tokens` tokens."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**sizes)).eval()
    with torch.no_grad():
        cache = model(torch.zeros(2, tokens, dtype=torch.long), use_cache=True).past_key_values
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)


def test_engine_hf_holds_what_gemma_3n_layers_share_once() -> None:
    sizes = {**SIZES, "num_hidden_layers": 10, "num_kv_shared_layers": 3, "head_dim": 10, "sliding_window": 8}
    config = CONFIG_MAPPING["gemma3n_text"](**sizes)
    described = read_model({"model_type": "gemma3n_text", **sizes})
    cache = transformers.DynamicCache(config=config)
    kept = sum(type(layer).__name__ != "DummyLayer" for layer in cache.layers)
    assert kept == sum(layer.shares_with is None for layer in described.layers) == 7


def test_layers_are_plain_records() -> None:
    layer = read_model({"model_type": "llama", **SIZES}).layers[0]
    assert dataclasses.asdict(layer) == {
        "kind": "full", "kv_heads": 2, "key_size": 6, "value_size": 6, "window": None, "state_elements": 0,
        "shares_with": None, "uncompressed": None, "number": 0,
    }  # fmt: skip
