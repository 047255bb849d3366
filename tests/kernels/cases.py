"""Matrices, inputs and what they must give, for the tests of native operations."""

import os
from pathlib import Path

import pytest
import torch

from genx.kernels.library import Library, load_library, native_library
from genx.kernels.linear import FloatLinear, KernelLinear, QuantizedLinear, Scratch, packed


def tested_library() -> Library | str:
    """The installed operations, or those that the environment names: a build with sanitizers, say."""
    named = os.environ.get("GENX_TEST_NATIVE")
    return load_library(Path(named), "tested") if named else native_library()


LIBRARY = tested_library()
needs_native = pytest.mark.skipif(isinstance(LIBRARY, str), reason=f"no native operations: {LIBRARY}")

FORMATS = ("float32", "bfloat16", "float16", "int8", "int4")
COLUMNS = (1, 7, 33, 576, 2065, 4097)
ROWS = (1, 2, 3, 4, 5, 8, 16, 17)


def library() -> Library:
    """The operations under test, for tests that `needs_native` guards."""
    assert isinstance(LIBRARY, Library)
    return LIBRARY


def values(kind: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Float32 [rows, columns] of one kind."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(rows, columns, generator=generator)
    if kind == "zeros":
        return torch.zeros(rows, columns)
    if kind == "extremes":
        return random * torch.tensor([1e-30, 1e-3, 1.0, 3e3])[torch.arange(columns) % 4]
    return random


def make_linear(
    kind: str, weight: torch.Tensor, bias: torch.Tensor | None = None, native: Library | None = None
) -> KernelLinear:
    """A linear layer of a format."""
    if kind in ("int8", "int4"):
        return QuantizedLinear(packed(kind, weight, native), bias, Scratch(), native)
    stored = torch.nn.Parameter(weight.to(getattr(torch, kind)))
    return FloatLinear(stored, bias, Scratch(), native, input_first=False)


def assert_sums_equal(found: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> None:
    """`found` is x W^T + b but for float32 rounding: errors are small against the sum of the terms' magnitudes."""
    wide_weight, wide_x = weight.double(), x.double()
    expected, size = wide_x @ wide_weight.T, wide_x.abs() @ wide_weight.abs().T
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    assert found.shape == expected.shape
    assert bool(((found.double() - expected).abs() <= 3e-6 * size + 1e-30).all())
