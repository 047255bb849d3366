"""What a cached key or value vector takes in each element type, scales included."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from genx.errors import UsageError

DEFAULT_GROUP_SIZE = 32


@dataclass(frozen=True)
class KvDtype:
    """An element type of the cache.

    Attributes:
        name: as the command line spells it.
        bits: of one element.
        group_size: elements of one head's vector that share a scale; None: all of them do.
        scale_bytes: bytes of one group's scale (and offset), 0 for a type that has none.
        whole_blocks: vectors are padded to whole groups, as ggml stores them.
    """

    name: str
    bits: int
    group_size: int | None = None
    scale_bytes: int = 0
    whole_blocks: bool = False

    def vector_bytes(self, size: int) -> int:
        """Bytes of one head's key or value of `size` elements, for one token."""
        if size == 0:
            return 0
        groups = 1 if self.group_size is None else -(-size // self.group_size)
        elements = groups * self.group_size if self.whole_blocks and self.group_size else size
        return -(-elements * self.bits // 8) + groups * self.scale_bytes

    def describe(self) -> str:
        """`q4_0: 4.5 bits an element, scales included`."""
        if not self.scale_bytes:
            return f"{self.name}: {self.bits} bits an element"
        if self.group_size is None:
            return f"{self.name}: {self.bits} bits an element and {self.scale_bytes} bytes a head and token"
        cost = self.bits + 8 * self.scale_bytes / self.group_size
        return f"{self.name}: {cost:g} bits an element, scales of {self.group_size} elements included"


@dataclass(frozen=True)
class DeepSeekLatentDtype(KvDtype):
    """vLLM's fp8_ds_mla: 512 fp8 values, 4 float32 scales and 64 bfloat16 rotary values, 656 bytes in all.

    Source: vllm/v1/kv_cache_interface.py, MLAAttentionSpec.
    """

    latent_size: int = 576
    latent_bytes: int = 656

    def vector_bytes(self, size: int) -> int:
        """Bytes of the one latent vector that the type exists for."""
        if size == 0:
            return 0
        if size != self.latent_size:
            raise UsageError(
                f"--kv-dtype {self.name} stores DeepSeek's latent of {self.latent_size} values "
                f"(kv_lora_rank 512 + qk_rope_head_dim 64) and nothing else; this model caches vectors of {size}"
            )
        return self.latent_bytes

    def describe(self) -> str:
        """The bytes of a token and layer."""
        return f"{self.name}: {self.latent_bytes} bytes a token and layer"


def _ggml(name: str, bits: int, scale_bytes: int) -> KvDtype:
    return KvDtype(name, bits, group_size=32, scale_bytes=scale_bytes, whole_blocks=True)


# ggml's block layouts: ggml/src/ggml-common.h of llama.cpp. vLLM's: vllm/v1/kv_cache_interface.py.
KV_DTYPES: Mapping[str, KvDtype] = {
    dtype.name: dtype
    for dtype in (
        KvDtype("fp32", 32),
        KvDtype("fp16", 16),
        KvDtype("bf16", 16),
        KvDtype("fp8", 8),
        KvDtype("int8", 8, DEFAULT_GROUP_SIZE, 2),
        KvDtype("int4", 4, DEFAULT_GROUP_SIZE, 2),
        KvDtype("int8_per_token_head", 8, scale_bytes=4),
        KvDtype("fp8_per_token_head", 8, scale_bytes=4),
        KvDtype("nvfp4", 4, 16, 1),
        DeepSeekLatentDtype("fp8_ds_mla", 8),
        _ggml("q8_0", 8, 2),
        _ggml("q5_1", 5, 4),
        _ggml("q5_0", 5, 2),
        _ggml("q4_1", 4, 4),
        _ggml("q4_0", 4, 2),
        _ggml("iq4_nl", 4, 2),
    )
}

# What vLLM stores beside an fp8_ds_mla latent for the keys of DeepSeek's sparse-attention indexer: vllm's
# DeepseekV32IndexerCache, fp8 values and a float32 scale for each 128.
INDEXER_FP8 = KvDtype("fp8 with a scale for 128", 8, 128, 4)

FLOAT_DTYPES = ("fp32", "fp16", "bf16")
GGML_DTYPES = (*FLOAT_DTYPES, "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

_SPELLINGS = {
    "float32": "fp32",
    "f32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def find_dtype(name: str, flag: str, group_size: int | None = None) -> KvDtype:
    """The element type of a name.

    Raises:
        UsageError: there is none of that name, or `group_size` is given for a type whose groups are fixed.
    """
    key = name.strip().lower()
    dtype = KV_DTYPES.get(_SPELLINGS.get(key, key))
    if dtype is None:
        raise UsageError(f"{flag} is {name!r}; allowed: {', '.join(KV_DTYPES)}")
    if group_size is None or dtype.name not in ("int8", "int4"):
        return dtype
    return replace(dtype, group_size=group_size)


def config_dtype(value: object) -> str | None:
    """The name here of a configuration's `dtype` or `torch_dtype`, if it is a float of 16 or 32 bits."""
    if not isinstance(value, str):
        return None
    name = value.removeprefix("torch.").lower()
    name = _SPELLINGS.get(name, name)
    return name if name in FLOAT_DTYPES else None
