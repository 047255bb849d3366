"""Counts and sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genx.errors import UsageError
from genx.kv_size.dtypes import KV_DTYPES, config_dtype, find_dtype
from genx.kv_size.quantities import (
    Memory,
    Reserve,
    human_bytes,
    parse_bytes,
    parse_count,
    parse_counts,
    parse_memory,
    parse_mix,
    parse_reserve,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("131072", 131072), ("131_072", 131072), ("128k", 131072), ("128K", 131072), ("1.5k", 1536),
        ("1M", 1 << 20),
    ],
)  # fmt: skip
def test_counts(text: str, expected: int) -> None:
    assert parse_count(text, "--tokens", 1 << 40) == expected


@pytest.mark.parametrize(
    "text", ["", "-1", "1.3", "1.3k", "nan", "inf", "1e3", "128kb", "072", "0x10", "１２", "1_", "9" * 40]
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="--tokens"):
        parse_count(text, "--tokens", 1 << 40)


def test_several_counts() -> None:
    assert parse_counts("1k,2k, 5", "--tokens", 1 << 40) == (1024, 2048, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("24GiB", 24 << 30), ("24 gib", 24 << 30), ("24GB", 24 * 10**9), ("1.5KiB", 1536), ("0.001kB", 1)],
)
def test_byte_counts(text: str, expected: int) -> None:
    assert parse_bytes(text, "--memory") == expected


@pytest.mark.parametrize("text", ["", "-1", "24G", "7B", "nan", "24GiBs", "1e9", "9" * 30])
def test_what_is_no_byte_count(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_bytes(text, "--memory")


def test_memory_reserve_and_mix() -> None:
    assert parse_memory("2x24GiB") == Memory(2, 24 << 30)
    assert parse_memory("2x24GiB").total == 48 << 30
    assert [parse_reserve(text).of(1001) for text in ("10%", "0%", "100%", "7")] == [101, 0, 1001, 7]
    assert Reserve().of(5) == 0
    assert parse_mix("20x8k, 4x128k") == ((20, 8192), (4, 131072))
    for bad in ("101%", "-1%", "x"):
        with pytest.raises(UsageError, match="--reserve"):
            parse_reserve(bad)


@given(st.integers(0, 1 << 60))
def test_sizes_shown_are_within_half_a_hundredth_of_their_unit(count: int) -> None:
    for si, base in ((False, 1024), (True, 1000)):
        number, unit = human_bytes(count, si=si).split()
        power = ["B", "K", "M", "G", "T"].index(unit[0].upper())
        assert abs(float(number.replace(",", "")) - count / base**power) <= 0.005 + 1e-9


def test_dtype_names() -> None:
    assert [config_dtype(name) for name in ("torch.bfloat16", "float16", "float32", "float8_e4m3fn", "int8", None)] == [
        "bf16", "fp16", "fp32", None, None, None,
    ]  # fmt: skip
    assert find_dtype("F16", "--kv-dtype") == KV_DTYPES["fp16"]
    assert KV_DTYPES["q4_0"].describe() == "q4_0: 4.5 bits an element, scales of 32 elements included"
    assert KV_DTYPES["int8_per_token_head"].describe() == (
        "int8_per_token_head: 8 bits an element and 4 bytes a head and token"
    )
    assert KV_DTYPES["fp8_ds_mla"].describe() == "fp8_ds_mla: 656 bytes a token and layer"


def test_blocks_and_groups_of_odd_vectors() -> None:
    assert KV_DTYPES["q8_0"].vector_bytes(33) == 2 * 34  # ggml pads to whole blocks
    assert KV_DTYPES["int4"].vector_bytes(33) == 17 + 2 * 2  # a group of one element has a scale, and no padding
    assert KV_DTYPES["fp8_ds_mla"].vector_bytes(0) == 0
