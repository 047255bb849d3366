"""Reading configurations: both spellings, null as absent, and refusal of what makes no model."""

import json
from pathlib import Path

import pytest

from genx.config import read_json
from genx.errors import ConfigError
from genx.models.gpt2 import GPT2
from genx.models.llama import Llama
from genx.models.mistral import Mistral
from genx.models.mixtral import Mixtral

SIZES = {
    "vocab_size": 30,
    "hidden_size": 20,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
}


def test_short_keys_are_the_same_model() -> None:
    short = {"vocab_size": 30, "embed_dim": 20, "num_q_heads": 2, "num_layers": 1, "max_position_embeddings": 16}
    assert Llama.read_config(short) == Llama.read_config(SIZES)


def test_an_explicit_head_size_wins() -> None:
    """huggingface/candle#2358: head_dim was taken as hidden / heads."""
    assert Llama.read_config(SIZES).head_dim == 10
    found = Llama.read_config({**SIZES, "head_dim": 16, "num_key_value_heads": 1})
    assert (found.head_dim, found.num_key_value_heads) == (16, 1)
    assert Llama.read_config({**SIZES, "head_dim": None}).head_dim == 10


@pytest.mark.parametrize("window", [None, 0, -1])
def test_no_window(window: int | None) -> None:
    """EricLBuehler/mistral.rs#615: a null window was refused."""
    assert Mistral({**SIZES, "sliding_window": window}).layer_windows == (None,)


def test_llama_has_no_window() -> None:
    assert Llama({**SIZES, "sliding_window": 4}).layer_windows == (None,)


@pytest.mark.parametrize(
    "fields", [{"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}]
)
def test_theta_in_either_place(fields: dict[str, object]) -> None:
    """vllm-project/vllm PR #28542: it was missing, or silently the default."""
    assert Mixtral.read_config({**SIZES, **fields}).rope.theta == 5e5
    assert Mixtral.read_config(SIZES).rope.theta == 1e6


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_under_either_name(key: str) -> None:
    """ModelCloud/GPTQModel PR #1804."""
    assert Llama.read_config({**SIZES, key: "bfloat16"}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, r"no hidden_size \(or embed_dim\)"),
        ({"num_attention_heads": None}, r"no num_attention_heads \(or num_heads or num_q_heads\)"),
        ({"embed_dim": 24}, "hidden_size is 20 and embed_dim is 24"),
        ({"vocab_size": -3}, "vocab_size is -3"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"num_attention_heads": 3}, "does not divide into 3"),
        ({"rms_norm_eps": float("nan")}, "norm_eps is nan"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"hidden_act": 3}, "hidden_act is 3"),
        ({"attention_dropout": 1.5}, "attn_pdrop is 1.5"),
    ],
)
def test_what_makes_no_model_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Llama.read_config({**SIZES, **change})


@pytest.mark.parametrize(
    "field", [{"add_cross_attention": True}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}]
)
def test_a_gpt2_that_genx_does_not_compute_is_refused(field: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        GPT2({"vocab_size": 30, "n_embd": 20, "n_head": 2, "n_layer": 1, "n_positions": 16, **field})


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match="'softsign'; allowed: gelu"):
        Llama({**SIZES, "hidden_act": "softsign"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8: byte 7"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_json(path, "the configuration")
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_allowed(tmp_path: Path) -> None:
    """microsoft/playwright-cli#274."""
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SIZES).encode())
    assert read_json(path, "the configuration") == SIZES


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: No such file"):
        read_json(tmp_path / "config.json", "the configuration")
