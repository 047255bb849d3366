"""What fits: exact answers of the search, the shortfall, mixes, weights, and the exit code that gates a pipeline."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genx.kv_size.allocation import Request
from genx.kv_size.dtypes import KV_DTYPES
from genx.kv_size.engines import ENGINES
from genx.kv_size.layers import Layer, Model
from genx.kv_size.solve import Budget, largest_batch, largest_context, most_copies, required_bytes
from tests.kv_size.command import kv_object, kv_size, refusal

FP16 = KV_DTYPES["fp16"]
GIB = 1 << 30


@settings(deadline=None, max_examples=120)
@given(
    windows=st.lists(st.one_of(st.none(), st.integers(1, 300)), min_size=1, max_size=4),
    engine=st.sampled_from(sorted(set(ENGINES) - {"genx"})),
    batch=st.integers(1, 4),
    tokens=st.integers(1, 500),
    memory=st.integers(1, 1 << 22),
)
def test_one_more_would_not_fit(windows: list[int | None], engine: str, batch: int, tokens: int, memory: int) -> None:
    layers = tuple(Layer("full" if window is None else "sliding", 1, 64, 64, window) for window in (None, *windows))
    model = Model(layers)
    budget = Budget(memory, 0, 0)
    request = Request(((batch, tokens),), FP16, FP16, engine)

    def needed(batch: int, tokens: int) -> int:
        return required_bytes(model, Request(((batch, tokens),), FP16, FP16, engine))

    most_tokens = largest_context(model, request, budget)
    assert most_tokens == 0 or needed(batch, most_tokens) <= memory
    assert needed(batch, most_tokens + 1) > memory
    most_sequences = largest_batch(model, request, budget)
    assert most_sequences == 0 or needed(most_sequences, tokens) <= memory
    assert needed(most_sequences + 1, tokens) > memory
    copies = most_copies(model, request, budget)
    assert copies == most_sequences // batch


def test_the_search_does_not_divide_by_the_bytes_of_one_token() -> None:
    """Gemma 3 27B: 496 KiB for the first token, 80 KiB for each one beyond the window."""
    found = kv_object("gemma-3-27b", "-t", "1k", "--memory", "20GiB", "--kv-dtype", "bf16")
    assert found["max_tokens"] == (20 * GIB - 52 * 1024 * 8192) // (10 * 8192) == 256819
    assert kv_object("gemma-3-27b", "-t", "256819", "--memory", "20GiB")["fits"] is True
    assert kv_object("gemma-3-27b", "-t", "256820", "--memory", "20GiB")["fits"] is False


def test_a_plan_for_one_card() -> None:
    asked = ("llama-3.1-8b", "-t", "32k", "-b", "4", "--memory", "24GiB", "--weights", "8_030_261_248xbf16")
    found = kv_object(*asked, "--reserve", "10%")
    assert found["memory_bytes"] == 24 * GIB
    assert found["weights_bytes"] == 16060522496
    assert found["reserve_bytes"] == 2576980378  # rounded up
    assert (found["fits"], found["shortfall_bytes"]) == (False, 16 * GIB + 16060522496 + 2576980378 - 24 * GIB)
    assert (found["max_tokens"], found["max_batch"]) == (13603, 1)
    assert {(cell["tokens"], cell["batch"]): cell["fits"] for cell in found["fit_table"]}[32768, 1] is True


def test_exit_codes_gate_a_pipeline() -> None:
    assert kv_size("llama-3.1-8b", "-t", "1k", "--memory", "128MiB").status == 0
    short = kv_size("llama-3.1-8b", "-t", "1k", "--memory", "134217727")
    assert short.status == 1
    assert "does not fit: 1 bytes (1 B) short" in short.text
    assert refusal("llama-3.1-8b", "--memory", "0")


def test_nothing_fits_where_the_weights_alone_are_too_large() -> None:
    found = kv_object("llama-3.1-8b", "-t", "0", "--memory", "1GiB", "--weights", "2GiB")
    assert (found["fits"], found["shortfall_bytes"], found["max_tokens"], found["max_batch"]) == (False, GIB, 0, 0)


def test_learned_positions_bound_the_largest_context() -> None:
    assert kv_object("gpt2", "-t", "1", "--memory", "80GiB")["max_tokens"] == 1024


def test_a_mix_of_users() -> None:
    found = kv_object("gemma-3-1b", "--mix", "20x8k,4x32k", "--memory", "8GiB", "--kv-dtype", "bf16")
    each = {tokens: 1024 * (4 * tokens + 22 * 512) for tokens in (8192, 32768)}
    assert found["kv_bytes"] == 20 * each[8192] + 4 * each[32768]
    assert (found["mix"], found["batch"], found["tokens"]) == ([[20, 8192], [4, 32768]], 24, 32768)
    assert (found["max_tokens"], found["max_batch"]) == (None, None)
    assert found["max_mixes"] == 8 * GIB // found["kv_bytes"] == 5
    assert "--mix" in refusal("gemma-3-1b", "--mix", "2x8k", "-t", "5")
    assert "20x8k" in refusal("gemma-3-1b", "--mix", "8k")


def test_several_devices_are_a_pool_unless_the_model_is_spread_over_them() -> None:
    pool = kv_object("llama-3.1-8b", "--memory", "2x8GiB")
    assert (pool["memory_bytes"], pool["fits"]) == (16 * GIB, True)
    spread = kv_object("llama-3.1-8b", "--memory", "2x9GiB", "--tp", "2", "--weights", "2GiB")
    assert (spread["memory_bytes"], spread["kv_bytes"], spread["fits"]) == (9 * GIB, 8 * GIB, True)
    assert "--tp x --pp is 4" in refusal("llama-3.1-8b", "--memory", "2x9GiB", "--tp", "4")


def test_slots_fix_the_batch() -> None:
    found = kv_object("gemma-3-1b", "--engine", "llama.cpp", "--slots", "4", "--memory", "8GiB")
    assert found["max_batch"] is None
    assert found["max_tokens"] > 131072


SMALL = {
    "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4,
    "max_position_embeddings": 8,
}  # fmt: skip


class TestWeights:
    """Bytes of a folder's weights, from headers alone."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(SMALL))
        return tmp_path

    @staticmethod
    def write(path: Path, **tensors: int) -> None:
        header: dict[str, Any] = {}
        end = 0
        for name, count in tensors.items():
            header[name] = {"dtype": "F16", "shape": [count], "data_offsets": [end, end + 2 * count]}
            end += 2 * count
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))

    def weights(self, folder: Path, *more: str) -> int | None:
        found: int | None = kv_object(str(folder), *more)["weights_bytes"]
        return found

    def test_one_file(self, folder: Path) -> None:
        self.write(folder / "model.safetensors", a=3, b=5)
        assert self.weights(folder) == 16

    def test_the_shards_of_the_index_and_no_second_copy(self, folder: Path) -> None:
        self.write(folder / "model-00001-of-00002.safetensors", a=3)
        self.write(folder / "model-00002-of-00002.safetensors", b=5)
        self.write(folder / "consolidated.safetensors", a=3, b=5)
        assert self.weights(folder) == 16
        index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert self.weights(folder) == 6

    def test_an_index_that_points_outside_is_refused(self, folder: Path) -> None:
        index = {"weight_map": {"a": "../secret.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "outside its folder" in refusal(str(folder))

    def test_other_files_by_their_size(self, folder: Path) -> None:
        (folder / "pytorch_model-00001-of-00002.bin").write_bytes(bytes(7))
        (folder / "pytorch_model-00002-of-00002.bin").write_bytes(bytes(5))
        assert self.weights(folder) == 12

    def test_damaged_headers_are_refused_and_can_be_passed_by(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
        assert "--weights" in refusal(str(folder))
        assert self.weights(folder, "--weights", "none") is None
        assert self.weights(folder, "--weights", "1KiB") == 1024

    def test_no_weights(self, folder: Path) -> None:
        assert self.weights(folder) is None
        assert "no weights to measure" in refusal(str(folder), "--weights", "auto")
        assert "no weights to measure" in refusal("gpt2", "--weights", "auto")

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [("8.03Bxbf16", 16060000000), ("135Mxfp32", 540000000), ("32xq4_0", 18), ("24GB", 24 * 10**9), ("none", None)],
    )
    def test_as_given(self, spec: str, expected: int | None) -> None:
        assert kv_object("gpt2", "--weights", spec)["weights_bytes"] == expected

    @pytest.mark.parametrize("spec", ["-1", "nan", "8Bx", "1.5xbf16", "7B", "many"])
    def test_nonsense_is_refused(self, spec: str) -> None:
        assert "--weights" in refusal("gpt2", f"--weights={spec}")
