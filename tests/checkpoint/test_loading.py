"""Strict loading: what fits is read exactly, everything that does not fit is named."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import genx
from genx.checkpoint import load_model
from genx.checkpoint.safetensors_header import DTYPE_BITS
from genx.errors import ArgumentError, CheckpointError, ConfigError
from genx.models.llama import Llama
from genx.models.mistral import Mistral
from tests.fixtures.folders import (
    assert_same_weights,
    halves,
    logits_of,
    tiny_config,
    tiny_tensors,
    write_config,
    write_folder,
    write_safetensors_by_hand,
    write_shards,
)

TYPES = ["openai-gpt", "gpt2", "llama", "mistral", "mixtral", "gemma"]


@pytest.fixture
def config() -> dict[str, Any]:
    return tiny_config()


@pytest.fixture
def tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    return tiny_tensors(config)


def refusal(folder: Path, dtype: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, dtype=dtype)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("model_type", TYPES)
def test_every_tensor_arrives_where_it_belongs(model_type: str, tmp_path: Path) -> None:
    config = tiny_config(model_type)
    tensors = tiny_tensors(config)
    model = load_model(write_folder(tmp_path, config, tensors))
    loaded = model.state_dict()
    assert loaded.keys() - tensors.keys() == ({model.head_name} if model.head_is_tied else set())
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor), name
    assert not model.training
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in model.parameters())
    assert torch.isfinite(logits_of(model)).all()


def test_shards_equal_the_whole(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    whole = load_model(write_folder(tmp_path / "whole", config, tensors))
    one, two = halves(tensors)
    sharded = load_model(write_shards(tmp_path / "sharded", config, {"x.safetensors": one, "y.safetensors": two}))
    assert_same_weights(sharded, whole)


def test_every_fault_is_named(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    del tensors["model.norm.weight"]
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(24, 16)
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, 16)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(24, 16, dtype=torch.int8)
    assert refusal(write_folder(tmp_path, config, tensors)) == (
        f"{tmp_path} does not hold the llama model of its config.json: "
        "2 missing: model.layers.1.mlp.up_proj.weight [24, 16], model.norm.weight [16]; "
        "1 unexpected: model.layers.2.mlp.up_proj.weight [24, 16]; "
        "1 wrongly shaped: model.layers.0.self_attn.k_proj.weight [16, 16], expected [8, 16]; "
        "1 not float: model.layers.0.mlp.up_proj.weight int8, expected a float of 16 bits or more; "
        "get the complete checkpoint with the config.json that belongs to it"
    )


def test_a_long_list_of_faults_is_cut_and_counted(config: dict[str, Any], tmp_path: Path) -> None:
    message = refusal(write_folder(tmp_path, config, {"model.norm.weight": torch.zeros(16)}))
    assert "19 missing: " in message
    assert " and 11 more;" in message


def test_names_in_refusals_are_escaped(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """ggml-org/llama.cpp#28969"""
    tensors["\x1b]8;;x\x07\x1b[2J"] = torch.zeros(1)
    assert "1 unexpected: \\x1b]8;;x\\x07\\x1b[2J [1]" in refusal(write_folder(tmp_path, config, tensors))


