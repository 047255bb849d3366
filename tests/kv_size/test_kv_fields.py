"""Refusals that name the field and the flag, and layer kinds in every published form."""

from typing import Any

import pytest

from genx.errors import UsageError
from genx.kv_size.layer_kinds import parse_layer_types
from genx.kv_size.layers import read_model
from tests.kv_size.command import kv_object, refusal

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "hidden_size": 32, "max_position_embeddings": 64,
}  # fmt: skip


def kinds(config: dict[str, Any], **overrides: Any) -> str:
    """The kinds of a configuration's caches, by their first letters."""
    return "".join(layer.kind[0] for layer in read_model({**LLAMA, **config}, overrides).layers)


@pytest.mark.parametrize(
    ("name", "flag"),
    [("num_hidden_layers", "--layers"), ("hidden_size", "--head-dim")],
)
def test_a_missing_field_is_named_with_its_flag(name: str, flag: str) -> None:
    text = refusal(config={key: value for key, value in LLAMA.items() if key != name})
    assert flag in text
    assert name in text


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"])
@pytest.mark.parametrize("value", [-1, float("nan"), 1e300, 2.5, "8", True, [1], 10**9])
def test_impossible_values_are_refused_by_name(name: str, value: Any) -> None:
    assert name in refusal(config={**LLAMA, name: value})


def test_values_that_contradict_each_other() -> None:
    assert "divide the attention heads" in refusal(config={**LLAMA, "num_key_value_heads": 3})
    assert "--head-dim" in refusal(config={**LLAMA, "hidden_size": 33})
    assert "2 entries" in refusal(config={**LLAMA, "layer_types": ["full_attention"] * 2})
    assert "num_kv_shared_layers" in refusal(config={**LLAMA, "num_kv_shared_layers": 4})


def test_models_without_a_cache_or_with_another_one() -> None:
    assert "an encoder" in refusal(config={**LLAMA, "model_type": "bert"})
    assert "not covered" in refusal(config={**LLAMA, "model_type": "deepseek_v4"})


def test_an_unknown_model_type_is_counted_by_its_fields_and_says_so() -> None:
    found = kv_object("-t", "1", config={**LLAMA, "model_type": "brandnew"})
    assert found["kv_bytes"] == 128
    assert found["notes"] == ["model_type 'brandnew' is not known here: only what its fields say was used"]


def test_a_window_of_an_unknown_model_type_is_not_guessed() -> None:
    config = {**LLAMA, "model_type": "brandnew", "sliding_window": 4}
    assert "--full-every" in refusal(config=config)
    assert kv_object("-t", "10", "--full-every", "2", config=config)["kv_bytes"] == 32 * (2 * 10 + 2 * 4)
    assert kv_object("-t", "10", "--full-every", "0", config=config)["kv_bytes"] == 32 * 4 * 4
    assert kv_object("-t", "10", "--window", "none", config=config)["kv_bytes"] == 32 * 4 * 10
    assert "--full-every" in refusal(config={**config, "model_type": "qwen2_moe", "use_sliding_window": True})


def test_a_window_that_the_model_type_does_not_use_is_ignored_and_says_so() -> None:
    found = kv_object("-t", "10", config={**LLAMA, "sliding_window": 4})
    assert found["kv_bytes"] == 32 * 4 * 10
    assert found["fields"]["sliding_window"]["origin"] == "ignored: llama attends to everything"


