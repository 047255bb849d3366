"""GGUF's blocks of 32 that genx computes with: every value as it is stored, no more memory than the file."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from genx.checkpoint import convert_model, load_model, open_source
from genx.checkpoint.gguf import relaid
from genx.checkpoint.safetensors_header import read_header
from genx.engine.arithmetic import choose_arithmetic
from genx.engine.loading import load_to_run
from genx.gguf.element_types import BLOCK_FORMATS, ELEMENT_TYPES
from genx.gguf.parts import PackedTensor
from genx.kernels.library import native_library
from genx.kernels.linear import KernelLinear, QuantizedLinear
from genx.kernels.packed import PackedEmbedding
from tests.architectures import RECIPES, make_tiny, prompt
from tests.checkpoint.gguf.test_architectures import TAKEN_FOR_GRANTED
from tests.checkpoint.gguf.test_fuzz import FEW, fuzz_gguf
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf

needs_native = pytest.mark.skipif(isinstance(native_library(), str), reason="needs the compiled operations")
# Rows that are whole blocks of 32.
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6, "head_dim": 16}
GPT_SIZES = {"n_embd": 96, "n_inner": 160}


def tiny_file(name: str, parent: Path, kind: str) -> Path:
    sizes = dict(GPT_SIZES if name == "gpt2" else SIZES)
    if "head_dim" not in RECIPES[name].sizes:
        sizes.pop("head_dim", None)
    if name == "phi3-longrope":
        sizes["num_attention_heads"] = 16  # heads of six channels, for which its factors are
    if "moe_intermediate_size" in RECIPES[name].sizes:
        sizes["moe_intermediate_size"] = 64
    tiny = make_tiny(name, parent, **{**TAKEN_FOR_GRANTED.get(name, {}), **sizes})
    return convert_to_gguf(tiny.folder, parent / "tiny.gguf", kind=kind)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
@pytest.mark.parametrize("columns", [32, 64, 96])
def test_the_values_are_those_of_the_package(
    kind: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random bytes, infinite scales and all; some rows at a time, so that their borders show."""
    element = next(element for element in ELEMENT_TYPES.values() if element.name == kind)
    rows = np.random.default_rng(0).integers(0, 256, (70, columns // 32, element.size), dtype=np.uint8)
    if kind == "Q4_0":
        rows[..., 1] &= 0xBF  # scales below 2, for eight times more overflows
    file = tmp_path / "blocks"
    file.write_bytes(b"xxx" + rows.tobytes())
    monkeypatch.setattr(relaid, "_BYTES_AT_ONCE", 9 * rows[0].nbytes)
    matrix = relaid.read_relaid(PackedTensor(file, (70, columns), element, 3, 3 + rows.nbytes))
    assert matrix is not None
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(rows.reshape(70, -1), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(matrix.floats().numpy(), expected)
    assert matrix.format == BLOCK_FORMATS[kind]


def test_an_offset_that_overflows_is_left_to_floats(tmp_path: Path) -> None:
    blocks = gguf.quantize(np.full((2, 32), 8 * 8200.0, dtype=np.float32), gguf.GGMLQuantizationType.Q4_0)
    file = tmp_path / "blocks"
    file.write_bytes(blocks.tobytes())
    assert relaid.read_relaid(PackedTensor(file, (2, 32), ELEMENT_TYPES[2], 0, 36)) is None


@needs_native
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "gpt"])
def test_logits_are_those_of_the_dequantised_model(name: str, kind: str, tmp_path: Path) -> None:
    file = tiny_file(name, tmp_path, kind)
    kept = load_to_run(file, choose_arithmetic("cpu", "auto", "none", "native"))
    exact = load_model(file, dtype="float32")
    assert kept.parameters == sum(parameter.numel() for parameter in exact.parameters())
    layers = {name: layer for name, layer in kept.model.named_modules() if isinstance(layer, KernelLinear)}
    assert {type(layer) for name, layer in layers.items() if "gate" not in name and "router" not in name} == {
        QuantizedLinear
    }
    assert isinstance(kept.model.get_submodule(kept.model.embedding_name.removesuffix(".weight")), PackedEmbedding)
    x = prompt(2, 11)
    with torch.no_grad():
        assert torch.equal(kept.model.generate(x, 20, False), exact.generate(x, 20, False))
        exact.double()  # torch's own sums in float32 are several times further from it than the bound
        for columns in (x, x[:, :1]):
            found, expected = kept.model(columns)[0], exact(columns)[0]
            assert (found - expected).abs().max() <= 5e-5 * expected.abs().max()


@needs_native
def test_a_tied_head_is_the_embedding_s_blocks(tmp_path: Path) -> None:
    file = tiny_file("llama-tied", tmp_path, "Q8_0")
    kept = load_to_run(file, choose_arithmetic("cpu", "auto", "none", "auto"))
    embedding, head = kept.model.get_submodule("model.embed_tokens"), kept.model.lm_head
    assert isinstance(embedding, PackedEmbedding)
    assert isinstance(head, QuantizedLinear)
    assert embedding.weight_values.data_ptr() == head.weight_values.data_ptr()
    assert (kept.model.cache_dtype, str(kept.model.device)) == (torch.float32, "cpu")
    blocks = [t for t in open_source(file).summarize_tensors().values() if t.dtype == "Q8_0"]
    assert kept.weight_bytes < 1.4 * sum(tensor.nbytes for tensor in blocks)  # of which a third fills up 96 to 128


@needs_native
@pytest.mark.parametrize(
    ("kind", "quantize", "expected"), [("Q8_0", "int8", 0), ("Q8_0", "int4", 3), ("Q4_1", "int8", 3)]
)
def test_what_is_to_be_quantised_otherwise(kind: str, quantize: str, expected: int, tmp_path: Path) -> None:
    """Blocks stay that are what --quantize makes of a layer; others are dequantised first, as floats would be."""
    file = tiny_file("llama", tmp_path, kind)
    kept = load_to_run(file, choose_arithmetic("cpu", "auto", quantize, "native"))
    formats = [layer.format for layer in kept.model.modules() if isinstance(layer, KernelLinear)]
    assert formats == [quantize] * 21 + ["int8"]
    exact = load_model(file)
    name = "model.layers.0.mlp.down_proj"
    layer, weight = kept.model.get_submodule(name), exact.get_parameter(f"{name}.weight")
    assert isinstance(layer, KernelLinear)
    assert torch.equal(layer.expanded(0, 96), weight) == (expected == 0)


@pytest.mark.parametrize(("dtype", "kernels"), [("auto", "torch"), ("float32", "auto"), ("bfloat16", "auto")])
def test_floats_where_they_are_asked_for(dtype: str, kernels: str, tmp_path: Path) -> None:
    loaded = load_to_run(tiny_file("llama", tmp_path, "Q8_0"), choose_arithmetic("cpu", dtype, "none", kernels))
    assert loaded.weights == ("float32" if dtype == "auto" else dtype)


@needs_native
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "gpt-neox", "qwen3-moe"])
@pytest.mark.parametrize(("kind", "quantize"), [("Q8_0", "int8"), ("Q4_1", "int4"), ("Q8_0", "int4")])
def test_a_folder_is_written_of_the_very_blocks(name: str, kind: str, quantize: str, tmp_path: Path) -> None:
    file = tiny_file(name, tmp_path, kind)
    out = convert_model(file, tmp_path / "out", quantize=quantize)
    at_load = load_to_run(file, choose_arithmetic("cpu", "auto", quantize, "native"))
    stored = load_to_run(out, choose_arithmetic("cpu", "auto", "none", "native"))
    x = prompt(2, 11)
    with torch.no_grad():
        assert torch.equal(stored.model(x)[0], at_load.model(x)[0])
    assert (stored.weights, stored.weight_bytes) == (at_load.weights, at_load.weight_bytes)
    assert stored.parameters == at_load.parameters
    names = read_header(out / "model.safetensors").tensors
    embedding = at_load.model.embedding_name
    is_tied = name in ("llama-tied", "gpt2")
    in_blocks = not is_tied or kind == "Q8_0"  # the head that it is tied to has 8 bits
    assert (f"{embedding}_values" in names, embedding in names) == (in_blocks, not in_blocks)
    assert ("lm_head.weight_values" in names) == (not is_tied or not in_blocks)


@needs_native
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    keys = byte_level_tokenizer(["h e"], size=300, bos_token_id=1)
    sizes = {**SIZES, "vocab_size": 300, "num_hidden_layers": 1}
    folder = make_tiny("llama-tied", tmp_path, **sizes).folder
    whole = convert_to_gguf(folder, tmp_path / "whole.gguf", kind=kind, metadata=keys).read_bytes()
    fuzz_gguf(whole, tmp_path / "model.gguf", FEW // 2, seed=7)


@needs_native
def test_blocks_that_stay_need_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tiny_file("llama", tmp_path, "Q4_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert load_to_run(file, choose_arithmetic("cpu", "auto", "none", "auto")).weights == "int4"
