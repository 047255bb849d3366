"""Folders in blocks of 8 or 4 bits: the same model as quantising at load, from the mapped file, bit for bit."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from genx.checkpoint import convert_model, load_model, open_source, quantizing
from genx.checkpoint.safetensors_header import read_header
from genx.core.base_model import BaseModel
from genx.engine.arithmetic import choose_arithmetic
from genx.engine.loading import LoadedModel, load_to_run
from genx.errors import CheckpointError, GenxError
from genx.kernels.library import native_library
from genx.kernels.linear import QuantizedLinear
from tests.architectures import RECIPES, make_tiny, prompt
from tests.fixtures.folders import assert_same_weights

HAS_NATIVE = not isinstance(native_library(), str)
KERNELS = ["torch", pytest.param("native", marks=pytest.mark.skipif(not HAS_NATIVE, reason="no native operations"))]
FORMATS = ("int8", "int4")


def loaded(folder: Path, quantize: str = "none", kernels: str = "auto", dtype: str = "auto") -> LoadedModel:
    return load_to_run(folder, choose_arithmetic("cpu", dtype, quantize, kernels))


def logits(model: BaseModel) -> list[torch.Tensor]:
    """Of a pass over many tokens, and of one with a cache."""
    x = prompt(2, 11)
    with torch.no_grad():
        whole, cache = model(x[:, :-1], use_cache=True)
        return [whole, model(x[:, -1:], cache, use_cache=True)[0]]


def assert_same(model: BaseModel, other: BaseModel) -> None:
    for found, expected in zip(logits(model), logits(other), strict=True):
        assert torch.equal(found, expected)


@pytest.fixture(scope="module", params=RECIPES)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each architecture, some in bfloat16."""
    tiny = make_tiny(request.param, tmp_path_factory.mktemp("tiny"))
    if len(request.param) % 2:
        folder = tmp_path_factory.mktemp("half")
        tiny.model().to(torch.bfloat16).save(folder)
        return folder
    return tiny.folder


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_the_same_logits_as_quantised_at_load(
    original: Path, quantize: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":  # between trials of 4 bits that are equally good the two ways of quantising may differ
        monkeypatch.setattr(quantizing, "native_library", lambda: "not wanted")
    folder = convert_model(original, tmp_path / "out", quantize=quantize)
    at_load, stored = loaded(original, quantize, kernels), loaded(folder, kernels=kernels)
    assert_same(stored.model, at_load.model)
    assert_same(loaded(folder, quantize, kernels).model, at_load.model)
    assert (stored.weights, stored.weight_bytes) == (at_load.weights, at_load.weight_bytes)
    assert stored.parameters == at_load.parameters


@pytest.mark.parametrize("quantize", FORMATS)
def test_dequantised_again_it_computes_the_same(original: Path, quantize: str, tmp_path: Path) -> None:
    folder = convert_model(original, tmp_path / "blocks", quantize=quantize)
    floats = convert_model(folder, tmp_path / "floats")
    assert open_source(floats).prevailing_dtype() == "float32"
    assert "quantization_config" not in json.loads((floats / "config.json").read_text())
    expected, found = logits(loaded(folder, kernels="torch").model), logits(load_model(floats))
    for own, other in zip(found, expected, strict=True):
        assert (own - other).abs().max() <= 2e-5 * other.abs().max()
    assert_same_weights(load_model(floats), load_model(folder, dtype="float32"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model whose columns are no multiples of 64, in bfloat16."""
    parent = tmp_path_factory.mktemp("tied")
    make_tiny("llama-tied", parent).model().to(torch.bfloat16).save(parent / "half")
    return parent / "half"


@pytest.mark.parametrize("quantize", FORMATS)
def test_what_is_written(folder: Path, quantize: str, tmp_path: Path) -> None:
    out = convert_model(folder, tmp_path / "out", quantize=quantize)
    config = json.loads((out / "config.json").read_text())
    stated = config["quantization_config"]
    columns = stated.pop("columns")
    assert stated.pop("input_first") == []
    assert stated == {
        "quant_method": "genx",
        "bits": {"int8": 8, "int4": 4}[quantize],
        "group_size": 32,
        "modules_to_not_convert": ["model.embed_tokens"],
    }
    assert columns["model.layers.0.mlp.down_proj.weight"] == 52
    assert (config["tie_word_embeddings"], config["torch_dtype"]) == (True, "bfloat16")
    tensors = read_header(out / "model.safetensors").tensors
    down = {"int8": ("I8", (36, 64), (36, 2)), "int4": ("U8", (36, 32), (36, 2, 2))}[quantize]
    name = "model.layers.0.mlp.down_proj.weight"
    assert (tensors[f"{name}_values"].dtype, tensors[f"{name}_values"].shape) == down[:2]
    assert (tensors[f"{name}_scales"].dtype, tensors[f"{name}_scales"].shape) == ("F16", down[2])
    assert (tensors["lm_head.weight_values"].dtype, tensors["lm_head.weight_values"].shape) == ("I8", (97, 64))
    assert tensors["model.embed_tokens.weight"].dtype == "BF16"
    assert all(tensor.start % 32 == 0 for tensor in tensors.values() if tensor.dtype in ("I8", "U8"))
    assert not {name for name in tensors if name.endswith("_proj.weight")}


def test_a_folder_in_blocks_can_be_copied_but_not_quantised_otherwise(folder: Path, tmp_path: Path) -> None:
    first = convert_model(folder, tmp_path / "first", quantize="int4")
    second = convert_model(first, tmp_path / "second", quantize="int4")
    for name in ("model.safetensors", "config.json"):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    with pytest.raises(CheckpointError, match="has weights of int4; allowed: int4, or a dtype"):
        convert_model(first, tmp_path / "third", quantize="int8")
    with pytest.raises(GenxError, match="has weights of int4 already; drop"):
        loaded(first, "int8")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_blocks_are_the_mapped_file(folder: Path, tmp_path: Path) -> None:
    out = convert_model(folder, tmp_path / "out", quantize="int8")
    model = loaded(out).model
    maps = Path("/proc/self/maps").read_text().splitlines()
    file = str(out / "model.safetensors")
    inside = [range(*(int(edge, 16) for edge in line.split()[0].split("-"))) for line in maps if line.endswith(file)]
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    assert len(layers) == 3 * 7 + 1
    for tensor in [tensor for layer in layers for tensor in (layer.weight_values, layer.weight_scales)]:
        assert any(tensor.data_ptr() in part for part in inside)
    assert any(model.get_parameter("model.embed_tokens.weight").data_ptr() in part for part in inside)


def test_floats_where_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    out = convert_model(folder, tmp_path / "out", quantize="int8")
    exact = loaded(out, kernels="torch").model
    for dtype, tolerance in (("float32", 2e-5), ("bfloat16", 0.2)):
        found = loaded(out, dtype=dtype)
        assert found.weights == dtype
        for own, other in zip(logits(found.model), logits(exact), strict=True):
            assert (own - other).abs().max() <= tolerance * other.abs().max()
    assert load_model(out).cache_dtype == torch.bfloat16  # as its configuration says


def test_a_model_in_blocks_is_not_saved(folder: Path, tmp_path: Path) -> None:
    out = convert_model(folder, tmp_path / "out", quantize="int8")
    with pytest.raises(GenxError, match="genx convert --quantize writes them"):
        loaded(out).model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def break_it(out: Path, header: bytes, **changes: object) -> None:
    """Put other bytes for `header` in the file's header, and other fields in `quantization_config`."""
    old = header
    file, config = out / "model.safetensors", json.loads((out / "config.json").read_text())
    content = file.read_bytes()
    new = changes.pop("by", old)
    assert isinstance(new, bytes)
    assert len(new) == len(old)
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    config["quantization_config"] |= changes
    (out / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("header", "changes", "message"),
    [
        (b"", {"bits": 3}, "weights of 3 bits in groups of 32; allowed: 8 or 4 bits in groups of 32"),
        (b"", {"bits": [8]}, "weights of [8] bits"),
        (b"", {"group_size": 64}, "8 bits in groups of 64"),
        (b"", {"columns": ["x"]}, "columns of quantization_config is not an object"),
        (b"", {"columns": {}}, "q_proj.weight [60, 64], expected [60, 36]"),
        (b"", {"quant_method": "other"}, "quantised by other"),
        (b'[97,64]', {"by": b'[64,97]'}, "stores lm_head.weight as _values I8 [64, 97]"),
        (b'"I8","shape":[97,64]', {"by": b'"U8","shape":[97,64]'}, "stores lm_head.weight as _values U8 [97, 64]"),
        (b"lm_head.weight_scales", {"by": b"lm_head.weight_scalez"}, "one part of lm_head.weight without the other"),
        (b"lm_head.weight_values", {"by": b"xm_head.weight_values"}, "one part of lm_head.weight without the other"),
        (b'"shape":[97,2]', {"by": b'"shape":[2,97]'}, "_scales F16 [2, 97]"),
    ],
)  # fmt: skip
def test_refusals(folder: Path, header: bytes, changes: dict[str, object], message: str, tmp_path: Path) -> None:
    out = convert_model(folder, tmp_path / "out", quantize="int8")
    break_it(out, header, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        loaded(out)
    assert "\n" not in str(caught.value)
