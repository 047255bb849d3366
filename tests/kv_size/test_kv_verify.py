"""The prediction against the bytes that genx's own cache allocates, for every architecture."""

import json
from pathlib import Path

import pytest

from genx.models.registry import model_class
from tests.architectures import Tiny
from tests.kv_size.command import kv_size, refusal


@pytest.mark.parametrize(("tokens", "batch"), [(2, 1), (7, 1), (40, 2)])
def test_the_difference_is_zero_for_every_architecture(tiny: Tiny, tokens: int, batch: int) -> None:
    result = kv_size(str(tiny.folder), "--verify", "-t", str(tokens), "-b", str(batch), "--json")
    assert result.status == 0, result.stderr
    (row,) = json.loads(result.text)
    assert row["difference"] == 0
    assert row["predicted_bytes"] == row["allocated_bytes"] > 0
    assert row["floor_bytes"] <= row["allocated_bytes"]


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context is beyond what the cache allocates at once."""
    folder = tmp_path_factory.mktemp("long")
    sizes = {
        "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 8, "max_position_embeddings": 8000, "sliding_window": 4500,
    }  # fmt: skip
    model_class("mistral")(sizes).save(folder)
    return folder


@pytest.mark.parametrize("tokens", [4096, 4200, 5200])
def test_a_cache_that_grows(long_folder: Path, tokens: int) -> None:
    (row,) = json.loads(kv_size(str(long_folder), "--verify", "-t", str(tokens), "--json").text)
    assert (row["difference"], row["allocated_bytes"]) == (0, min(tokens, 4500) * 2 * 2 * 4 * 4)


def test_the_element_type_can_be_chosen(long_folder: Path) -> None:
    (row,) = json.loads(kv_size(str(long_folder), "--verify", "-t", "20", "--kv-dtype", "bf16", "--json").text)
    assert (row["difference"], row["kv_dtype"], row["allocated_bytes"]) == (0, "bf16", 20 * 2 * 2 * 4 * 2)


def test_a_person_reads_one_line(long_folder: Path) -> None:
    assert kv_size(str(long_folder), "--verify", "-t", "20").text == (
        f"{long_folder.name}: 20 tokens x 1, fp32: predicted 1,280, allocated 1,280 bytes: exact; the floor is 1,280\n"
    )


def test_only_folders_can_be_verified(long_folder: Path) -> None:
    assert "no checkpoint folder" in refusal("mistral-7b", "--verify")
    assert "without a model" in refusal("--verify")
    assert "8,000" in refusal(str(long_folder), "--verify", "-t", "8001")
    assert "q8_0" in refusal(str(long_folder), "--verify", "--kv-dtype", "q8_0")
