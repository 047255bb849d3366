"""Every architecture's tiny model as GGUF: the same logits as from its Hugging Face folder."""

from pathlib import Path
from typing import Any

import pytest
import torch

from genx.checkpoint import load_model
from tests.architectures import RECIPES, Tiny, make_tiny, prompt
from tests.fixtures.gguf_files import convert_to_gguf

# What no key of a GGUF file can say, or llama.cpp's conversion does not write: what it takes for granted instead.
TAKEN_FOR_GRANTED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3-moe": {"mlp_only_layers": []},
    "gemma2": {"query_pre_attn_scalar": 10, "tie_word_embeddings": True},
    "gemma": {"tie_word_embeddings": True},
    "gemma3": {"query_pre_attn_scalar": 10, "sliding_window_pattern": 6, "layer_types": None},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5},
    "starcoder2": {"sliding_window": None},
    "cohere": {"tie_word_embeddings": True},
}


@pytest.fixture(scope="module", params=[name for name in RECIPES if name != "gpt"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    name = request.param
    return make_tiny(name, tmp_path_factory.mktemp("tiny"), **TAKEN_FOR_GRANTED.get(name, {}))


@pytest.fixture(scope="module")
def file(tiny: Tiny) -> Path:
    return convert_to_gguf(tiny.folder, tiny.folder.parent / "tiny.gguf")


def logits(path: Path) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = load_model(path, dtype=torch.float32)(prompt())[0]
    return result


def test_logits_equal_those_of_the_folder(tiny: Tiny, file: Path) -> None:
    # Gemma's norms lose a bit where one is added to them; all else is the same numbers.
    exact = "gemma" not in tiny.name
    torch.testing.assert_close(logits(file), logits(tiny.folder), rtol=0, atol=0 if exact else 1e-4)


def test_its_configuration_is_the_folder_s(tiny: Tiny, file: Path) -> None:
    found, published = load_model(file).config, load_model(tiny.folder).config
    for field in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "max_position_embeddings", "norm_eps", "tie_word_embeddings", "rope",
        "sliding_window", "num_local_experts", "num_experts_per_tok",
    ):  # fmt: skip
        assert getattr(found, field) == getattr(published, field), field
    serves_as = {"mistral": "llama"}  # llama.cpp knows both by one name, and without a window they are the same
    assert found.model_type == serves_as.get(tiny.name, published.model_type)
