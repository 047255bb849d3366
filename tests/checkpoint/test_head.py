"""The head alone is read leniently: stored or not, tied or not, and what differs from the config is said."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from genx.checkpoint import load_model
from genx.errors import GenxWarning
from tests.fixtures.folders import assert_same_weights, tiny_config, tiny_tensors, write_folder

HEAD = "lm_head.weight"


def write(folder: Path, *, tied: bool, head: str, model_type: str, metadata: Mapping[str, str] | None = None) -> Path:
    """A folder whose config says `tied`, and whose file has no head, the embedding's values, or others."""
    config = tiny_config(model_type, tie_word_embeddings=tied)
    tensors = tiny_tensors({**config, "tie_word_embeddings": False})
    embedding = next(tensor for name, tensor in tensors.items() if "emb" in name or "wte" in name)
    stored = tensors.pop(HEAD)
    if head != "absent":
        tensors[HEAD] = embedding.clone() if head == "equal" else stored
    return write_folder(folder, config, tensors, metadata=metadata)


@pytest.mark.parametrize("model_type", ["llama", "gemma", "gpt2"])
@pytest.mark.parametrize("head", ["absent", "equal"])
def test_a_tied_head_is_one_parameter(head: str, model_type: str, tmp_path: Path) -> None:
    """meta-llama/llama-models#172 (absent) and vllm-project/vllm#3323 (stored all the same): both without a word."""
    model = load_model(write(tmp_path, tied=True, head=head, model_type=model_type))
    assert model.head_is_tied
    assert model.lm_head.weight is model.get_parameter(model.embedding_name)
    assert model.config.tie_word_embeddings is True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_head_stays_one_parameter_when_it_is_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    assert load_model(write(tmp_path, tied=True, head="absent", model_type="gemma"), dtype=dtype).head_is_tied


def test_a_stored_head_that_differs_wins_and_it_is_said(tmp_path: Path) -> None:
    """vllm-project/vllm#3323"""
    folder = write(tmp_path / "tied", tied=True, head="other", model_type="gemma")
    said = "lm_head.weight differs from the embedding, though tie_word_embeddings is true; it serves as head"
    with pytest.warns(GenxWarning) as caught:
        model = load_model(folder)
    assert [str(warning.message) for warning in caught] == [f"{folder}: {said}"]
    assert Path(caught[0].filename) == Path(__file__)
    untied = load_model(write(tmp_path / "untied", tied=False, head="other", model_type="gemma"))
    assert_same_weights(model, untied)
    assert model.config.tie_word_embeddings is False


def test_a_missing_head_is_replaced_by_the_embedding_and_it_is_said(tmp_path: Path) -> None:
    """meta-llama/llama-models#172"""
    folder = write(tmp_path, tied=False, head="absent", model_type="llama")
    said = "lm_head.weight is not stored, though tie_word_embeddings is false; the embedding serves"
    with pytest.warns(GenxWarning) as caught:
        model = load_model(folder)
    assert [str(warning.message) for warning in caught] == [f"{folder}: {said}"]
    assert model.head_is_tied


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e5m2])
def test_a_stored_head_of_another_dtype_is_compared_by_its_values(dtype: torch.dtype, tmp_path: Path) -> None:
    config = tiny_config("gemma")
    tensors = tiny_tensors(config)
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].sign()
    tensors[HEAD] = tensors["model.embed_tokens.weight"].to(dtype)
    assert load_model(write_folder(tmp_path, config, tensors)).head_is_tied


def test_an_untied_head_that_happens_to_be_equal_stays_its_own(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, tied=False, head="equal", model_type="llama"))
    assert not model.head_is_tied


def test_a_head_that_the_saver_left_as_an_alias(tmp_path: Path) -> None:
    """huggingface/text-generation-inference PR #501"""
    alias = {HEAD: "model.embed_tokens.weight"}
    model = load_model(write(tmp_path, tied=False, head="absent", model_type="llama", metadata=alias))
    assert model.head_is_tied


def test_any_other_alias_is_followed_too(tmp_path: Path) -> None:
    """huggingface/text-generation-inference PR #501"""
    tensors: dict[str, Tensor] = tiny_tensors(tiny_config())
    first, second = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(2))
    del tensors[second]
    model = load_model(write_folder(tmp_path, tiny_config(), tensors, metadata={second: first}))
    assert torch.equal(model.get_parameter(second), tensors[first])
