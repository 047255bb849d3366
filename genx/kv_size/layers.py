"""A configuration as a list of caches: the one form in which every architecture reaches the arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genx.errors import UsageError
from genx.kv_size.fields import Field, Fields
from genx.kv_size.head_shapes import global_kv_heads, head_size, kv_heads_of_layers
from genx.kv_size.layer_kinds import CHUNKED, FULL, HYBRID, NONE, RECURRENT, SLIDING, layer_kinds, window_size
from genx.kv_size.model_types import NOT_COVERED, WITHOUT_CACHE
from genx.kv_size.recurrent import state_elements

LATENT, CROSS, INDEXER = "latent", "cross", "indexer"
STATE_UNKNOWN = -1


@dataclass(frozen=True)
class Layer:
    """One cache of one layer.

    Attributes:
        kind: full, sliding, chunked, latent (MLA), cross (encoder-decoder), indexer (sparse attention) or recurrent.
        kv_heads: key/value heads; 0 where no keys and values are kept.
        key_size: elements of one head's key.
        value_size: elements of one head's value.
        window: positions that a sliding or chunked layer needs, None for all.
        state_elements: elements of the recurrent state of one sequence; `STATE_UNKNOWN` if the file does not tell.
        shares_with: the layer whose cache this one reads instead of keeping its own.
        uncompressed: of a latent layer, (heads, key size, value size) as an engine holds it that does not compress.
        number: which layer of the model, from 0.
    """

    kind: str
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    state_elements: int = 0
    shares_with: int | None = None
    uncompressed: tuple[int, int, int] | None = None
    number: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Model:
    """Everything about a model that the size of its cache depends on.

    Attributes:
        layers: every cache, in the order of the model's layers.
        model_type: as the configuration names it.
        positions: the context that the model was made for, None if the configuration does not tell.
        learned_positions: nothing can stand beyond `positions`.
        encoder_positions: how long the encoder's output can be, None if there is no encoder or nobody tells.
        dtype: the configuration's own element type, as it stands there.
        fields: what was used, and where it came from.
        notes: what a reader should know about the count.
    """

    layers: tuple[Layer, ...]
    model_type: str | None = None
    positions: int | None = None
    learned_positions: bool = False
    encoder_positions: int | None = None
    dtype: str | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def state_is_known(self) -> bool:
        """Whether every recurrent layer's state could be worked out."""
        return all(layer.state_elements != STATE_UNKNOWN for layer in self.layers)

    @property
    def has_windows(self) -> bool:
        """Whether some layer needs only a part of the positions."""
        return any(layer.window is not None for layer in self.layers)


