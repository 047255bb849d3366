"""What an engine is asked for, and what it answers with."""

from dataclasses import dataclass

from genx.errors import UsageError
from genx.kv_size.dtypes import INDEXER_FP8, KvDtype
from genx.kv_size.layers import INDEXER, LATENT, STATE_UNKNOWN, Layer


@dataclass(frozen=True)
class Request:
    """Which sequences are to be held, how, and by which engine.

    Attributes:
        sequences: (how many, tokens of each), several for users of different lengths.
        key_dtype: element type of keys, and of MLA's latents.
        value_dtype: element type of values.
        engine: a name of `ENGINES`.
        state_bytes_per_element: of recurrent states.
        encoder_tokens: length of the encoder's output, for encoder-decoder models.
        tensor_parallel: devices that share each layer; heads are divided, and repeated where they run out.
        pipeline_parallel: devices that share the list of layers.
        block_size: vLLM's tokens a block.
        max_num_batched_tokens: vLLM's tokens a step.
        ubatch: llama.cpp's tokens a step.
        slots: llama.cpp's sequences that share the context; None: one a sequence.
    """

    sequences: tuple[tuple[int, int], ...]
    key_dtype: KvDtype
    value_dtype: KvDtype
    engine: str = "ideal"
    state_bytes_per_element: int = 4
    encoder_tokens: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    ubatch: int = 512
    slots: int | None = None

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return sum(count for count, _ in self.sequences)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((tokens for count, tokens in self.sequences if count), default=0)

    @property
    def context(self) -> int:
        """llama.cpp's n_ctx: what --tokens says if --slots shares it, else the tokens of all sequences."""
        return self.longest if self.slots is not None else sum(count * tokens for count, tokens in self.sequences)

    @property
    def slots_in_use(self) -> int:
        """llama.cpp's n_seq_max."""
        return self.batch if self.slots is None else self.slots

    def state_bytes_of(self, layer: Layer, layers: int, copies: int) -> int | None:
        """Bytes of the recurrent states of `layers` such layers on one device; None if they are unknown."""
        if layer.state_elements == STATE_UNKNOWN:
            return None
        return layers * copies * -(-layer.state_elements // self.tensor_parallel) * self.state_bytes_per_element


@dataclass(frozen=True)
class Part:
    """What all layers of one kind take on one device.

    Attributes:
        layer: one of them.
        layers: how many there are.
        positions: that each of them holds, of all sequences together.
        kv_bytes: keys and values of all of them.
        state_bytes: recurrent states of all of them, None if unknown.
        note: what the engine adds, such as padding layers.
    """

    layer: Layer
    layers: int
    positions: int
    kv_bytes: int
    state_bytes: int | None = 0
    note: str = ""


def attention_bytes(layer: Layer, request: Request, *, compressed: bool = True) -> int:
    """Bytes of one position of one layer on one device: keys and values of the heads that it gets.

    Raises:
        UsageError: MLA is to be held uncompressed, and the configuration does not tell the size of that.
    """
    heads, key_size, value_size = layer.kv_heads, layer.key_size, layer.value_size
    if layer.kind == LATENT and not compressed:
        if layer.uncompressed is None:
            raise UsageError(
                f"--engine {request.engine} holds MLA uncompressed, and the configuration lacks qk_nope_head_dim, "
                "v_head_dim or num_attention_heads; give them with --set qk_nope_head_dim=N, --value-dim, --heads"
            )
        heads, key_size, value_size = layer.uncompressed
    if layer.kind != LATENT or not compressed:
        heads = -(-heads // request.tensor_parallel)  # where heads run out, each device keeps one of its own
    key_dtype = request.key_dtype
    if layer.kind == INDEXER and key_dtype.name == "fp8_ds_mla":
        key_dtype = INDEXER_FP8
    return heads * (key_dtype.vector_bytes(key_size) + request.value_dtype.vector_bytes(value_size))


def padded(count: int, unit: int) -> int:
    """`count` rounded up to a multiple of `unit`."""
    return -(-count // unit) * unit
