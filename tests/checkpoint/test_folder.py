"""Files of a folder and nothing outside it; config.json as people write it."""

import os
from pathlib import Path

import pytest

from genx.checkpoint import read_config_json
from genx.checkpoint.folder import path_in, read_json_in
from genx.errors import CheckpointError, ConfigError

OUTSIDE_NAMES = [
    "../other/x.safetensors", "/tmp/x.safetensors", "a/../../x", "..", "", "C:\\x", "c:x", "\\\\host\\share\\x",
    "..\\x", "a\0b",
]  # fmt: skip


def link(path: Path, target: Path | str) -> None:
    try:
        path.symlink_to(target)
    except OSError:  # Windows without the right to make links
        pytest.skip("links cannot be made here")


@pytest.mark.parametrize("name", OUTSIDE_NAMES)
def test_names_that_lead_outside(name: str, tmp_path: Path) -> None:
    """huggingface/transformers#47176"""
    with pytest.raises(CheckpointError, match="allowed: relative names without"):
        path_in(tmp_path, name)


def test_a_link_that_leads_outside(tmp_path: Path) -> None:
    """huggingface/transformers#47176"""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_text("{}")
    link(folder / "config.json", tmp_path / "secret")
    with pytest.raises(CheckpointError) as caught:
        read_config_json(folder)
    assert str(caught.value) == (
        f"{folder / 'config.json'} is a link to {tmp_path / 'secret'}, outside its folder; "
        "copy the file there, or give the folder that it lies in"
    )


def test_links_within_the_folder_and_to_the_folder_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "store").mkdir(parents=True)
    (folder / "store" / "x").write_text('{"a": 1}')
    link(folder / "config.json", Path("store") / "x")
    link(tmp_path / "alias", folder)
    assert read_config_json(tmp_path / "alias") == {"a": 1}


def test_links_in_a_circle(tmp_path: Path) -> None:
    link(tmp_path / "config.json", "config.json")
    with pytest.raises(CheckpointError, match=r"has no config\.json|cannot be followed"):
        read_config_json(tmp_path)


def hub_snapshot(cache: Path) -> Path:
    """A snapshot folder as the Hugging Face hub's cache has it."""
    blobs = cache / "models--org--name" / "blobs"
    snapshot = cache / "models--org--name" / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "f00d").write_text('{"a": 1}')
    return snapshot


def test_the_hub_s_cache_of_links_works(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    link(snapshot / "config.json", os.path.join("..", "..", "blobs", "f00d"))  # noqa: PTH118
    assert read_config_json(snapshot) == {"a": 1}
    link(tmp_path / "alias", snapshot)
    assert read_config_json(tmp_path / "alias") == {"a": 1}


@pytest.mark.parametrize("place", ["models--org--other/blobs", "models--org--name/refs", "blobs"])
def test_the_hub_s_cache_does_not_open_other_places(place: str, tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "x").write_text("{}")
    link(snapshot / "config.json", tmp_path / place / "x")
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_config_json(snapshot)


def test_a_leading_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """microsoft/playwright-cli#274"""
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"model_type": "llama"}')
    assert read_config_json(tmp_path) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (b"[1]", CheckpointError, "holds a list, expected a JSON object"),
        (b"{", ConfigError, "is not JSON"),
        (b"\xff", ConfigError, "is not UTF-8"),
        (b"", ConfigError, "is not JSON"),
    ],
)
def test_a_broken_config(text: bytes, kind: type[Exception], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(kind) as caught:
        read_config_json(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_empty_unless_it_is_required(tmp_path: Path) -> None:
    assert read_json_in(tmp_path, "generation_config.json") == {}
    with pytest.raises(CheckpointError) as caught:
        read_config_json(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no config.json; expected a Hugging Face model folder"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_config_json(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user who may be refused")
def test_a_folder_that_may_not_be_looked_into(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir(mode=0)
    with pytest.raises(CheckpointError, match=r"cannot be (looked at|followed)"):
        read_config_json(folder)
