"""Every architecture's tiny model as GGUF: the same logits as from its Hugging Face folder."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genx.checkpoint import load_model
from genx.config import RopeConfig
from genx.gguf.header import read_gguf_header
from tests.architectures import RECIPES, Tiny, make_tiny, prompt
from tests.fixtures.gguf_files import convert_to_gguf, write_gguf

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


def llama3_factors(scaling: Mapping[str, float], channels: int, theta: float) -> np.ndarray:
    """What llama.cpp's conversion stores in rope_freqs.weight: by what each frequency is divided."""
    factors = []
    for channel in range(0, channels, 2):
        wavelength = 2 * math.pi * theta ** (channel / channels)
        context, low, high = (
            scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(scaling["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def test_llama_3_1_s_scaling_is_known_by_its_factors(tmp_path: Path) -> None:
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = {"rope_type": "llama3", "rope_theta": 5e5, **scaling}
    sizes = {"hidden_size": 96, "head_dim": 16}
    tiny = make_tiny("llama", tmp_path, rope_parameters=rope, max_position_embeddings=131072, **sizes)
    factors = llama3_factors(scaling, 16, 5e5)
    assert len(set(factors.tolist())) == 3  # kept, blended and stretched
    file = convert_to_gguf(tiny.folder, tmp_path / "tiny.gguf", rope_freqs__weight=factors)
    assert load_model(file).config.rope == load_model(tiny.folder).config.rope
    torch.testing.assert_close(logits(file), logits(tiny.folder), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeConfig(1e4, "linear", {"factor": 4.0})),
        ({"rope.scale_linear": 2.0}, RopeConfig(1e4, "linear", {"factor": 2.0})),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, RopeConfig(1e4)),
        ({"rope.freq_base": None}, RopeConfig(1e4)),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 10},
            RopeConfig(1e4, "yarn", {"factor": 4.0, "original_max_position_embeddings": 10}),
        ),
    ],
)
def test_scalings_that_keys_name(keys: Mapping[str, Any], rope: RopeConfig, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path).folder
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    assert load_model(convert_to_gguf(folder, tmp_path / "tiny.gguf", metadata=metadata)).config.rope == rope


def test_a_mixture_whose_experts_are_not_stacked(tmp_path: Path) -> None:
    """Files of before 2024 have a tensor for each expert."""
    tiny = make_tiny("mixtral", tmp_path, **TAKEN_FOR_GRANTED["mixtral"])
    stacked = convert_to_gguf(tiny.folder, tmp_path / "new.gguf")
    header, data = read_gguf_header(stacked), stacked.read_bytes()
    tensors: dict[str, tuple[np.ndarray, str]] = {}
    for name, stored in header.tensors.items():
        count = int(np.prod(stored.shape))
        values = np.frombuffer(data, np.float32, count, stored.offset).reshape(stored.shape[::-1])
        if "_exps" in name:
            names = (name.replace("_exps", f".{expert}") for expert in range(len(values)))
            tensors |= dict(zip(names, ((value, "F32") for value in values), strict=True))
        else:
            tensors[name] = (values, "F32")
    keys = {key: value for key, value in header.metadata.items() if key.startswith("llama.")}
    old = write_gguf(tmp_path / "old.gguf", "llama", keys, tensors)
    torch.testing.assert_close(logits(old), logits(tiny.folder), rtol=0, atol=0)
