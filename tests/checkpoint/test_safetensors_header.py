"""Headers of safetensors files: what they say, and that damaged ones are refused cheaply in one clear line."""

import contextlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from genx.checkpoint import StoredTensor, read_header
from genx.errors import CheckpointError
from tests.fixtures.folders import write_safetensors_by_hand

GOOD_HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
}
GOOD_DATA = bytes(34)


def refusal(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_what_a_header_says(tmp_path: Path) -> None:
    path = write_safetensors_by_hand(tmp_path / "x", GOOD_HEADER, GOOD_DATA)
    header = read_header(path)
    start = 8 + len(json.dumps(GOOD_HEADER))
    assert header.tensors == {
        "a": StoredTensor("F32", (2, 3), start, start + 24),
        "b": StoredTensor("BF16", (5,), start + 24, start + 34),
    }
    assert header.metadata == {"format": "pt"}


def test_a_truncated_download_names_both_sizes(tmp_path: Path) -> None:
    """lyogavin/airllm#137: cut off within the data, within the header, within the length, and at 0 bytes."""
    whole = write_safetensors_by_hand(tmp_path / "whole", GOOD_HEADER, GOOD_DATA).read_bytes()
    path = tmp_path / "model.safetensors"
    header_end = len(whole) - len(GOOD_DATA)
    for size, expected in [(len(whole) - 1, len(whole)), (header_end, len(whole)), (header_end - 1, header_end)]:
        path.write_bytes(whole[:size])
        assert refusal(path) == (
            f"{path} is truncated: it has {size} bytes, expected at least {expected}; download the file again"
        )
    for size in (7, 0):
        path.write_bytes(whole[:size])
        assert refusal(path) == (
            f"{path} has {size} bytes, expected a safetensors file of more than 8; download the file again"
        )


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    """lyogavin/airllm#137: the pointer's first bytes read as a header length of 10^18."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 538090408\n")
    assert refusal(path) == (
        f"{path} is a git-LFS pointer of 134 bytes, expected 538,090,408 bytes; "
        "run `git lfs pull` in its folder, or download the file itself"
    )


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>404</html>", b"\n <html>login</html>", b"<?xml version='1.0'?>"]
)
def test_a_web_page(page: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(page)
    assert f"is a web page of {len(page)} bytes, expected a safetensors file" in refusal(path)


@pytest.mark.parametrize("length", [2**40, 2**64 - 1, 100_000_001])
def test_a_huge_length_field_costs_nothing(length: int, tmp_path: Path) -> None:
    """safetensors/safetensors#668: refused at once, without allocating what the field announces."""
    path = write_safetensors_by_hand(tmp_path / "x", b" " * 92, length=length)
    tracemalloc.start()
    try:
        message = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"(100 bytes) announces a header of {length:,} bytes; allowed: at most 100,000,000" in message
    assert peak < 1 << 20


def test_a_length_within_the_limit_but_beyond_the_file_is_not_read(tmp_path: Path) -> None:
    path = write_safetensors_by_hand(tmp_path / "x", b" " * 92, length=99_000_000)
    assert "it has 100 bytes, expected at least 99,000,008" in refusal(path)


def test_a_name_stored_twice(tmp_path: Path) -> None:
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    path = write_safetensors_by_hand(tmp_path / "x", f'{{"w":{entry},"w":{entry}}}'.encode(), bytes(4))
    assert "it stores the name w twice" in refusal(path)


def entry(**changes: Any) -> dict[str, Any]:
    """A header whose only tensor `w` has something changed."""
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"w": ' + b"9" * 5000 + b"}", "it is not JSON"),
        ([], "it is not a JSON object"),
        ({"__metadata__": {"format": 1}}, "its __metadata__ is not an object of texts"),
        ({"w": 3}, "w lacks dtype, shape or data_offsets"),
        ({"w": {"dtype": "F32"}}, "w lacks dtype, shape or data_offsets"),
        (entry(dtype="Q4_K"), "w has the dtype Q4_K; known: C64, F64"),
        (entry(dtype=["F32"]), "w has the dtype ['F32']"),
        (entry(shape=[-2]), "w has the shape [-2]"),
        (entry(shape=[True, 2]), "w has the shape [True, 2]"),
        (entry(shape=[2.0]), "w has the shape [2.0]"),
        (entry(shape=[1] * 65), "allowed: up to 64 sizes"),
        (entry(data_offsets=[8, 0]), "w has the data_offsets [8, 0]"),
        (entry(data_offsets=[0]), "w has the data_offsets [0]"),
        (entry(shape=[3]), "w has 8 bytes; expected 12 for F32 [3]"),
        (entry(shape=[2**62, 2**62]), "w has 8 bytes; expected"),
        (entry(data_offsets=[4, 12]), "w leaves a gap before it"),
        ({**entry(), "v": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, "overlaps the tensor before it"),
    ],
)
def test_a_damaged_header(header: Any, fault: str, tmp_path: Path) -> None:
    path = write_safetensors_by_hand(tmp_path / "x", header, bytes(8))
    message = refusal(path)
    assert message.startswith(f"the header of {path} is damaged: ")
    assert fault in message


def test_bytes_after_the_last_tensor(tmp_path: Path) -> None:
    path = write_safetensors_by_hand(tmp_path / "x", GOOD_HEADER, GOOD_DATA + b"more")
    size = path.stat().st_size
    assert f"has {size} bytes, expected {size - 4}: it goes on after its last tensor" in refusal(path)


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#28969: escape sequences, line breaks and direction marks in a tensor's name."""
    name = "\x1b]8;;http://x\x07a\x1b[2J\u202e\r\n\x9b"
    header = {name: {"dtype": "?\x1b", "shape": [], "data_offsets": [0, 0]}}
    message = refusal(write_safetensors_by_hand(tmp_path / "x", header))
    assert "\\x1b]8;;http://x\\x07a\\x1b[2J\\u202e\\r\\n\\x9b has the dtype ?\\x1b" in message
    assert message.isprintable()


def test_a_name_of_a_megabyte_is_cut(tmp_path: Path) -> None:
    message = refusal(write_safetensors_by_hand(tmp_path / "x", {"w" * 1_000_000: 0}))
    assert len(message) < 2000
    assert "(1,000,000 characters)" in message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    assert "is not a regular file" in refusal(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent")
    assert "is not a regular file" in refusal(tmp_path)


FILE = save({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, {"format": "pt"})


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, len(FILE) - 1), replacement=st.binary(max_size=3), removed=st.integers(0, 3))
def test_whatever_is_accepted_the_format_s_own_library_reads_alike(
    position: int, replacement: bytes, removed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(FILE[:position] + replacement + FILE[position + removed :])
    # Refused is as good as read; the library may be stricter, in which case loading says so.
    with contextlib.suppress(CheckpointError, SafetensorError):
        header = read_header(path)
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in header.tensors}
            assert set(file.keys()) == set(header.tensors)
            assert shapes == {name: tensor.shape for name, tensor in header.tensors.items()}
