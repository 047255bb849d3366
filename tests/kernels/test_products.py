"""Native projections against sums in float64, for every format, odd sizes, and numbers that are no numbers."""

import pytest
import torch

from genx.core.feed_forward import activation
from genx.core.norm import RMSNorm, UnitOffsetRMSNorm
from genx.kernels.norm import kernel_norm
from genx.kernels.projection import Projection
from tests.kernels.cases import COLUMNS, FORMATS, ROWS, assert_sums_equal, library, make_linear, needs_native, values

pytestmark = needs_native


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("content", ["random", "zeros", "extremes"])
def test_products(kind: str, columns: int, content: str) -> None:
    weight, bias = values(content, 37, columns), values("random", 1, 37, seed=1)[0]
    for given in (None, bias):
        linear = make_linear(kind, weight, given, library())
        dense = linear.expanded(0, 37)
        for rows in ROWS:
            x = values(content, rows, columns, seed=rows)
            assert_sums_equal(linear(x), dense, x, given)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_weights_as_floats(kind: str, columns: int) -> None:
    linear = make_linear(kind, values("random", 21, columns), None, library())
    assert torch.equal(linear.dense(3, 20), linear.expanded(3, 20))
    assert torch.equal(linear.dense(0, 21), linear.expanded(0, 21))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [1, 5])
def test_strange_inputs_come_out_where_they_belong(kind: str, strange: float, rows: int) -> None:
    linear = make_linear(kind, values("random", 19, 70).abs() + 0.1, None, library())
    x = values("random", rows, 70)
    x[rows - 1, 69] = strange
    expected = torch.nn.functional.linear(x, linear.expanded(0, 19))
    found = linear(x)
    assert torch.equal(found.isfinite(), expected.isfinite())
    if kind != "int4":  # whose value 0 times infinity is NaN before its offset is added
        assert torch.equal(found[-1].isnan(), expected[-1].isnan())
    assert_sums_equal(found[:-1], linear.expanded(0, 19), x[:-1], None)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_strange_and_subnormal_weights(kind: str) -> None:
    weight = values("random", 9, 41)
    weight[2, 40], weight[3, 0], weight[4, 17] = float("nan"), float("inf"), -float("inf")
    weight[5] = torch.linspace(-6e-8, 6e-8, 41)  # subnormal in float16
    linear = make_linear(kind, weight, None, library())
    assert torch.equal(linear.dense(0, 9).nan_to_num(7.0), linear.expanded(0, 9).nan_to_num(7.0))
    for rows in (1, 4):
        x = values("random", rows, 41).abs() + 0.1
        expected = torch.nn.functional.linear(x, linear.expanded(0, 9))
        torch.testing.assert_close(linear(x), expected, equal_nan=True)


def test_the_number_of_threads_changes_nothing() -> None:
    before = torch.get_num_threads()
    try:
        for kind in FORMATS:
            linear = make_linear(kind, values("random", 501, 1100), values("random", 1, 501)[0], library())
            for rows in (1, 3, 16):
                x = values("random", rows, 1100)
                found = []
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    found.append(linear(x))
                assert torch.equal(found[0], found[1])
                assert torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("columns", [33, 576, 2065])
def test_of_two_rows_or_more_their_number_changes_nothing(kind: str, columns: int) -> None:
    linear = make_linear(kind, values("random", 37, columns), values("random", 1, 37, seed=1)[0], library())
    most = min(203, library().rows_max)
    x = values("random", most, columns)
    together = linear(x)
    assert_sums_equal(together, linear.expanded(0, 37), x, linear.bias)
    for rows in (row for row in (*range(2, 17), 95, 96, 97, 150) if row < most):
        assert torch.equal(linear(x[:rows]), together[:rows])
        assert torch.equal(linear(x[-rows:]), together[-rows:])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("columns", [33, 576, 2065, 4097])
def test_a_matrix_of_more_rows_gives_each_the_same_sum(kind: str, columns: int) -> None:
    weight, x = values("random", 23, columns), values("random", 1, columns, seed=1)
    whole = make_linear(kind, weight, None, library())(x)
    for rows in range(1, 10):
        assert torch.equal(make_linear(kind, weight[:rows], None, library())(x), whole[:, :rows])


NORMS = {"none": None, "rms": RMSNorm, "unit offset": UnitOffsetRMSNorm, "layer": torch.nn.LayerNorm}


