"""GGUF headers: what the files say, and files that lie."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from genx.errors import CheckpointError
from genx.gguf.header import LongArray, is_gguf, read_gguf_header
from tests.kv_size.command import kv_object, refusal


def write(path: Path, architecture: str, values: dict[str, Any], vocabulary: int = 0) -> Path:
    """A GGUF file by the format's own package, with one small tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        full = f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    if vocabulary:
        writer.add_array("tokenizer.ggml.tokens", [f"token {index}" for index in range(vocabulary)])
        writer.add_array("tokenizer.ggml.scores", [float(index) for index in range(vocabulary)])
    writer.add_tensor("output.weight", np.zeros((3, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LLAMA = {
    "block_count": 2, "embedding_length": 32, "context_length": 64, "attention.head_count": 8,
    "attention.head_count_kv": 2,
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_the_header_as_the_format_s_own_package_writes_it(file: Path) -> None:
    header = read_gguf_header(write(file, "llama", LLAMA, vocabulary=5000))
    assert header.version == 3
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray(5000)
    assert header.metadata["tokenizer.ggml.scores"] == LongArray(5000)
    tensor = header.tensors["output.weight"]
    assert (tensor.shape, tensor.ggml_type) == ((32, 3), 0)
    assert file.stat().st_size - tensor.offset == 3 * 32 * 4
    whole = read_gguf_header(file, whole={"tokenizer.ggml.tokens"})
    assert whole.metadata["tokenizer.ggml.tokens"][4999] == "token 4999"


def test_sizes_of_a_llama(file: Path) -> None:
    found = kv_object(str(write(file, "llama", LLAMA)), "-t", "1")
    assert (found["model"], found["kv_bytes"], found["kv_dtype"], found["positions"]) == ("model", 64, "fp16", 64)
    assert found["weights_bytes"] == file.stat().st_size


def test_a_split_file_is_weighed_whole(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", "llama", LLAMA)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(bytes(1000))
    assert kv_object(str(first))["weights_bytes"] == first.stat().st_size + 1000


def test_a_folder_with_one_gguf_file(file: Path) -> None:
    write(file, "llama", LLAMA)
    assert kv_object(str(file.parent), "-t", "1")["kv_bytes"] == 64
    (file.parent / "second.gguf").write_bytes(file.read_bytes())
    assert "exactly one GGUF file" in refusal(str(file.parent))


@pytest.mark.parametrize(
    ("architecture", "more", "expected"),
    [
        ("llama", {"attention.key_length": 16, "attention.value_length": 8}, 2 * 2 * (16 + 8) * 2 * 10),
        ("llama", {"attention.head_count_kv": [2, 4]}, (2 + 4) * 2 * 4 * 2 * 10),
        ("gpt2", {"attention.head_count_kv": 8}, 2 * 8 * 2 * 4 * 2 * 10),
        ("gemma2", {"attention.sliding_window": 3, "attention.key_length": 4}, 2 * 2 * 4 * 2 * (3 + 10)),
        ("falcon", {"attention.head_count_kv": 4}, 2 * 4 * 2 * 4 * 2 * 10),
        ("starcoder", {"attention.head_count_kv": 1}, 2 * 1 * 2 * 4 * 2 * 10),
        (
            "gemma3",
            {"attention.sliding_window": 3, "attention.sliding_window_pattern": [True, False]},
            2 * 2 * 256 * 2 * (3 + 10),
        ),
        (
            "gemma4",
            {
                "attention.sliding_window": 3, "attention.sliding_window_pattern": [True, False],
                "attention.key_length": 16, "attention.value_length": 16, "attention.key_length_swa": 8,
                "attention.value_length_swa": 8, "attention.head_count_kv": [2, 1],
            },
            2 * 2 * 8 * 2 * 3 + 2 * 1 * 512 * 2 * 10,
        ),
        (
            "deepseek2",
            {
                "attention.kv_lora_rank": 12, "rope.dimension_count": 4, "attention.key_length": 16,
                "attention.value_length": 12, "attention.key_length_mla": 10, "attention.value_length_mla": 6,
            },
            2 * 16 * 2 * 10,
        ),
    ],
)  # fmt: skip
def test_architectures(file: Path, architecture: str, more: dict[str, Any], expected: int) -> None:
    assert kv_object(str(write(file, architecture, {**LLAMA, **more})), "-t", "10")["kv_bytes"] == expected


def test_multi_token_prediction_blocks_are_not_layers(file: Path) -> None:
    write(file, "glm4moe", {**LLAMA, "block_count": 3, "nextn_predict_layers": 1})
    assert kv_object(str(file), "-t", "1")["kv_bytes"] == 64


def test_recurrent_layers(file: Path) -> None:
    """Qwen3.5: every 4th layer attends; the state of the others, as llama.cpp's log tells it."""
    hybrid = {
        **LLAMA, "block_count": 40, "full_attention_interval": 4, "attention.key_length": 256,
        "attention.value_length": 256, "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
        "ssm.time_step_rank": 32, "ssm.group_count": 16,
    }  # fmt: skip
    found = kv_object(str(write(file, "qwen35moe", hybrid)), "-t", "1")
    assert found["state_bytes"] == 65863680
    assert found["kv_bytes"] == 10 * 2 * 2 * 256 * 2


def test_layers_without_kv_heads_are_recurrent(file: Path) -> None:
    hybrid = {
        **LLAMA, "block_count": 3, "attention.head_count_kv": [0, 2, 0], "feed_forward_length": [0, 0, 64],
        "ssm.conv_kernel": 4, "ssm.inner_size": 8, "ssm.state_size": 5, "ssm.time_step_rank": 2, "ssm.group_count": 1,
    }  # fmt: skip
    found = kv_object(str(write(file, "nemotron_h", hybrid)), "-t", "1")
    assert [(group["kind"], group["layers"]) for group in found["layers"]] == [("recurrent", 1), ("full", 1)]
    assert found["state_bytes"] == 4 * (3 * (8 + 2 * 5) + 8 * 5)


class TestLies:
    """Counts and lengths that a file cannot hold are refused before they cost memory."""

    @pytest.fixture
    def whole(self, file: Path) -> bytes:
        return write(file, "llama", LLAMA, vocabulary=10).read_bytes()

    def check(self, file: Path, content: bytes, text: str) -> None:
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=text):
            read_gguf_header(file)

    def test_cut_anywhere(self, file: Path, whole: bytes) -> None:
        size = read_gguf_header(file).tensors["output.weight"].offset
        for end in range(4, size - 32, 7):
            file.write_bytes(whole[:end])
            with pytest.raises(CheckpointError):
                read_gguf_header(file)

    def test_not_gguf(self, file: Path) -> None:
        self.check(file, b"PK\3\4 a zip file", "does not begin with GGUF")
        assert not is_gguf(file)
        assert not is_gguf(file.parent / "nothing")

    @pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
    def test_other_versions(self, file: Path, whole: bytes, version: int) -> None:
        self.check(file, whole[:4] + struct.pack("<I", version) + whole[8:], "version 2 or 3")

    @pytest.mark.parametrize("at", [8, 16])
    def test_huge_counts(self, file: Path, whole: bytes, at: int) -> None:
        self.check(file, whole[:at] + struct.pack("<Q", 1 << 62) + whole[at + 8 :], "announces")

    def test_huge_texts_and_arrays(self, file: Path) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
        self.check(file, start + struct.pack("<Q", 1 << 40) + bytes(50), "a text of")
        key = struct.pack("<Q", 1) + b"k"
        self.check(file, start + key + struct.pack("<IIQ", 9, 8, 1 << 40) + bytes(50), "announces")
        self.check(file, start + key + struct.pack("<IIQ", 9, 4, 1 << 62) + bytes(50), "announces")
        self.check(file, start + key + struct.pack("<IIQ", 9, 9, 1) + bytes(50), "arrays of numbers or texts")
        self.check(file, start + key + struct.pack("<I", 77) + bytes(50), "unknown type 77")

    def test_a_tensor_beyond_the_end(self, file: Path, whole: bytes) -> None:
        name = whole.index(b"output.weight")
        offset = name + len(b"output.weight") + 4 + 16 + 4
        self.check(file, whole[:offset] + struct.pack("<Q", 1 << 50) + whole[offset + 8 :], "begins at byte")

    def test_too_many_dimensions(self, file: Path, whole: bytes) -> None:
        at = whole.index(b"output.weight") + len(b"output.weight")
        self.check(file, whole[:at] + struct.pack("<I", 1 << 30) + whole[at + 4 :], "dimensions")

    def test_a_bad_alignment(self, file: Path) -> None:
        pair = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0)
        self.check(file, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair, "general.alignment")

    def test_the_command_refuses_with_exit_code_2(self, file: Path, whole: bytes) -> None:
        file.write_bytes(whole[:100])
        assert "damaged" in refusal(str(file))

    def test_no_architecture(self, file: Path) -> None:
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(8))
        assert "general.architecture" in refusal(str(file))
