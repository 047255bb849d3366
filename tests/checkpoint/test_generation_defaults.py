"""Ids that stop, fill and begin, from every file that names them."""

import json
from pathlib import Path
from typing import Any

import pytest

from genx.checkpoint import GenerationDefaults, read_generation_defaults
from genx.errors import CheckpointError


def write(folder: Path, config: Any, **files: Any) -> Path:
    """A folder with config.json (vocab_size 100 unless it says otherwise) and further JSON files."""
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100, **config}))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert read_generation_defaults(write(tmp_path, {})) == GenerationDefaults((), None, None, {})


def test_the_list_in_generation_config_counts(tmp_path: Path) -> None:
    """vllm-project/vllm#4180"""
    write(tmp_path, {"eos_token_id": 5}, generation_config={"eos_token_id": [7, 9]})
    assert read_generation_defaults(tmp_path).eos_token_ids == (7, 9, 5)


@pytest.mark.parametrize(
    "tokenizer",
    [
        {
            "tokenizer_config": {"eos_token": "<end>"},
            "tokenizer": {"added_tokens": [{"id": 3, "content": "<x>"}, {"id": 9, "content": "<end>"}]},
        },
        {"tokenizer_config": {"eos_token": {"content": "<end>"}}, "tokenizer": {"model": {"vocab": {"<end>": 9}}}},
        {"tokenizer_config": {"eos_token": "<end>", "added_tokens_decoder": {"9": {"content": "<end>"}}}},
        {
            "special_tokens_map": {"eos_token": "<end>"},
            "tokenizer": {"added_tokens": [{"id": 9, "content": "<end>"}]},
        },
    ],
)
def test_the_tokenizer_s_own_eos_joins(tokenizer: dict[str, Any], tmp_path: Path) -> None:
    """Blaizzy/mlx-vlm PR #2112: the configured eos does not replace the tokenizer's."""
    write(tmp_path, {}, generation_config={"eos_token_id": 7}, **tokenizer)
    assert read_generation_defaults(tmp_path).eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"tokenizer_config": {"eos_token": "<end>"}},
        {"tokenizer_config": {"eos_token": 5}},
        {"tokenizer_config": {"eos_token": "<end>", "added_tokens_decoder": {"9" * 5000: {"content": "<end>"}}}},
        {"tokenizer_config": {"eos_token": "<end>", "added_tokens_decoder": {"x": {"content": "<end>"}}}},
        {"tokenizer_config": {"eos_token": "<end>"}, "tokenizer": {"added_tokens": 3, "model": {"vocab": []}}},
        {"tokenizer_config": {"eos_token": "<end>"}, "tokenizer": {"added_tokens": [{"content": "<end>"}]}},
    ],
)
def test_a_tokenizer_without_a_usable_eos(tokenizer: dict[str, Any], tmp_path: Path) -> None:
    assert read_generation_defaults(write(tmp_path, {}, **tokenizer)).eos_token_ids == ()


def test_each_id_once_in_the_order_found(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": [9, 2, 7]}, generation_config={"eos_token_id": [7, 7, 9]})
    assert read_generation_defaults(tmp_path).eos_token_ids == (7, 9, 2)


@pytest.mark.parametrize("bad", [-1, 100, 10**30, None, "7", 7.0, True, {"id": 7}, [[7]]])
def test_ids_outside_the_embedding_mean_none(bad: Any, tmp_path: Path) -> None:
    """huggingface/transformers#23401 and #22520: an id beyond the embedding, -1, null."""
    keys = {"eos_token_id": bad, "pad_token_id": bad, "bos_token_id": bad}
    assert read_generation_defaults(write(tmp_path, keys, generation_config=keys)) == GenerationDefaults(
        (), None, None, {}
    )


def test_pad_and_bos_are_the_first_valid_ones(tmp_path: Path) -> None:
    config = {"pad_token_id": 4, "bos_token_id": 6}
    write(tmp_path, config, generation_config={"pad_token_id": -1, "bos_token_id": 0})
    defaults = read_generation_defaults(tmp_path)
    assert (defaults.pad_token_id, defaults.bos_token_id) == (4, 0)


def test_sampling_values_are_reported_as_they_stand(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 50, "top_p": None, "max_length": 20, "top": 1}
    write(tmp_path, {}, generation_config=generation)
    assert read_generation_defaults(tmp_path).sampling == {"do_sample": True, "temperature": 0.6, "top_k": 50}


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_generation_defaults(tmp_path)