def random_norm(norm: str, columns: int) -> torch.nn.Module:
    made = NORMS[norm](columns, 1e-5)
    for parameter in made.parameters():
        parameter.data.normal_(1.0, 0.3)
    return made


@torch.no_grad()
@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "none"])
@pytest.mark.parametrize("columns", [1, 2, 33, 576, 4097])
def test_norms(norm: str, columns: int) -> None:
    module = random_norm(norm, columns)
    native = kernel_norm(module, library())
    assert native is not None
    for kind in ("random", "zeros", "extremes"):
        x = values(kind, 7, columns)
        if columns > 1 or norm != "layer":  # of one value nothing but rounding is left
            torch.testing.assert_close(native(x), module(x), rtol=1e-5, atol=1e-5)
    x[3, 0] = float("nan")
    assert native(x).isnan().any(dim=1).tolist() == [row == 3 for row in range(7)]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activate", [None, "silu", "gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("columns", [1, 33, 576])
def test_what_stands_before_and_after(norm: str, activate: str | None, gated: bool, columns: int) -> None:
    torch.manual_seed(5)
    made = None if NORMS[norm] is None else kernel_norm(random_norm(norm, columns), library())
    sizes = (45, 45) if gated else (45,)
    weights = [values("random", size, columns, seed=seed) / columns**0.5 for seed, size in enumerate(sizes)]
    linears = [make_linear("float32", weight, torch.randn(len(weight)), library()) for weight in weights]
    function = None if activate is None else activation(activate)
    projection = Projection(linears, library(), norm=made, activate=function, gated=gated)
    with torch.no_grad():
        for rows in (1, 2, 7, 100):
            x = values("random", rows, columns, seed=9) * 3
            residual = values("random", rows, 45, seed=10)
            torch.testing.assert_close(projection(x), projection.by_torch(x), rtol=2e-5, atol=2e-5)
            torch.testing.assert_close(projection(x, residual), projection.by_torch(x, residual), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activate", ["silu", "gelu", "gelu_new", "relu"])
def test_activations_over_their_whole_range(activate: str) -> None:
    function = activation(activate)
    points = torch.cat(
        (torch.linspace(-120, 120, 4001), torch.tensor([0.0, -0.0, 1e-30, 3e38, -3e38, torch.inf, torch.nan]))
    )
    linear = make_linear("float32", points.unsqueeze(1), None, library())
    found = Projection([linear], library(), activate=function)(torch.ones(1, 1))
    torch.testing.assert_close(found[0], function(points), rtol=2e-6, atol=1e-6, equal_nan=True)


def test_several_matrices_stand_side_by_side() -> None:
    linears = [make_linear("bfloat16", values("random", size, 96, seed=size), None, library()) for size in (50, 17, 1)]
    projection = Projection(linears, library())
    for rows in (1, 6):
        x = values("random", rows, 96)
        found = projection(x)
        assert torch.equal(found, torch.cat([linear(x) for linear in linears], dim=-1))


@pytest.mark.parametrize("kinds", [("int8", "int4"), ("float32", "int8", "int4"), ("int4", "bfloat16")])
@pytest.mark.parametrize("columns", [64, 70])
def test_matrices_of_several_formats_stand_side_by_side(kinds: tuple[str, ...], columns: int) -> None:
    weights = [values("random", 20, columns, seed=seed) for seed in range(len(kinds))]
    linears = [make_linear(kind, weight, None, library()) for kind, weight in zip(kinds, weights, strict=True)]
    weight = torch.cat([linear.expanded(0, 20) for linear in linears])
    for rows in (1, 4):
        x = values("random", rows, columns, seed=9)
        assert_sums_equal(Projection(linears, library())(x), weight, x, None)


def test_inputs_that_would_be_misread_are_refused() -> None:
    linear = make_linear("float32", values("random", 5, 8), None, library())
    with pytest.raises(ValueError, match=r"float64.*allowed: torch\.float32"):
        linear(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\[2, 4\] on cpu; allowed: .*\[2, 8\]"):
        linear(torch.zeros(2, 4))
    projection = Projection([linear], library())
    with pytest.raises(ValueError, match=r"\[1, 5\] on cpu; allowed: .*\[2, 5\]"):
        projection(torch.zeros(2, 8), torch.zeros(1, 5))


def test_inputs_that_are_views_are_read_right() -> None:
    linear = make_linear("int8", values("random", 5, 64), None, library())
    x = values("random", 64, 3).T
    assert torch.equal(linear(x), linear(x.contiguous()))
