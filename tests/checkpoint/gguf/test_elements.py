"""Every element type: what comes out is what the package gguf says the blocks hold."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from genx.checkpoint import load_model, open_source
from genx.checkpoint.gguf import packed
from genx.errors import CheckpointError
from genx.gguf.element_types import ELEMENT_TYPES, ElementType
from genx.gguf.header import read_gguf_header
from tests.architectures import make_tiny
from tests.fixtures.gguf_files import convert_to_gguf

PACKED = [element for element in ELEMENT_TYPES.values() if element.values > 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), **sizes).folder


def test_sizes_are_the_package_s() -> None:
    for number, element in ELEMENT_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (element.name, element.values, element.size)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_matrices_quantised_by_the_package(kind: str, folder: Path, tmp_path: Path) -> None:
    file = convert_to_gguf(folder, tmp_path / "tiny.gguf", kind=kind)
    model, exact = load_model(file), load_model(folder)
    name = "model.layers.2.mlp.down_proj.weight"
    original = exact.get_parameter(name).detach().float().numpy()
    number = gguf.GGMLQuantizationType[kind]
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(original, number), number))
    assert torch.equal(model.get_parameter(name).float(), expected)
    assert model.get_parameter(name).dtype is {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    assert open_source(file).summarize_tensors()["blk.2.ffn_down.weight"].dtype == kind


@pytest.mark.parametrize("element", PACKED, ids=lambda element: element.name)
def test_blocks_of_random_bytes(
    element: ElementType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a few blocks, so that their borders show."""
    monkeypatch.setattr(packed, "_VALUES_AT_ONCE", 3 * element.values)
    file = convert_to_gguf(folder, tmp_path / "tiny.gguf")
    rows = np.random.default_rng(0).integers(0, 256, (256, 256 // element.values * element.size), dtype=np.uint8)
    stored = read_gguf_header(file).tensors["blk.1.ffn_gate.weight"]
    content = bytearray(file.read_bytes())
    content[stored.offset : stored.offset + rows.nbytes] = rows.tobytes()
    entry = content.index(b"blk.1.ffn_gate.weight") + len("blk.1.ffn_gate.weight")
    number = next(number for number, known in ELEMENT_TYPES.items() if known is element)
    content[entry + 20 : entry + 24] = number.to_bytes(4, "little")
    file.write_bytes(content)
    loaded = load_model(file).get_parameter("model.layers.1.mlp.gate_proj.weight").detach().numpy()
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(rows, gguf.GGMLQuantizationType(number))
    np.testing.assert_array_equal(loaded, expected)


def test_plain_floats_need_no_package_and_stay_in_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = convert_to_gguf(folder, tmp_path / "tiny.gguf", kind="F32")
    monkeypatch.setitem(sys.modules, "gguf", None)
    before = file.read_bytes()
    weight = load_model(file).get_parameter("model.layers.0.mlp.up_proj.weight")
    with torch.no_grad():
        weight.zero_()  # of the mapping, which is private
    assert file.read_bytes() == before


def test_blocks_without_the_package_are_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = convert_to_gguf(folder, tmp_path / "tiny.gguf", kind="Q4_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError) as caught:
        load_model(file)
    assert str(caught.value) == (
        f"{file} is quantised (Q4_0); reading that needs the package gguf: python -m pip install 'genx[gguf]'"
    )