def test_a_path_in_a_refusal_is_escaped(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#28969"""
    if os.name == "nt":
        pytest.skip("such names do not exist here")
    folder = write_config(tmp_path / "\x1b[2J", {})
    assert "\\x1b[2J" in refusal(folder)


def test_old_rotary_buffers_are_ignored(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """huggingface/transformers PR #35255"""
    plain = load_model(write_folder(tmp_path / "plain", config, tensors))
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.full((2,), 99.0)
    assert_same_weights(load_model(write_folder(tmp_path / "old", config, tensors)), plain)


def test_gpt2_with_and_without_its_prefix(tmp_path: Path) -> None:
    """vllm-project/vllm PR #271: also the mask buffers of old files."""
    config = tiny_config("gpt2")
    tensors = tiny_tensors(config)
    plain = load_model(write_folder(tmp_path / "plain", config, tensors))
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.bool)
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    assert_same_weights(load_model(write_folder(tmp_path / "old", config, old)), plain)


def test_two_namings_of_one_tensor_are_refused(tmp_path: Path) -> None:
    config = tiny_config("gpt2")
    tensors = tiny_tensors(config)
    tensors["wte.weight"] = torch.zeros(31, 16)
    message = refusal(write_folder(tmp_path, config, tensors))
    assert "stores transformer.wte.weight twice, as " in message


@pytest.mark.parametrize("block", ["block_sparse_moe", "mlp"])
def test_fused_experts_equal_separate_ones(block: str, tmp_path: Path) -> None:
    """vllm-project/vllm PR #36997 and EfficientMoE/MoE-Infinity PR #109: fused or not, under both names."""
    config = tiny_config("mixtral")
    tensors = tiny_tensors(config)
    plain = load_model(write_folder(tmp_path / "plain", config, tensors))
    newer = {name.replace("block_sparse_moe", block): t for name, t in tensors.items() if ".experts." not in name}
    for layer in range(2):
        old = f"model.layers.{layer}.block_sparse_moe.experts"
        gate_up = [torch.cat([tensors[f"{old}.{e}.w1.weight"], tensors[f"{old}.{e}.w3.weight"]]) for e in range(3)]
        new = f"model.layers.{layer}.{block}.experts"
        newer[f"{new}.gate_up_proj"] = torch.stack(gate_up)
        newer[f"{new}.down_proj"] = torch.stack([tensors[f"{old}.{e}.w2.weight"] for e in range(3)])
    assert_same_weights(load_model(write_folder(tmp_path / "newer", config, newer)), plain)


def test_fused_experts_that_cannot_be_split(tmp_path: Path) -> None:
    config = tiny_config("mixtral")
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    folder = write_folder(tmp_path, config, {**tiny_tensors(config), fused: torch.zeros(3, 1, 16)})
    assert f"{fused} [3, 1, 16] cannot be split into the parts that Mixtral has" in refusal(folder)


def test_an_empty_tensor_is_refused(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config, {**tensors, "void": torch.zeros(1 << 40, 0)})
    assert "void has the shape [1099511627776, 0], without any value" in refusal(folder)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500000.0},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    ],
)
def test_both_places_of_rope_theta(spelling: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """vllm-project/vllm PR #28542"""
    model = load_model(write_folder(tmp_path / "a", tiny_config(**spelling), tensors))
    other = load_model(write_folder(tmp_path / "b", tiny_config(), tensors))
    assert model.config.rope.theta == 500000.0
    assert not torch.equal(logits_of(model), logits_of(other))


def test_both_spellings_of_the_rope_type(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """huggingface/transformers#32166"""
    spellings = {"a": {"type": "linear", "factor": 2.0}, "b": {"rope_type": "linear", "factor": 2.0}, "plain": None}
    logits = {
        name: logits_of(load_model(write_folder(tmp_path / name, tiny_config(rope_scaling=scaling), tensors)))
        for name, scaling in spellings.items()
    }
    assert torch.equal(logits["a"], logits["b"])
    assert not torch.equal(logits["a"], logits["plain"])


def test_an_explicit_head_size_wins(tmp_path: Path) -> None:
    """huggingface/candle#2358"""
    config = tiny_config(hidden_size=20, num_attention_heads=2, head_dim=16, num_key_value_heads=1)
    tensors = tiny_tensors(config)
    assert tensors["model.layers.0.self_attn.q_proj.weight"].shape == (32, 20)
    assert load_model(write_folder(tmp_path, config, tensors)).config.head_dim == 16


@pytest.mark.parametrize("model_type", ["mistral", "mixtral"])
def test_a_null_window_is_no_window(model_type: str, tmp_path: Path) -> None:
    """EricLBuehler/mistral.rs#615"""
    config = {**tiny_config(model_type), "sliding_window": None}
    wide = {**config, "sliding_window": 24}
    tensors = tiny_tensors(config)
    model = load_model(write_folder(tmp_path / "null", config, tensors))
    assert model.layer_windows == (None, None)
    torch.testing.assert_close(logits_of(model), logits_of(load_model(write_folder(tmp_path / "wide", wide, tensors))))


def test_a_vocabulary_wider_than_the_tokenizer_s_is_no_matter(tmp_path: Path) -> None:
    """pegainfer-project/pegainfer#673: the head decides how wide the logits are."""
    config = tiny_config(vocab_size=300)
    assert logits_of(load_model(write_folder(tmp_path, config, tiny_tensors(config)))).shape == (1, 10, 300)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model_type": None},
            "config.json has no model_type; allowed: cohere, gemma, gemma2, gemma3_text, gpt2, gpt_neox, gpt_oss,",
        ),
        ({"model_type": ["llama"]}, "config.json has no model_type; allowed: cohere, gemma, "),
        ({"model_type": "mamba\x1b"}, "model_type is 'mamba\\x1b'; allowed: cohere, gemma, gemma2, "),
        ({"quantization_config": {"quant_method": "gptq"}}, "describes weights quantised by gptq; genx loads float"),
        ({"quantization_config": {}}, "describes weights quantised by an unnamed method"),
        (
            {"num_hidden_layers": 4096, "num_experts": 60000},
            "asks for 4,096 layers with 60,000 experts, but 21 tensors",
        ),
    ],
)
def test_configurations_that_no_model_belongs_to(
    changes: dict[str, Any], said: str, config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    assert said in refusal(write_folder(tmp_path, {**config, **changes}, tensors))


def test_a_null_quantization_config_is_none(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    assert isinstance(load_model(write_folder(tmp_path, {**config, "quantization_config": None}, tensors)), Llama)


def test_an_impossible_config_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hidden_size"):
        load_model(write_folder(tmp_path, tiny_config(hidden_size=-1), {"a": torch.zeros(1)}))


def test_a_config_with_a_byte_order_mark(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """microsoft/playwright-cli#274"""
    folder = write_folder(tmp_path, config, tensors)
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(config).encode())
    assert isinstance(load_model(folder), Llama)


def test_a_class_loads_only_its_own(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config, tensors)
    assert isinstance(Llama.load(folder), Llama)
    with pytest.raises(CheckpointError, match="holds a llama model; allowed: mistral"):
        Mistral.load(folder)


def test_a_name_in_the_models_folder_is_enough(
    config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "tiny", config, tensors)
    monkeypatch.setenv("GENX_MODELS", str(tmp_path))
    assert isinstance(genx.load_model("tiny"), Llama)


def test_progress_counts_every_byte(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_model(write_folder(tmp_path, config, tensors), progress=lambda done, total: calls.append((done, total)))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert calls[0] == (0, total)
    assert calls[-1] == (total, total)
    assert len(calls) == len(tensors) + 1
    assert calls == sorted(calls)


def test_changes_in_memory_stay_there(config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config, tensors)
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in load_model(folder).parameters():
            parameter.zero_()
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "no device"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="which torch cannot use here"):
        load_model(tmp_path, device=device)


def test_weights_that_do_not_fit_into_memory(
    config: dict[str, Any], tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensor: Tensor, **target: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    folder = write_folder(tmp_path, config, tensors)
    monkeypatch.setattr(Tensor, "to", fail)
    assert "as torch.bfloat16, after 0 of " in (message := refusal(folder, dtype="bfloat16"))
    assert message.endswith("bytes: CUDA out of memory.")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "I8", "BOOL", "C64"])
def test_stored_dtypes_that_are_no_weights_of_genx(dtype: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_config(tmp_path, config)
    name = "model.norm.weight"
    size = 16 * DTYPE_BITS[dtype] // 8
    header = {name: {"dtype": dtype, "shape": [16], "data_offsets": [0, size]}}
    write_safetensors_by_hand(folder / "model.safetensors", header, bytes(size))
    assert re.search(
        r"1 not float: model\.norm\.weight|1 wrongly shaped: model\.norm|cannot be mapped", refusal(folder)
    )