def read_model(config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Model:
    """The caches of a configuration.

    Args:
        config: a `config.json`, under Hugging Face's names or any of its aliases.
        overrides: fields given by hand, which win.

    Raises:
        UsageError: a field is missing, contradictory or absurd, or the model's kind of cache is not covered; the
            message names the field and the flag that supplies it.
    """
    fields = Fields(config, overrides)
    _check_type(fields)
    if _is_encoder_decoder(fields, config):
        layers, notes = _decoder_with_cross_attention(fields)
    else:
        layers, notes = _decoder(fields)
    dtype = fields.find("dtype")
    positions = fields.count("max_position_embeddings")
    return Model(
        layers=tuple(layers),
        model_type=fields.model_type,
        positions=positions,
        learned_positions=bool(fields.known and fields.known.learned_positions and positions),
        encoder_positions=fields.count("max_source_positions"),
        dtype=str(dtype.value) if dtype else None,
        fields=fields.used,
        notes=tuple(notes),
    )


def with_state_bytes(model: Model, state_bytes: int) -> Model:
    """`model` with a recurrent state of so many one-byte elements a sequence, spread over its recurrent layers.

    Raises:
        UsageError: it has no recurrent layers.
    """
    recurrent = [index for index, layer in enumerate(model.layers) if layer.state_elements]
    if not recurrent:
        raise UsageError("--state-bytes is given, and the model has no recurrent layers; leave it out")
    layers = list(model.layers)
    each, over = divmod(state_bytes, len(recurrent))
    for position, index in enumerate(recurrent):
        layers[index] = replace(layers[index], state_elements=each + (position < over))
    return replace(model, layers=tuple(layers))


def _check_type(fields: Fields) -> None:
    if fields.model_type in WITHOUT_CACHE:
        raise UsageError(f"model_type is {fields.model_type!r}, an encoder; allowed: models that generate text")
    reason = NOT_COVERED.get(fields.model_type or "")
    if reason is not None:
        raise UsageError(
            f"model_type is {fields.model_type!r}, which is not covered: {reason}; describe its layers "
            "with --layers, --kv-heads, --head-dim and --layer-types instead"
        )


def _is_encoder_decoder(fields: Fields, config: Mapping[str, Any]) -> bool:
    return fields.find("decoder_layers") is not None or bool(config.get("is_encoder_decoder"))


def _decoder_with_cross_attention(fields: Fields) -> tuple[list[Layer], list[str]]:
    """Whisper, BART, T5 and their like: each decoder layer keeps its own keys, and those of the encoder's output."""
    layers = fields.count("decoder_layers") or fields.count("num_decoder_layers") or fields.require("num_hidden_layers")
    heads = fields.count("decoder_attention_heads") or fields.require("num_attention_heads")
    size = head_size(fields, heads)
    return [Layer(kind, heads, size, size, number=number) for number in range(layers) for kind in (FULL, CROSS)], []


def _decoder(fields: Fields) -> tuple[list[Layer], list[str]]:
    count = _layer_count(fields)
    kinds = layer_kinds(fields, count)
    notes = _notes(fields)
    state = 0
    if RECURRENT in kinds or HYBRID in kinds:
        state, note = _state(fields)
        notes += note
    attention = _Attention(fields, count) if any(kind not in (RECURRENT, NONE) for kind in kinds) else None
    layers = []
    for number, kind in enumerate(kinds):
        if kind == RECURRENT:
            layers.append(Layer(RECURRENT, 0, 0, 0, state_elements=state, number=number))
        elif kind != NONE and attention is not None:
            layer = attention.layer(number, FULL if kind == HYBRID else kind)
            layers.append(replace(layer, state_elements=state) if kind == HYBRID else layer)
    layers = _share(fields, layers)
    index_size = fields.count("index_head_dim")
    if index_size is not None:
        layers += [Layer(INDEXER, 1, index_size, 0, number=layer.number) for layer in layers if layer.kind == LATENT]
        notes.append("the sparse-attention indexer's keys are counted as layers of their own")
    return layers, notes


def _layer_count(fields: Fields) -> int:
    count = fields.count("num_hidden_layers")
    if count is not None:
        return count
    named = fields.names("layer_types")
    if not named:
        raise fields.missing("num_hidden_layers")
    fields.note("num_hidden_layers", len(named), "the length of layer_types")
    return len(named)


def _state(fields: Fields) -> tuple[int, list[str]]:
    elements, missing = state_elements(fields)
    if elements is None:
        return STATE_UNKNOWN, [f"the recurrent state is unknown: {missing}; give its bytes with --state-bytes"]
    return elements, []


class _Attention:
    """The shape of a model's attention layers, which may differ from layer to layer."""

    def __init__(self, fields: Fields, count: int) -> None:
        self._fields = fields
        self._window = window_size(fields)
        self._no_window = self._window is None and (
            fields.explicit_null("sliding_window") or fields.find("sliding_window") is not None
        )
        self._latent = fields.count("kv_lora_rank")
        if self._latent is not None:
            self._rotary = fields.require("qk_rope_head_dim", "is kept beside the latent of kv_lora_rank")
            return
        self._kv_heads = kv_heads_of_layers(fields, count)
        self._key_size = head_size(fields, None)
        self._value_size = fields.count("v_head_dim")
        self._global_size = fields.count("global_head_dim")
        self._global_heads = global_kv_heads(fields)

    def layer(self, number: int, kind: str) -> Layer:
        """The cache of the layer `number`, of a kind that attends."""
        window = self._window_of(kind)
        kind = FULL if kind == SLIDING and window is None else kind
        if self._latent is not None:
            return self._latent_layer(number, window)
        heads, key_size, value_size = self._kv_heads[number], self._key_size, self._value_size
        if kind == FULL:
            heads = self._global_heads or heads
            key_size = self._global_size or key_size
            value_size = self._global_size or value_size
        elif kind == SLIDING:
            heads = self._fields.count("swa_num_key_value_heads") or heads
            key_size = self._fields.count("swa_head_dim") or key_size
            value_size = self._fields.count("swa_v_head_dim") or value_size
        return Layer(kind, heads, key_size, key_size if value_size is None else value_size, window, number=number)

    def _window_of(self, kind: str) -> int | None:
        if kind == CHUNKED:
            return self._fields.require("attention_chunk_size", "chunked layers need")
        if kind != SLIDING or self._no_window:
            return None
        if self._window is None:
            raise self._fields.missing("sliding_window", "the sliding layers need")
        return self._window

    def _latent_layer(self, number: int, window: int | None) -> Layer:
        size = (self._latent or 0) + self._rotary
        nope, value = self._fields.count("qk_nope_head_dim"), self._fields.count("v_head_dim")
        heads = self._fields.count("num_attention_heads")
        whole = None if nope is None or value is None or heads is None else (heads, nope + self._rotary, value)
        return Layer(LATENT, 1, size, 0, window, uncompressed=whole, number=number)


def _share(fields: Fields, layers: Sequence[Layer]) -> list[Layer]:
    """Cross-layer sharing: Gemma 3n's and 4's last layers, and neighbours in Hunyuan, keep no cache of their own."""
    shared = fields.count("num_kv_shared_layers", 0) or 0
    if shared:
        own = len(layers) - shared
        if own < 1:
            raise UsageError(f"num_kv_shared_layers is {shared}; allowed: fewer than the {len(layers)} layers")
        return [*layers[:own], *(_reader(layer, layers[:own]) for layer in layers[own:])]
    group = fields.count("cla_share_factor")
    if group is None or not fields.truth("use_cla"):
        return list(layers)
    return [
        layer if index % group == 0 else replace(layer, shares_with=layers[index - index % group].number)
        for index, layer in enumerate(layers)
    ]


def _reader(layer: Layer, own: Sequence[Layer]) -> Layer:
    """`layer`, reading the cache of the last layer of its kind that keeps one."""
    source = next((candidate for candidate in reversed(own) if candidate.kind == layer.kind), None)
    if source is None:
        raise UsageError(f"num_kv_shared_layers leaves no {layer.kind} layer with a cache of its own")
    return replace(layer, shares_with=source.number)


def _notes(fields: Fields) -> list[str]:
    notes = []
    if fields.known is None and fields.model_type is not None:
        notes.append(f"model_type {fields.model_type!r} is not known here: only what its fields say was used")
    if fields.count("num_nextn_predict_layers", 0):
        notes.append("multi-token-prediction layers (num_nextn_predict_layers) keep a cache of their own, not counted")
    return notes
