"""What is saved: genx and transformers read it back, and no file is ever torn."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

from genx.checkpoint import load_model, read_config_json, read_header, save_model
from genx.checkpoint.safetensors_writer import TensorSource, write_safetensors
from genx.errors import CheckpointError
from tests.fixtures.folders import (
    PROMPT,
    assert_same_weights,
    logits_of,
    tiny_config,
    tiny_tensors,
    write_folder,
    write_shards,
)

TYPES = ["openai-gpt", "gpt2", "llama", "mistral", "mixtral", "gemma"]


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("tied", [True, False])
def test_genx_and_transformers_read_what_is_saved(model_type: str, tied: bool, tmp_path: Path) -> None:
    config = tiny_config(model_type, tie_word_embeddings=tied)
    model = load_model(write_folder(tmp_path / "given", config, tiny_tensors(config)))
    save_model(model, tmp_path / "saved")
    assert files_in(tmp_path / "saved") == {"config.json", "model.safetensors"}
    stored = read_header(tmp_path / "saved" / "model.safetensors")
    assert ("lm_head.weight" in stored.tensors) is not tied
    assert stored.metadata == {"format": "pt"}
    again = load_model(tmp_path / "saved")
    assert again.head_is_tied is tied
    assert_same_weights(again, model)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        torch.testing.assert_close(peer(PROMPT).logits, logits_of(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_in_memory_is_the_dtype_on_disk(dtype: torch.dtype, tmp_path: Path) -> None:
    config = {**tiny_config(), "torch_dtype": "float32"}
    model = load_model(write_folder(tmp_path, config, tiny_tensors(config)), dtype=dtype)
    save_model(model, tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    assert_same_weights(again, model)


def test_a_head_that_had_won_is_kept(tmp_path: Path) -> None:
    untied = tiny_config("gemma", tie_word_embeddings=False)
    folder = write_folder(tmp_path, {**untied, "tie_word_embeddings": True}, tiny_tensors(untied))
    with pytest.warns(match="it serves as head"):
        model = load_model(folder)
    save_model(model, tmp_path / "saved")
    assert read_config_json(tmp_path / "saved")["tie_word_embeddings"] is False
    assert_same_weights(load_model(tmp_path / "saved"), model)


def test_saving_into_the_folder_that_is_mapped(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_config(), tiny_tensors(tiny_config()))
    model = load_model(folder)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(2.0)
    expected = logits_of(model)
    model.save(folder)
    assert torch.equal(logits_of(model), expected)
    assert_same_weights(load_model(folder), model)


def test_saving_over_a_sharded_folder_leaves_no_index_that_lies(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, tiny_config(), {"1.safetensors": tiny_tensors(tiny_config())})
    save_model(load_model(folder), folder)
    assert files_in(folder) == {"config.json", "model.safetensors", "1.safetensors"}
    load_model(folder)


def test_a_tensor_that_is_not_contiguous_is_saved_in_row_major_order(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path, tiny_config(), tiny_tensors(tiny_config())))
    square = torch.arange(256.0).reshape(16, 16)
    model.get_submodule("model.layers.0.self_attn.q_proj").weight = torch.nn.Parameter(square.T)
    save_model(model, tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("model.layers.0.self_attn.q_proj.weight"), square.T)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    source = TensorSource("F32", (2,), lambda: [bytes(4)])
    with pytest.raises(ValueError, match="a gave 4 bytes, expected 8"):
        write_safetensors(path, {"a": source}, {})
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == {"model.safetensors"}


def test_tensors_are_aligned_whatever_their_dtypes(tmp_path: Path) -> None:
    sizes = {"a": ("U8", 1), "b": ("F32", 4), "c": ("F64", 8), "d": ("BF16", 2)}
    sources = {name: TensorSource(dtype, (3,), lambda n=size: [bytes(3 * n)]) for name, (dtype, size) in sizes.items()}
    write_safetensors(tmp_path / "x", sources, {"Ж": "é"})
    header = read_header(tmp_path / "x")
    assert {name: header.tensors[name].start % size for name, (_, size) in sizes.items()} == dict.fromkeys(sizes, 0)
    assert header.metadata == {"Ж": "é"}
    with safe_open(tmp_path / "x", "pt") as file:
        assert set(file.keys()) == set(sizes)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path, tiny_config(), tiny_tensors(tiny_config())))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        save_model(model, tmp_path / "file")
    message = str(caught.value)
    assert message.startswith(f"the model cannot be saved to {tmp_path / 'file'}: ")
    assert message.endswith("; check the space and the permissions, or choose another folder")


def test_config_json_is_plain_json(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path, tiny_config(), tiny_tensors(tiny_config())))
    save_model(model, tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_bytes())
    assert written["model_type"] == "llama"
    assert written["architectures"] == ["LlamaForCausalLM"]
