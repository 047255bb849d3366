"""From caches to bytes, by the rule of one engine: the floor, and what real engines reserve.

Each rule names the version it was read in; engines change, and a rule is right for that version only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from genx.cache_rules import allocated_positions
from genx.errors import UsageError
from genx.kv_size import vllm
from genx.kv_size.allocation import Part, Request, attention_bytes, padded
from genx.kv_size.dtypes import FLOAT_DTYPES, GGML_DTYPES, KV_DTYPES
from genx.kv_size.layer_kinds import FULL, SLIDING
from genx.kv_size.layers import CROSS, Layer, Model

_LLAMA_CPP_CELLS = 256  # cells are padded to this many
# llama.cpp reads no window for these architectures, so their layers keep every position.
_LLAMA_CPP_IGNORES_WINDOWS = frozenset(
    {"llama", "mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2", "qwen2", "qwen3", "qwen3_moe"}
)


@dataclass(frozen=True)
class Engine:
    """One way to hold a cache.

    Attributes:
        name: as `--engine` spells it.
        rule: in a sentence, with the version it was read in.
        dtypes: element types that the engine has.
        allocate: the caches of one device and a request -> what each kind of them takes.
        step: tokens by which the allocation grows at once.
    """

    name: str
    rule: str
    dtypes: Sequence[str]
    allocate: Callable[[Model, Request], list[Part]]
    step: Callable[[Request], int] = lambda request: 1


@dataclass(frozen=True)
class Size:
    """What a cache takes on the fullest device.

    Attributes:
        parts: by kind of layer.
        kv_bytes: keys and values.
        state_bytes: recurrent states; None if the configuration does not tell them.
    """

    parts: tuple[Part, ...]
    kv_bytes: int
    state_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        """Both together, None if one is unknown."""
        return None if self.state_bytes is None else self.kv_bytes + self.state_bytes


def size(model: Model, request: Request) -> Size:
    """The size of a model's cache, under pipeline parallelism that of the stage which needs most.

    Raises:
        UsageError: the engine cannot hold this cache, or has no such element type.
    """
    engine = ENGINES[request.engine]
    for dtype in (request.key_dtype, request.value_dtype):
        if dtype.name not in engine.dtypes:
            raise UsageError(f"--engine {engine.name} keeps no {dtype.name} cache; allowed: {', '.join(engine.dtypes)}")
    stages = [_sum(engine.allocate(stage, request)) for stage in split(model, request.pipeline_parallel)]
    return max(stages, key=lambda stage: stage.kv_bytes + (stage.state_bytes or 0))


def split(model: Model, stages: int) -> list[Model]:
    """The layers of each stage of a pipeline, as vLLM deals them out: even, what is over to the middle stages.

    Source: vllm/distributed/utils.py, get_pp_indices.
    """
    count = 1 + max((layer.number for layer in model.layers), default=0)
    if stages == 1:
        return [model]
    if stages > count:
        raise UsageError(f"--pp is {stages}; allowed: at most one stage a layer, {count}")
    sizes = [count // stages] * stages
    for extra in range(2, count % stages + 2):
        sizes[-extra] += 1
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    return [
        replace(model, layers=tuple(layer for layer in model.layers if end - length <= layer.number < end))
        for length, end in zip(sizes, ends, strict=True)
    ]


def _sum(parts: Sequence[Part]) -> Size:
    states = [part.state_bytes for part in parts]
    known = [state for state in states if state is not None]
    state_bytes = sum(known) if len(known) == len(states) else None
    return Size(tuple(parts), sum(part.kv_bytes for part in parts), state_bytes)


def _by_layer(
    positions: Callable[[Model, Layer, Request], int], *, compressed: bool = True
) -> Callable[..., list[Part]]:
    """An engine that holds each layer by itself, `positions` of all sequences together."""

    def allocate(model: Model, request: Request) -> list[Part]:
        parts = []
        for layer, count in Counter(model.layers).items():
            held = 0 if layer.shares_with is not None or layer.kv_heads == 0 else positions(model, layer, request)
            parts.append(
                Part(
                    layer=layer,
                    layers=count,
                    positions=held,
                    kv_bytes=count * held * attention_bytes(layer, request, compressed=compressed),
                    state_bytes=request.state_bytes_of(layer, count, _state_copies(request)),
                )
            )
        return parts

    return allocate


def _state_copies(request: Request) -> int:
    """llama.cpp keeps a state for each slot, all others one for each sequence."""
    return request.slots_in_use if request.engine == "llama.cpp" else request.batch


def _ideal(model: Model, layer: Layer, request: Request) -> int:
    if layer.kind == CROSS:
        return request.batch * request.encoder_tokens
    if layer.window is None:
        return sum(count * tokens for count, tokens in request.sequences)
    return sum(count * min(tokens, layer.window) for count, tokens in request.sequences)


def _full(model: Model, layer: Layer, request: Request) -> int:
    return _ideal(model, replace(layer, window=None), request)


def _hf(model: Model, layer: Layer, request: Request) -> int:
    if layer.kind == CROSS:
        return request.batch * request.encoder_tokens
    longest = request.longest  # rows of a batch are padded to the longest
    # A window layer drops all but W - 1 positions after each step; a slice from -1 + 1 on drops nothing.
    kept = longest if layer.window in (None, 1) else min(longest, (layer.window or 0) - 1)
    return request.batch * kept


def _genx(model: Model, layer: Layer, request: Request) -> int:
    if layer.kind not in (FULL, SLIDING) or layer.state_elements:
        raise UsageError(
            f"--engine genx keeps full and window layers, and this model has {layer.kind} ones; use another engine"
        )
    tokens = request.longest if model.positions is None else min(request.longest, model.positions)
    return request.batch * allocated_positions(tokens, tokens, layer.window)


def _llama_cpp(model: Model, layer: Layer, request: Request) -> int:
    if layer.kind == CROSS:
        raise UsageError("--engine llama.cpp does not cover encoder-decoder models; use ideal, hf or vllm")
    _check_blocks(layer, request)
    cells = padded(request.context, _LLAMA_CPP_CELLS)
    if layer.window is None or model.model_type in _LLAMA_CPP_IGNORES_WINDOWS:
        return cells
    return padded(min(cells, layer.window * request.slots_in_use + request.ubatch), _LLAMA_CPP_CELLS)


def _check_blocks(layer: Layer, request: Request) -> None:
    for what, dtype, elements in (
        ("K", request.key_dtype, layer.key_size),
        ("V", request.value_dtype, layer.value_size),
    ):
        if dtype.whole_blocks and dtype.group_size and elements % dtype.group_size:
            raise UsageError(
                f"llama.cpp refuses a {what} cache of {dtype.name} for heads of {elements}: its blocks hold "
                f"{dtype.group_size}; allowed here: {', '.join(FLOAT_DTYPES)}"
            )


_VLLM_DTYPES = (*FLOAT_DTYPES, "fp8", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "fp8_ds_mla")

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("ideal", "the floor: min(tokens, window) positions a layer", tuple(KV_DTYPES), _by_layer(_ideal)),
        Engine(
            "genx",
            "genx's own cache: min(tokens, window) positions; beyond 4096 it grows in steps of 1024 up to that",
            FLOAT_DTYPES,
            _by_layer(_genx),
        ),
        Engine(
            "hf",
            "transformers' DynamicCache, read in 5.24: tokens, or window - 1; rows padded to the longest; MLA "
            "uncompressed as older versions held it, 5.24 keeps the latent as ideal does",
            (*FLOAT_DTYPES, "int8", "int4"),
            _by_layer(_hf, compressed=False),
        ),
        Engine(
            "llama.cpp",
            "llama.cpp of late 2025 (src/llama-kv-cache-iswa.cpp): n_ctx cells padded to 256; window layers "
            "pad256(min(n_ctx, window x slots + ubatch)); MLA keeps K only",
            GGML_DTYPES,
            _by_layer(_llama_cpp),
            step=lambda request: _LLAMA_CPP_CELLS,
        ),
        Engine(
            "vllm",
            "vLLM V1 before 0.26 (vllm/v1/core/kv_cache_utils.py): blocks; full ceil(T / block), window "
            "ceil(min(window - 1 + batched tokens, T) / block) + 1; kinds in groups padded to one size",
            _VLLM_DTYPES,
            vllm.allocate,
            step=lambda request: request.block_size,
        ),
        Engine("full", "every layer keeps every token: windows and chunks ignored", tuple(KV_DTYPES), _by_layer(_full)),
    )
}  # fmt: skip
