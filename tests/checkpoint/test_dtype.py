"""The dtype that a model is loaded in: the argument, else config.json, else the file."""

from pathlib import Path
from typing import Any

import pytest
import torch

from genx.checkpoint import load_model
from genx.errors import ArgumentError
from tests.fixtures.folders import logits_of, tiny_config, tiny_tensors, write_folder


def write(folder: Path, stored: torch.dtype = torch.bfloat16, **config_keys: Any) -> Path:
    return write_folder(folder, {**tiny_config(), **config_keys}, tiny_tensors(tiny_config(), stored))


@pytest.mark.parametrize(
    ("keys", "loaded"),
    [
        ({"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({}, torch.bfloat16),
        ({"dtype": None}, torch.bfloat16),
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "torch.float32"}, torch.float32),
        ({"dtype": "auto"}, torch.bfloat16),
        ({"dtype": "int8"}, torch.bfloat16),
        ({"dtype": 7}, torch.bfloat16),
    ],
)
def test_without_an_argument_the_config_decides_else_the_file(
    keys: dict[str, Any], loaded: torch.dtype, tmp_path: Path
) -> None:
    """ModelCloud/GPTQModel PR #1804: a bfloat16 file with either key, none, and conflicting ones."""
    model = load_model(write(tmp_path, **keys))
    assert {parameter.dtype for parameter in model.parameters()} == {loaded}


@pytest.mark.parametrize("asked", [torch.float32, "float32", "torch.float32"])
def test_the_argument_wins(asked: torch.dtype | str, tmp_path: Path) -> None:
    """zai-org/GLM-4#570"""
    model = load_model(write(tmp_path, torch_dtype="bfloat16"), dtype=asked)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_mixed_file_is_loaded_in_the_dtype_of_most_bytes(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_config(), torch.bfloat16)
    tensors = {name: t.double() if "norm" in name else t for name, t in tensors.items()}
    model = load_model(write_folder(tmp_path, tiny_config(), tensors))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_float16_runs_on_the_cpu(tmp_path: Path) -> None:
    """huggingface/text-generation-inference#1104"""
    logits = logits_of(load_model(write(tmp_path, torch.float16)))
    assert logits.dtype == torch.float16
    wide = logits_of(load_model(tmp_path, dtype="float32"))
    assert float((logits.float() - wide).abs().max()) < 0.02 * float(wide.abs().max())


@pytest.mark.parametrize("asked", ["int8", "float", torch.int8, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(asked: torch.dtype | str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="allowed: float32, float16, bfloat16, float64, or none"):
        load_model(write(tmp_path), dtype=asked)