def test_a_missing_part_of_mla_or_a_chunk_is_asked_for() -> None:
    assert "--rope-head-dim" in refusal(config={**LLAMA, "kv_lora_rank": 8})
    assert "attention_chunk_size" in refusal(config={**LLAMA, "layer_types": ["chunked_attention"] * 4})
    assert "--window" in refusal(config={**LLAMA, "layer_types": ["sliding_attention"] * 4})
    latent = {**LLAMA, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
    assert "qk_nope_head_dim" in refusal("--engine", "hf", config=latent)


def test_no_context_and_no_tokens() -> None:
    assert "--tokens" in refusal("--layers", "1", "--kv-heads", "1", "--head-dim", "8")
    assert "no model is given" in refusal()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"layer_types": ["full_attention", "linear_attention", "mamba", "conv"]}, "frrr"),
        ({"layers_block_type": ["mamba", "attention", "hybrid", "moe"], "mamba_d_state": 1}, "rff"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*E"}, "rf"),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"], "sliding_window": 4}, "rsrs"),
        ({"model_type": "minimax", "attn_type_list": [0, 1, 0, 1]}, "rfrf"),
        ({"model_type": "mimo", "hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 4}, "fssf"),
        ({"model_type": "bamba", "attn_layer_indices": [2]}, "rrfr"),
        ({"model_type": "lfm2", "full_attn_idxs": [0, 3], "conv_L_cache": 3}, "frrf"),
        ({"model_type": "zamba2", "hybrid_layer_ids": [1]}, "rfrr"),
        ({"model_type": "kimi", "linear_attn_config": {"full_attn_layers": [4]}}, "rrrf"),
        ({"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1}, "rfrf"),
        ({"model_type": "qwen3_next"}, "rrrf"),
        ({"model_type": "qwen3_5", "full_attention_interval": 2}, "rfrf"),
        ({"model_type": "mamba", "state_size": 16}, "rrrr"),
        ({"model_type": "falcon_h1"}, "ffff"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8, "head_dim": 4}, "cccf"),
        ({"model_type": "llama4_text", "no_rope_layers": [0, 1, 0, 1], "head_dim": 4}, "fcfc"),
        ({"model_type": "llama4_text", "attention_chunk_size": None, "head_dim": 4}, "ffff"),
        ({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 2]]}, "fsfs"),
        ({"model_type": "gpt_neo", "attention_layers": ["local"] * 4}, "ssss"),
        ({"model_type": "exaone4", "sliding_window": 4, "sliding_window_pattern": "LLG"}, "ssff"),
        ({"model_type": "cohere2", "sliding_window": 4}, "sssf"),
        ({"model_type": "gpt_oss"}, "sfsf"),
        ({"model_type": "starcoder2", "sliding_window": 4}, "ssss"),
        ({"model_type": "qwen3_moe", "sliding_window": 4, "use_sliding_window": True}, "ssss"),
        ({"model_type": "smollm3", "sliding_window": 4}, "ffff"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 8, "qk_rope_head_dim": 4, "index_head_dim": 2}, "lllliiii"),
        ({"model_type": "t5", "is_encoder_decoder": True, "num_decoder_layers": 2, "num_heads": 8, "d_kv": 4}, "fcfc"),
    ],
)
def test_layer_kinds_in_every_published_form(config: dict[str, Any], expected: str) -> None:
    assert kinds(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"hybrid_override_pattern": "MX**"},
        {"attn_layer_indices": [9]},
        {"attn_layer_indices": "all"},
        {"attention_types": "global"},
        {"model_type": "exaone4", "sliding_window": 4, "sliding_window_pattern": "LXG"},
        {"layer_types": [1, 2, 3, 4]},
        {"attention_chunk_size": 8},
        {"num_key_value_heads": [1, 2]},
        {"multi_query": "yes", "model_type": "falcon"},
        {"block_configs": [1]},
    ],
)
def test_forms_that_make_no_sense(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kinds(config)


@pytest.mark.parametrize(
    ("config", "elements"),
    [
        ({"model_type": "jamba", "mamba_d_state": 16, "mamba_d_conv": 4}, 3 * 64 + 64 * 16),
        (
            {"mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 4,
             "mamba_expand": 2},
            3 * (64 + 2 * 2 * 5) + 64 * 5,
        ),
        ({"mamba_num_heads": 8, "mamba_head_dim": 3, "n_groups": 2, "ssm_state_size": 5, "conv_kernel": 4},
         3 * (24 + 20) + 24 * 5),
        ({"state_size": 16, "conv_kernel": 4, "expand": 2}, 3 * 64 + 64 * 16),
        ({"state_size": 16, "conv_kernel": 4, "intermediate_size": 64, "num_heads": 4, "n_groups": 1},
         3 * (64 + 32) + 64 * 16),
        ({"conv_L_cache": 3}, 2 * 32),
        ({"lru_width": 24, "conv1d_width": 4}, 4 * 24),
        ({"linear_attn_config": {"num_heads": 2, "head_dim": 4, "short_conv_kernel_size": 4}}, 3 * 3 * 8 + 2 * 16),
        ({"model_type": "minimax", "head_dim": 4}, 8 * 16),
    ],
)  # fmt: skip
def test_states_of_recurrent_layers(config: dict[str, Any], elements: int) -> None:
    model = read_model({**LLAMA, "layer_types": ["linear_attention"] * 4, **config})
    assert [layer.state_elements for layer in model.layers] == [elements] * 4


@pytest.mark.parametrize(
    "config",
    [{"mamba_n_heads": 8}, {"mamba_d_state": 1}, {"state_size": 1}, {"linear_num_value_heads": 1}, {"lru_width": 2},
     {"linear_attn_config": {}}],
)  # fmt: skip
def test_a_state_whose_fields_are_missing_is_unknown(config: dict[str, Any]) -> None:
    assert not read_model({**LLAMA, "layer_types": ["linear_attention"] * 4, **config}).state_is_known


def test_the_indexer_of_sparse_attention_is_counted() -> None:
    config = {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    assert kv_object("-t", "1", "--kv-dtype", "bf16", config=config)["kv_bytes"] == 4 * (576 + 128) * 2
    assert kv_object("-t", "1", "--kv-dtype", "fp8_ds_mla", config=config)["kv_bytes"] == 4 * (656 + 132)


def test_layer_types_by_hand() -> None:
    assert parse_layer_types("full*2,sliding") == ["full", "full", "sliding"]
    assert parse_layer_types("(sliding*2, full)*2") == ["sliding", "sliding", "full"] * 2
    with pytest.raises(UsageError, match="KIND\\*COUNT"):
        parse_layer_types("full*x")
    assert kinds({}, layer_types=["full", "recurrent", "none", "full"]) == "frf"


def test_a_flag_wins_over_the_file_and_null_takes_a_field_away() -> None:
    config = {**LLAMA, "layer_types": ["full_attention"] * 4}
    assert kv_object("-t", "1", "--kv-heads", "4", config=config)["kv_bytes"] == 256
    assert kv_object("-t", "1", "--set", "num_key_value_heads=null", config=config)["kv_bytes"] == 512
    assert kv_object("-t", "1", "--set", "num_key_value_heads=4", config=config)["fields"]["num_key_value_heads"] == {
        "value": 4, "origin": "--kv-heads",
    }  # fmt: skip
    assert "NAME=VALUE" in refusal("--set", "layers", config=config)
    assert kinds({}, model_type="mistral", sliding_window=4) == "ssss"
