"""Lists and ranges, and the points that they make."""

import pytest

from genx.bench.sweep import Point, parse_sweep, sweep
from genx.errors import ArgumentError


def parse(text: str, smallest: int = 0) -> tuple[int, ...]:
    return parse_sweep("depth", text, smallest=smallest, largest=10_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", (7,)),
        ("1,2,8", (1, 2, 8)),
        (" 1, 2 ", (1, 2)),
        ("8,8,1", (8, 1)),
        ("1-4", (1, 2, 3, 4)),
        ("0-4096+1024", (0, 1024, 2048, 3072, 4096)),
        ("0-10+4", (0, 4, 8)),
        ("128-1024*2", (128, 256, 512, 1024)),
        ("1-100*10,5", (1, 10, 100, 5)),
        ("3-3*2", (3,)),
    ],
)
def test_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1,",
        "x",
        "-1",
        "1.5",
        "4-1",
        "1-4+0",
        "0-8*2",
        "1-8*1",
        "1-8**2",
        "1--8",
        "10001",
        "9000-20000+500",
        "٣",
        "²",
        "9" * 5000,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"depth is .*; allowed: whole numbers from 0 to 10,000 and ranges of them"):
        parse(text)


def test_too_many_numbers_are_refused() -> None:
    assert len(parse("1-1000")) == 1000
    with pytest.raises(ArgumentError, match="depth is '1-1001'; allowed: at most 1,000 numbers"):
        parse("1-1001")


def test_the_smallest_number_is_the_callers() -> None:
    with pytest.raises(ArgumentError, match="from 1 to 10,000"):
        parse("0,1", smallest=1)


def test_a_sweep_is_every_combination() -> None:
    points = sweep(
        prompt_tokens=[128, 512],
        new_tokens=[0, 64],
        batch=[1],
        depth=[0],
        arithmetic=[("float32", "float32"), ("float32", "int8"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
        threads=[2],
    )
    assert len(points) == 16
    assert points[0] == Point(128, 0, 1, 0, "float32", 2, "float32")
    assert points[1] == Point(128, 64, 1, 0, "float32", 2, "float32")
    assert [point.weights for point in points[::4]] == ["float32", "int8", "bfloat16", "bfloat16"]
    assert points[-1].context == 576
