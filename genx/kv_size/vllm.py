"""What vLLM's V1 engine reserves: pages of blocks, and for mixed models groups of layers padded to one size.

Source: vllm/v1/kv_cache_interface.py (max_memory_usage_bytes of each specification) and
vllm/v1/core/kv_cache_utils.py (unify_kv_cache_spec_page_size, _get_kv_cache_groups_uniform_page_size), as of early
2026; version 0.26 doubled the tokens in flight of window layers (vllm#49878).
"""

from collections import Counter
from dataclasses import dataclass

from genx.errors import UsageError
from genx.kv_size.allocation import Part, Request, attention_bytes, padded
from genx.kv_size.layer_kinds import CHUNKED, RECURRENT
from genx.kv_size.layers import CROSS, STATE_UNKNOWN, Layer, Model


@dataclass(frozen=True)
class _Spec:
    """How vLLM stores one kind of layer: pages of `block_size` tokens."""

    layer: Layer
    layers: int
    block_size: int
    page_bytes: int


def allocate(model: Model, request: Request) -> list[Part]:
    """What each kind of layer takes.

    Raises:
        UsageError: vLLM could not lay this cache out, or the recurrent state that its pages must hold is unknown.
    """
    specs = _specs(model, request)
    kinds = {_group_key(spec.layer) for spec in specs}
    if len(kinds) <= 1:
        return [_part(spec, request, spec.layers) for spec in specs]
    specs = _one_page_size(specs)
    group_size = _group_size([spec.layers for spec in specs])
    return [_part(spec, request, padded(spec.layers, group_size)) for spec in specs]


def _specs(model: Model, request: Request) -> list[_Spec]:
    counted = Counter(layer for layer in model.layers if layer.shares_with is None)
    attending = {layer: count for layer, count in counted.items() if layer.kv_heads}
    recurrent = {layer: count for layer, count in counted.items() if layer.kind == RECURRENT}
    if any(layer.state_elements > 0 for layer in attending):
        raise UsageError("--engine vllm does not cover layers that attend and keep a state; use ideal or hf")
    block_size = request.block_size
    state_page = max((_state_page(layer, request) for layer in recurrent), default=0)
    if attending and state_page:
        # Attention blocks grow until a page holds the largest state, whose page is then padded to the same size.
        smallest = min(attention_bytes(layer, request) for layer in attending)
        block_size = request.block_size * -(-state_page // (request.block_size * smallest))
    specs = [
        _Spec(layer, count, block_size, block_size * attention_bytes(layer, request))
        for layer, count in attending.items()
    ]
    page = max((spec.page_bytes for spec in specs), default=state_page)
    return specs + [_Spec(layer, count, block_size, page) for layer, count in recurrent.items()]


def _state_page(layer: Layer, request: Request) -> int:
    if layer.state_elements == STATE_UNKNOWN:
        raise UsageError(
            "--engine vllm puts recurrent states into pages, and the configuration does not tell their size; "
            "give its fields with --set, or use another engine"
        )
    return request.state_bytes_of(layer, 1, 1) or 0


def _group_key(layer: Layer) -> tuple[object, ...]:
    """Layers of one key share a block table, whatever their sizes."""
    return layer.kind == RECURRENT, layer.kind == CROSS, layer.kind == CHUNKED, layer.window


def _one_page_size(specs: list[_Spec]) -> list[_Spec]:
    largest = max(spec.page_bytes for spec in specs)
    unified = []
    for spec in specs:
        if largest % spec.page_bytes:
            raise UsageError(
                f"vLLM cannot lay this cache out: a page of {spec.page_bytes:,} bytes does not divide one of "
                f"{largest:,}; use --engine ideal or full"
            )
        ratio = largest // spec.page_bytes
        unified.append(_Spec(spec.layer, spec.layers, spec.block_size * ratio, largest))
    return unified


def _group_size(counts: list[int]) -> int:
    """The smallest count of a kind, or the largest where that wastes less."""
    return max(counts) if 2 * max(counts) < 3 * min(counts) else min(counts)


def _part(spec: _Spec, request: Request, layers: int) -> Part:
    """`layers` counts the padding layers in."""
    blocks = sum(count * _blocks(spec, tokens, request) for count, tokens in request.sequences)
    padding = layers - spec.layers
    note = f"{padding} padding layers" if padding else ""
    taken = layers * blocks * spec.page_bytes
    if spec.layer.kind == RECURRENT:
        return Part(spec.layer, spec.layers, 0, 0, taken, note)
    return Part(spec.layer, spec.layers, blocks * spec.block_size, taken, 0, note)


def _blocks(spec: _Spec, tokens: int, request: Request) -> int:
    layer = spec.layer
    if layer.kind == RECURRENT:
        return 1
    if layer.kind == CROSS:
        return -(-request.encoder_tokens // spec.block_size)
    if tokens == 0:
        return 0
    if layer.window is None:
        return -(-tokens // spec.block_size)
    if layer.kind == CHUNKED:
        return -(-min(layer.window + request.max_num_batched_tokens, tokens) // spec.block_size)
    return -(-min(layer.window - 1 + request.max_num_batched_tokens, tokens) // spec.block_size) + 1
