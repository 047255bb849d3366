"""Engines on any list of layers: the sum over groups equals a count position by position."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genx.cache_rules import allocated_positions
from genx.errors import UsageError
from genx.kv_size.allocation import Request
from genx.kv_size.dtypes import KV_DTYPES, KvDtype, find_dtype
from genx.kv_size.engines import ENGINES, size, split
from genx.kv_size.layers import Layer, Model, with_state_bytes
from tests.kv_size.command import kv_object, refusal

GENERAL_DTYPES = [dtype for dtype in KV_DTYPES.values() if dtype.name != "fp8_ds_mla"]
sizes = st.integers(1, 70)
attending = st.builds(
    lambda kind, heads, key, value, window, shares: Layer(
        kind,
        heads,
        key,
        value,
        window if kind in ("sliding", "chunked") else None,
        shares_with=0 if shares else None,
    ),
    st.sampled_from(["full", "sliding", "chunked"]),
    st.integers(1, 9),
    sizes,
    sizes,
    st.integers(1, 40),
    st.booleans(),
)
recurrent = st.builds(lambda elements: Layer("recurrent", 0, 0, 0, state_elements=elements), st.integers(1, 99))
layer_lists = st.lists(st.one_of(attending, recurrent), min_size=1, max_size=12)
workloads = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), min_size=1, max_size=3)


def vector_bits(dtype: KvDtype, elements: int) -> int:
    """Element by element: a scale wherever a group begins; ggml also fills its last block."""
    bits = 0
    for index in range(elements):
        starts_group = index == 0 if dtype.group_size is None else index % dtype.group_size == 0
        bits += dtype.bits + (8 * dtype.scale_bytes if starts_group else 0)
    if dtype.whole_blocks and dtype.group_size:
        bits += dtype.bits * (-elements % dtype.group_size)
    return bits


def brute_force(layers: list[Layer], request: Request, keeps: Callable[[Layer, int, int], bool]) -> int:
    total = 0
    for layer in layers:
        if layer.shares_with is not None:
            continue
        heads = -(-layer.kv_heads // request.tensor_parallel)
        each = heads * (
            -(-vector_bits(request.key_dtype, layer.key_size) // 8)
            + -(-vector_bits(request.value_dtype, layer.value_size) // 8)
        )
        for count, tokens in request.sequences:
            for _ in range(count):
                total += sum(each for position in range(tokens) if keeps(layer, position, tokens))
    return total


@settings(deadline=None, max_examples=150)
@given(
    layers=layer_lists,
    sequences=workloads,
    key=st.sampled_from(GENERAL_DTYPES),
    value=st.sampled_from(GENERAL_DTYPES),
    tensor_parallel=st.integers(1, 10),
)
def test_ideal_and_full_equal_a_count_of_every_position(
    layers: list[Layer], sequences: list[tuple[int, int]], key: KvDtype, value: KvDtype, tensor_parallel: int
) -> None:
    model = Model(tuple(layers))
    request = Request(tuple(sequences), key, value, tensor_parallel=tensor_parallel)
    rules: dict[str, Callable[[Layer, int, int], bool]] = {
        "ideal": lambda layer, position, tokens: layer.window is None or position >= tokens - layer.window,
        "full": lambda layer, position, tokens: True,
    }
    for engine, keeps in rules.items():
        found = size(model, Request(**{**vars(request), "engine": engine}))
        assert found.kv_bytes == brute_force(layers, request, keeps)
        states = sum(-(-layer.state_elements // tensor_parallel) * 4 for layer in layers)
        assert found.state_bytes == states * request.batch
        assert found.total_bytes == found.kv_bytes + (found.state_bytes or 0)


@settings(deadline=None, max_examples=60)
@given(layers=layer_lists, sequences=workloads, stages=st.integers(1, 12))
def test_the_fullest_stage_of_a_pipeline(layers: list[Layer], sequences: list[tuple[int, int]], stages: int) -> None:
    fp16 = KV_DTYPES["fp16"]
    model = Model(tuple(Layer(**{**vars(layer), "number": index}) for index, layer in enumerate(layers)))
    request = Request(tuple(sequences), fp16, fp16, pipeline_parallel=stages)
    if stages > len(layers):
        with pytest.raises(UsageError, match="--pp"):
            size(model, request)
        return
    parts = split(model, stages)
    assert [layer for part in parts for layer in part.layers] == list(model.layers)
    assert max(len(part.layers) for part in parts) - min(len(part.layers) for part in parts) <= 1
    totals = [size(part, Request(tuple(sequences), fp16, fp16)).total_bytes for part in parts]
    assert size(model, request).total_bytes == max(total for total in totals if total is not None)


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(0, 20000),
    window=st.one_of(st.none(), st.integers(1, 9000)),
    batch=st.integers(1, 5),
    engine=st.sampled_from(sorted(ENGINES)),
)
def test_no_engine_keeps_less_than_the_window_needs(tokens: int, window: int | None, batch: int, engine: str) -> None:
    fp16 = KV_DTYPES["fp16"]
    layer = Layer("full" if window is None else "sliding", 2, 64, 64, window)
    model = Model((layer,), model_type="gemma" if window is None else "mistral")
    reserved, floor = (
        size(model, Request(((batch, tokens),), fp16, fp16, name)).kv_bytes for name in (engine, "ideal")
    )
    dropped = batch * 2 * 128 * 2 if engine == "hf" and window else 0  # transformers keeps one position less
    assert reserved >= floor - dropped


def test_genx_engine_is_the_rule_of_its_cache() -> None:
    for tokens in (0, 1, 4096, 4097, 10000):
        positions = allocated_positions(tokens, tokens, 4096)
        found = kv_object("mistral-7b", "-t", str(tokens), "--engine", "genx")
        assert found["kv_bytes"] == positions * 32 * 2 * 8 * 128 * 2
    assert "'deepseek_v3'" in refusal("deepseek-v3", "--engine", "genx")
    latent = ("--layers", "1", "--heads", "2", "--kv-lora-rank", "8", "--rope-head-dim", "4", "-t", "1")
    assert "latent" in refusal(*latent, "--engine", "genx")
    assert "q8_0" in refusal("mistral-7b", "--engine", "genx", "--kv-dtype", "q8_0")


def test_genx_engine_stops_at_the_context_where_the_text_slides() -> None:
    at_context, beyond = (kv_object("smollm2-135m", "-t", t, "--engine", "genx")["kv_bytes"] for t in ("8192", "9000"))
    assert at_context == beyond == 188743680


def test_llama_cpp_pads_the_context_and_refuses_blocks_that_do_not_fit() -> None:
    found = kv_object("llama-3.1-8b", "-t", "1000", "--engine", "llama.cpp")
    assert found["layers"][0]["positions"] == 1024
    text = refusal("phi-2", "--engine", "llama.cpp", "--kv-dtype", "q8_0")
    assert text.startswith("llama.cpp refuses a K cache of q8_0 for heads of 80")
    assert "nvfp4" in refusal("phi-2", "--engine", "llama.cpp", "--kv-dtype", "nvfp4")


def test_llama_cpp_keeps_mla_as_keys_only() -> None:
    assert kv_object("deepseek-v3", "-t", "4096", "--engine", "llama.cpp")["kv_bytes"] == 61 * 4096 * 576 * 2


def test_vllm_pages_of_one_kind() -> None:
    found = kv_object("llama-3.1-8b", "-t", "17", "--engine", "vllm")
    assert found["layers"][0]["positions"] == 32
    assert kv_object("llama-3.1-8b", "-t", "17", "--engine", "vllm", "--block-size", "64")["kv_bytes"] == 64 * 131072
    window = kv_object("mistral-7b", "-t", "32768", "--engine", "vllm", "--max-num-batched-tokens", "2048")
    assert window["layers"][0]["positions"] == (-(-(4095 + 2048) // 16) + 1) * 16


def test_vllm_pads_groups_and_says_so() -> None:
    found = kv_object("gemma-3-4b", "-t", "3072", "--engine", "vllm")
    assert found["kv_bytes"] == 442368000
    assert [group["note"] for group in found["layers"]] == ["1 padding layers", ""]


def test_vllm_unites_counts_that_are_close() -> None:
    """12 and 13 layers become 13 and 13, not 12 and 24."""
    found = kv_object(
        *("--layer-types", "full*13,sliding*12", "--kv-heads", "1", "--head-dim", "64", "--window", "16"),
        *("-t", "16", "--engine", "vllm", "--max-num-batched-tokens", "1"),
    )
    assert found["kv_bytes"] == 13 * 256 * (16 + 32)


def test_vllm_puts_recurrent_states_into_pages_of_the_same_size() -> None:
    found = kv_object("qwen3.5-27b", "-t", "262144", "--engine", "vllm")
    state = (3 * (2 * 16 * 128 + 48 * 128) + 48 * 128 * 128) * 4
    a_token = 4 * 512 * 2
    block = -(-state // (16 * a_token)) * 16
    assert found["kv_bytes"] == 16 * -(-262144 // block) * block * a_token
    assert found["state_bytes"] == 48 * block * a_token


def test_vllm_gives_layers_of_smaller_pages_larger_blocks() -> None:
    """Gemma 4: 8 heads of 256 in window layers, 1 of 512 in full ones."""
    config = {
        "model_type": "gemma4_text", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": 256, "hidden_size": 64, "sliding_window": 16, "global_head_dim": 512,
        "num_global_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
    }  # fmt: skip
    found = kv_object(
        "-t", "64", "--engine", "vllm", "--max-num-batched-tokens", "1", "--kv-dtype", "bf16", config=config
    )
    page = 16 * 8 * 512 * 2
    assert [group["positions"] for group in found["layers"]] == [32, 64]
    assert found["kv_bytes"] == 2 * page + 1 * page


def test_state_bytes_given_by_hand_are_spread_without_rounding() -> None:
    model = Model((Layer("recurrent", 0, 0, 0, state_elements=-1), Layer("recurrent", 0, 0, 0, state_elements=-1)))
    fp16 = find_dtype("fp16", "--kv-dtype")
    given_by_hand = with_state_bytes(model, 7)
    request = Request(((3, 10),), fp16, fp16, state_bytes_per_element=1)
    assert size(given_by_hand, request).state_bytes == 21
    with pytest.raises(UsageError, match="no recurrent layers"):
        with_state_bytes(Model((Layer("full", 1, 1, 1),)), 7)
