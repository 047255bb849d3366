"""Which files hold the weights, and which of them gives each tensor."""

import json
from pathlib import Path

import pytest
import torch

from genx.checkpoint import find_tensors
from genx.errors import CheckpointError, GenxWarning
from tests.fixtures.folders import write_folder, write_shards

ONE = {"a": torch.zeros(2), "q": torch.zeros(3)}
TWO = {"b": torch.zeros(4), "q": torch.ones(3)}
INDEX = "model.safetensors.index.json"


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_tensors(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def places(folder: Path) -> dict[str, str]:
    """The file that each tensor is read from."""
    return {name: location.path.name for name, location in find_tensors(folder).items()}


def test_the_index_decides_about_names_of_files(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#16361: shards with unusual names."""
    unusual = "model.safetensors-00001-of-00002.safetensors"
    write_shards(tmp_path, {}, {"weights_a.safetensors": {"a": ONE["a"]}, unusual: {"b": TWO["b"]}})
    assert places(tmp_path) == {"a": "weights_a.safetensors", "b": unusual}


def test_a_tensor_counts_only_in_the_file_that_the_index_gives(tmp_path: Path) -> None:
    """vllm-project/vllm PR #54230: q is in both shards."""
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "q": "1.safetensors"}
    write_shards(tmp_path, {}, {"1.safetensors": ONE, "2.safetensors": TWO}, weight_map)
    assert places(tmp_path) == weight_map


def test_every_missing_shard_is_named(tmp_path: Path) -> None:
    """sgl-project/sglang PR #32279"""
    write_shards(tmp_path, {}, {f"{n}.safetensors": {f"t{n}": torch.zeros(1)} for n in range(4)})
    (tmp_path / "1.safetensors").unlink()
    (tmp_path / "3.safetensors").unlink()
    assert refusal(tmp_path) == (
        f"{tmp_path} lacks 2 of the 4 files that {INDEX} names: 1.safetensors, 3.safetensors; download them"
    )


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    write_shards(tmp_path, {}, {"1.safetensors": ONE, "2.safetensors": TWO}, weight_map)
    assert refusal(tmp_path) == (
        f"2 tensors that {tmp_path / INDEX} names are not in the files it gives: "
        "b (1.safetensors), c (2.safetensors); download the index and the files again"
    )


@pytest.mark.parametrize("file", ["../other/x.safetensors", "/tmp/x.safetensors", "..\\x.safetensors"])
def test_an_index_cannot_name_files_outside(file: str, tmp_path: Path) -> None:
    """huggingface/transformers#47176"""
    write_shards(tmp_path, {}, {"1.safetensors": ONE}, {"a": "1.safetensors", "b": file})
    assert "allowed: relative names without '..', of files inside the folder" in refusal(tmp_path)


def test_an_index_cannot_reach_outside_by_a_link(tmp_path: Path) -> None:
    """huggingface/transformers#47176"""
    write_folder(tmp_path / "other", {}, ONE)
    folder = write_shards(tmp_path / "model", {}, {}, {"a": "x.safetensors"})
    try:
        (folder / "x.safetensors").symlink_to(tmp_path / "other" / "model.safetensors")
    except OSError:
        pytest.skip("links cannot be made here")
    assert "outside its folder" in refusal(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_weight_map(index: object, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert "has no weight_map from tensor names to file names" in refusal(tmp_path)


def test_a_stale_index_beside_a_whole_file_is_ignored_and_said(tmp_path: Path) -> None:
    """A model saved over an older, sharded one leaves the index behind."""
    write_folder(tmp_path, {}, ONE)
    write_shards(tmp_path, {}, {}, {"z": "gone.safetensors"})
    with pytest.warns(GenxWarning, match="the index is ignored"):
        assert set(find_tensors(tmp_path)) == {"a", "q"}


def test_an_index_may_name_the_whole_file_as_a_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, {}, {"model.safetensors": {"a": ONE["a"]}, "more.safetensors": {"b": TWO["b"]}})
    assert places(tmp_path) == {"a": "model.safetensors", "b": "more.safetensors"}


def test_aliases_in_the_metadata_are_followed(tmp_path: Path) -> None:
    """huggingface/text-generation-inference PR #501"""
    write_folder(tmp_path, {}, ONE, metadata={"alias": "a", "q": "a", "nothing": "absent"})
    found = find_tensors(tmp_path)
    assert {name: location.name for name, location in found.items()} == {"a": "a", "q": "q", "alias": "a"}


def test_a_single_file_of_another_name_is_taken(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, ONE, file="weights.safetensors")
    assert places(tmp_path) == {"a": "weights.safetensors", "q": "weights.safetensors"}


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, ONE, file="x.safetensors")
    write_folder(tmp_path, {}, TWO, file="y.safetensors")
    assert refusal(tmp_path) == (
        f"{tmp_path} has 2 safetensors files and no {INDEX}: x.safetensors, y.safetensors; "
        "download the index, or leave one file"
    )


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("pytorch_model.bin", "has weights as pickle only (pytorch_model.bin), which genx does not read, since it can"),
        ("model.gguf", "has weights as GGUF only (model.gguf); give the file itself"),
        ("readme.md", "has no weights; expected model.safetensors, or model.safetensors.index.json"),
    ],
)
def test_other_formats_are_named(file: str, said: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"")
    assert said in refusal(tmp_path)
