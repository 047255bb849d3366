"""Quantised weights: the reference's exact properties, and the native operations' equality with it."""

import pytest
import torch

from genx.errors import GenxError
from genx.kernels.library import Library
from genx.kernels.linear import quantized
from genx.kernels.quantize import (
    dequantize_int4,
    dequantize_int8,
    pack_int4,
    padded_columns,
    quantize_int4,
    quantize_int8,
)
from tests.kernels.cases import LIBRARY, library, needs_native, values

DOORS = [None, *([LIBRARY] if isinstance(LIBRARY, Library) else [])]
EXPAND = {"int8": dequantize_int8, "int4": dequantize_int4}


@pytest.mark.parametrize("native", DOORS)
@pytest.mark.parametrize("columns", [1, 33, 64, 577])
def test_int8_rounds_to_half_a_step(native: Library | None, columns: int) -> None:
    weight = values("random", 11, columns)
    stored, scales = quantized("int8", weight, native)
    assert stored.shape == (11, padded_columns(columns))
    steps = scales.float().repeat_interleave(32, dim=1)[:, :columns]
    error = (dequantize_int8(stored, scales, columns) - weight).abs()
    assert bool((error <= steps * 0.5625).all())  # half a step, and what the scale's own rounding moves
    assert int(stored.abs().max()) == 127


@pytest.mark.parametrize("native", DOORS)
def test_int4_finds_the_grid_that_weights_lie_on(native: Library | None) -> None:
    generator = torch.Generator().manual_seed(4)
    value = torch.randint(0, 16, (40, 128), generator=generator)
    value[:10] = value[:10].clamp(3, 14)  # blocks that do not use all 16
    scale = torch.rand(40, 4, generator=generator).half().float().repeat_interleave(32, dim=1) * 0.1
    offset = torch.randn(40, 4, generator=generator).half().float().repeat_interleave(32, dim=1)
    weight = value * scale.half().float() + offset
    found = dequantize_int4(*quantized("int4", weight, native), 128)
    assert float((found - weight).abs().max()) <= 2e-3 * float(weight.abs().max())


@pytest.mark.parametrize("native", DOORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int4_beats_rounding_to_the_nearest_of_16(native: Library | None, dtype: torch.dtype) -> None:
    weight = values("random", 64, 256).to(dtype)
    blocks = weight.float().view(-1, 32)
    low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
    step = (high - low) / 15
    nearest = ((blocks - low) / step).round() * step + low
    found = dequantize_int4(*quantized("int4", weight, native), 256).view(-1, 32)
    assert float((found - blocks).square().sum()) <= 0.85 * float((nearest - blocks).square().sum())


@needs_native
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("columns", [1, 7, 33, 576, 2065])
@pytest.mark.parametrize("content", ["random", "zeros", "extremes"])
def test_native_equals_the_reference(kind: str, columns: int, content: str) -> None:
    weight = values(content, 23, columns)
    found, expected = quantized(kind, weight, library()), quantized(kind, weight, None)
    if kind == "int8":
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        return
    errors = [float((dequantize_int4(*stored, columns) - weight).square().sum()) for stored in (found, expected)]
    assert errors[0] <= errors[1] * 1.001 + 1e-12  # ties between trials may fall either way
    assert errors[1] <= errors[0] * 1.001 + 1e-12


@pytest.mark.parametrize("native", DOORS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("fault", "message"), [(float("nan"), "not a number"), (-float("inf"), "infinite"), (9e6, "too large")]
)
def test_what_no_block_can_hold_is_refused(native: Library | None, kind: str, fault: float, message: str) -> None:
    weight = values("random", 5, 40)
    weight[4, 39] = fault if fault != 9e6 or kind == "int4" else 9e6 * 2
    with pytest.raises(GenxError, match=message):
        quantized(kind, weight, native)


@pytest.mark.parametrize("native", DOORS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_constant_block_keeps_its_value(native: Library | None, kind: str) -> None:
    weight = torch.full((3, 64), 0.4990234375)  # exact in float16
    found = EXPAND[kind](*quantized(kind, weight, native), 64)
    assert float((found - weight).abs().max()) <= 2.5e-4


def test_packing_is_undone() -> None:
    stored = torch.randint(0, 16, (6, 192), dtype=torch.uint8)
    scales = torch.tensor([1.0, 0.0], dtype=torch.float16).expand(6, 6, 2)
    assert torch.equal(dequantize_int4(pack_int4(stored), scales, 192), stored.float())


def test_the_reference_reads_any_dtype() -> None:
    weight = values("random", 4, 64)
    for quantize in (quantize_int8, quantize_int4):
        for narrow in (torch.bfloat16, torch.float16, torch.float64):
            expected = quantize(weight.to(narrow).float())
            assert all(map(torch.equal, quantize(weight.to(narrow)), expected))
