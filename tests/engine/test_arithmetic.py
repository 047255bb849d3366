"""What a model is computed in: what is asked for, what this machine has, and what cannot be had together."""

from pathlib import Path

import pytest
import torch

from genx.checkpoint.quantization import WEIGHT_BITS, Quantization
from genx.checkpoint.source import FolderSource
from genx.engine.arithmetic import Arithmetic, check_arithmetic, choose_arithmetic
from genx.engine.loading import load_to_run
from genx.errors import ArgumentError, GenxError
from genx.kernels import library
from genx.kernels.linear import QuantizedLinear, Scratch, packed
from tests.architectures import RECIPES, make_tiny

HAS_NATIVE = not isinstance(library.native_library(), str)
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="needs the compiled operations")


def chosen(*asked: str) -> tuple[str | None, str, str]:
    found = choose_arithmetic(*asked)
    return found.dtype, found.weights, found.operations


@needs_native
@pytest.mark.parametrize(
    ("dtype", "quantize", "kernels", "expected"),
    [
        ("auto", "none", "auto", ("float32", "stored", "native")),
        ("auto", "none", "native", ("float32", "stored", "native")),
        ("float32", "none", "auto", ("float32", "float32", "native")),
        ("auto", "int8", "auto", ("float32", "int8", "native")),
        ("float32", "int4", "auto", ("float32", "int4", "native")),
    ],
)
def test_native_operations_compute_in_float32(
    dtype: str, quantize: str, kernels: str, expected: tuple[str, str, str]
) -> None:
    assert chosen("cpu", dtype, quantize, kernels) == expected


@pytest.mark.parametrize(
    ("dtype", "quantize", "expected"),
    [
        ("auto", "none", ("float32", "stored", "torch")),
        ("bfloat16", "none", ("bfloat16", "bfloat16", "torch")),
        ("auto", "int8", ("float32", "int8", "torch")),
    ],
)
def test_torch_where_it_is_asked_for(dtype: str, quantize: str, expected: tuple[str, str, str]) -> None:
    assert chosen("cpu", dtype, quantize, "torch") == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_that_are_asked_for_are_computed_by_torch(dtype: str) -> None:
    assert chosen("cpu", dtype, "none", "auto") == (dtype, dtype, "torch")


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "native_library", lambda: "no compiler was there")
    found = choose_arithmetic("cpu", "auto", "none", "auto")
    assert (found.weights, found.operations) == ("stored", "torch")
    assert found.reason == "there are no native ones: no compiler was there"
    with pytest.raises(GenxError, match="native cannot be had: no compiler was there; allowed here: auto, torch"):
        choose_arithmetic("cpu", "auto", "none", "native")


def test_on_a_gpu_weights_stay_and_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen("auto", "auto", "none", "auto") == (None, "stored", "torch")
    assert chosen("auto", "float16", "none", "auto") == ("float16", "float16", "torch")
    with pytest.raises(ArgumentError, match="quantize int8 and device cuda are both given"):
        choose_arithmetic("auto", "auto", "int8", "auto")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("auto", "auto", "int3", "auto"), "quantize is 'int3'; allowed: none, int8, int4"),
        (("auto", "auto", "none", "fast"), "kernels is 'fast'; allowed: auto, native, torch"),
        (("cuda", "auto", "int8", "auto"), "quantize int8 and device cuda are both given"),
        (("mps", "auto", "none", "native"), "kernels native and device mps are both given"),
        (("cpu", "bfloat16", "int4", "auto"), "quantize int4 and dtype bfloat16 are both given"),
        (("auto", "float16", "none", "native"), "kernels native and dtype float16 are both given"),
    ],
)
def test_refusals(asked: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_arithmetic(*asked)


@needs_native
@pytest.mark.parametrize("name", RECIPES)
def test_16_bit_weights_kept_as_stored_give_float32s_logits(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Weights of 16 bits are float32 numbers too: held as they are they multiply as if they had been made that."""
    model = make_tiny(name, tmp_path_factory.mktemp(name)).model()
    folder = tmp_path_factory.mktemp("half")
    model.to(torch.bfloat16).save(folder)
    kept = load_to_run(folder, choose_arithmetic("cpu", "auto", "none", "native"))
    torch_only = load_to_run(folder, choose_arithmetic("cpu", "auto", "none", "torch"))
    assert torch_only.weights == "float32"
    assert "bfloat16" in kept.weights
    assert kept.weight_bytes < torch_only.weight_bytes
    assert kept.parameters == torch_only.parameters
    assert kept.model.cache_dtype == torch.float32
    ids = torch.arange(3, 20).view(1, -1)
    with torch.no_grad():
        expected, found = torch_only.model(ids)[0], kept.model(ids)[0]
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_bits_of_a_weight(quantize: str) -> None:
    layer = QuantizedLinear(packed(quantize, torch.randn(64, 128), None), None, Scratch(), None)
    assert layer.weight_nbytes * 8 == WEIGHT_BITS[quantize] * 64 * 128


def test_an_arithmetic_says_whether_weights_are_quantised() -> None:
    assert Arithmetic("cpu", "float32", "int4", "torch", "").is_quantized
    assert not Arithmetic("cpu", "float32", "stored", "torch", "").is_quantized


class Stored(FolderSource):
    """A source of which only the kind of its weights is known."""

    def __init__(self, prevailing: str, made: str | None = None) -> None:
        super().__init__(Path("model"))
        self._prevailing = prevailing
        self.__dict__["quantization"] = None if made is None else Quantization(made)

    def prevailing_dtype(self) -> str:
        return self._prevailing


@pytest.mark.parametrize(
    ("asked", "stored", "made", "held"),
    [
        (("auto", "none", "torch"), "bfloat16", None, "float32"),
        (("auto", "none", "torch"), "int8", None, "float32"),
        (("auto", "none", "torch"), "int8", "int8", "int8"),
        (("auto", "int4", "torch"), "int4", "int4", "int4"),
        (("float32", "none", "torch"), "int8", "int8", "float32"),
        (("bfloat16", "none", "auto"), "int8", "int8", "bfloat16"),
        (("auto", "int8", "torch"), "bfloat16", None, "int8"),
        pytest.param(("auto", "none", "native"), "bfloat16", None, "bfloat16", marks=needs_native),
        pytest.param(("auto", "none", "native"), "int4", None, "int4", marks=needs_native),
        pytest.param(("float32", "none", "native"), "int8", None, "float32", marks=needs_native),
        pytest.param(("auto", "none", "native"), "int8", "int8", "int8", marks=needs_native),
    ],
)
def test_how_weights_are_held(asked: tuple[str, str, str], stored: str, made: str | None, held: str) -> None:
    assert choose_arithmetic("cpu", *asked).held(Stored(stored, made)) == held


def test_on_a_gpu_blocks_become_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    arithmetic = choose_arithmetic("auto", "auto", "none", "auto")
    assert arithmetic.held(Stored("int8", "int8"), "bfloat16") == "bfloat16"
    assert arithmetic.held(Stored("int8")) == "float32"
    assert not arithmetic.keeps_blocks(Stored("int8", "int8"))
