"""What scripts/measure_fidelity computes, and the files that it gives llama.cpp."""

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from peers.fidelity import CONTINUED, TEXTS, Texts, compare
from peers.gguf_copies import off_the_grid, write_copy


def write_source(path: Path) -> dict[str, np.ndarray]:
    """Two matrices of 4 bits and a vector."""
    random = np.random.default_rng(3)
    shapes = {"token_embd.weight": (8, 64), "blk.0.ffn_up.weight": (16, 64), "output_norm.weight": (64,)}
    values = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("llama.list", ["a", "b"])
    for name, tensor in values.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
            continue
        packed = gguf.quantize(tensor, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        values[name] = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


@pytest.mark.parametrize(
    ("name", "formats"),
    [("F32", ["F32", "F32"]), ("F16", ["F16", "F16"]), ("Q8_0", ["Q8_0", "Q8_0"]), ("Q4_1", ["Q8_0", "Q4_1"])],
)
def test_a_copy_has_the_same_values_in_another_format(tmp_path: Path, name: str, formats: list[str]) -> None:
    values = write_source(tmp_path / "source.gguf")
    write_copy(tmp_path / "source.gguf", tmp_path / "copy.gguf", name)
    reader = gguf.GGUFReader(tmp_path / "copy.gguf")
    assert reader.fields["llama.list"].contents() == ["a", "b"]
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert [stored[n].tensor_type.name for n in values] == [*formats, "F32"]
    for n, tensor in stored.items():
        error = np.abs(gguf.dequantize(tensor.data, tensor.tensor_type) - values[n]).max()
        assert error <= {"F32": 0.0, "F16": 1e-3, "Q8_0": 0.02, "Q4_1": 1e-3}[tensor.tensor_type.name]
    assert not list(tmp_path.glob("*.part"))


def test_noise_stays_within_half_a_step_of_its_block() -> None:
    values = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    changed = off_the_grid(5)("", values)
    blocks, moved = values.reshape(-1, 32), (changed - values).reshape(-1, 32)
    step = (blocks.max(1) - blocks.min(1)) / 15
    assert (np.abs(moved).max(1) <= step / 2 * 1.0001).all()
    assert (np.abs(moved).max(1) > step / 3).all()
    assert (off_the_grid(5)("", values) == changed).all()
    assert (off_the_grid(6)("", values) != changed).any()


def test_a_comparison_by_hand() -> None:
    """Two answers about one text: the reference is even over two ids, the other engine leans to the first."""
    reference = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]).log()
    leaning = torch.tensor([[0.75, 0.25, 0.0], [0.6, 0.3, 0.1]]).log()

    def answers(ids: tuple[int, ...], places: range) -> Tensor:
        assert list(places) == [0, 2]
        return leaning

    own = [1] * CONTINUED
    found = compare("x", answers, lambda ids: [1, 1, 2, *own[3:]], Texts([(0, 1, 2, 0)], 2), [reference], [own])
    first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    second = 0.1 * math.log(0.1 / 0.6) + 0.2 * math.log(0.2 / 0.3) + 0.7 * math.log(7)
    assert found.kl == pytest.approx((first + second) / 2, rel=1e-6)
    assert found.agreement == 0.5
    assert found.perplexity == pytest.approx((1 / 0.25 / 0.6) ** 0.5, rel=1e-6)  # ids 1 and 0 follow
    assert (found.tokens, found.prefix) == (2, 2)


def test_there_are_twenty_texts() -> None:
    assert len(TEXTS.read_text(encoding="utf-8").strip().split("\n\n")) == 20
