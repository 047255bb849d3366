"""What is known of a model from its headers and small files alone: no weight is read, and torch is not imported."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genx.checkpoint import GenerationDefaults, Source, TensorSummary, open_source, read_generation_defaults
from genx.checkpoint.quantization import HEAD
from genx.errors import CheckpointError, UsageError
from genx.kv_size.dtypes import find_dtype
from genx.messages import printable
from genx.models.registry import ARCHITECTURES

if TYPE_CHECKING:
    from genx.kv_size.layers import Model
    from genx.tokenization import Tokenizer

# Dtypes to reckon memory in, by the names that --dtype has for them: bytes of a value.
RUN_DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
_KV_NAMES = {"float32": "fp32", "bfloat16": "bf16"}


@dataclass(frozen=True)
class StoredAs:
    """The tensors of one element type."""

    dtype: str
    tensors: int
    parameters: int
    nbytes: int


class Inspection:
    """One model, looked at as far as is asked; each property reads what it needs, and raises what that raises."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            CheckpointError: `path` is a file of another kind than GGUF.
        """
        self.path = path
        self._source: Source = open_source(path)

    @property
    def format(self) -> str:
        """`safetensors` or `GGUF`."""
        return "GGUF" if self.path.is_file() else "safetensors"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json, or what it would hold."""
        return self._source.read_json("config.json", required=True)

    @property
    def model_type(self) -> str:
        """The configuration's own word for the architecture."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def is_known(self) -> bool:
        """Whether genx has the architecture."""
        return self.model_type in ARCHITECTURES

    @cached_property
    def _tensors(self) -> Mapping[str, TensorSummary]:
        return self._source.summarize_tensors()

    @property
    def parameters(self) -> int:
        """Values that are stored; a tied head is not, or does not count."""
        head = prod(self._tensors[HEAD].shape) if self._source.has_copied_head else 0
        return sum(prod(tensor.shape) for tensor in self._tensors.values()) - head

    @property
    def stored_as(self) -> list[StoredAs]:
        """The element types, from most bytes to fewest."""
        count: Counter[str] = Counter()
        values: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for tensor in self._tensors.values():
            count[tensor.dtype] += 1
            values[tensor.dtype] += prod(tensor.shape)
            nbytes[tensor.dtype] += tensor.nbytes
        return [StoredAs(dtype, count[dtype], values[dtype], size) for dtype, size in nbytes.most_common()]

    @property
    def size_bytes(self) -> int:
        """Of the files of weights."""
        return sum(file.stat().st_size for file in self._source.weight_files)

    @cached_property
    def _caches(self) -> "Model":
        from genx.kv_size.layers import read_model

        try:
            return read_model(self.config)
        except UsageError as error:  # as kv-size sees it, which was asked for this very file
            raise CheckpointError(f"{printable(self.path)}: {error}") from error

    @property
    def context(self) -> int | None:
        """Positions that the model was made for."""
        return self._caches.positions

    def cache_bytes(self, dtype: str, tokens: int) -> int:
        """Keys and values of one text of so many tokens; `dtype` is one of RUN_DTYPES."""
        from genx.kv_size.allocation import Request
        from genx.kv_size.engines import size

        element = find_dtype(_KV_NAMES[dtype], "dtype")
        return size(self._caches, Request(((1, tokens),), element, element)).kv_bytes

    def memory_bytes(self, dtype: str) -> int:
        """Weights and a cache of the whole context, in one of RUN_DTYPES; what a pass needs besides is left out."""
        return self.parameters * RUN_DTYPES[dtype] + self.cache_bytes(dtype, self.context or 0)

    def memory_as_stored(self) -> int:
        """As `memory_bytes`, with weights as they are stored and a cache in float32: natively on a CPU."""
        return self._source.bytes_held() + self.cache_bytes("float32", self.context or 0)

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """What the model says about generating."""
        return read_generation_defaults(self.path)

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer, None where there is none."""
        if not self._source.has_tokenizer:
            return None
        from genx.tokenization import load_tokenizer

        return load_tokenizer(self.path)
