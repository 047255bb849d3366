"""A GGUF file, or several that are one model, as a checkpoint."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from genx.checkpoint.gguf.config import config_json
from genx.checkpoint.source import Source, TensorSummary
from genx.errors import CheckpointError
from genx.gguf.element_types import BLOCK_FORMATS
from genx.gguf.parts import GgufModel, gguf_parts, read_gguf_model
from genx.gguf.tokenizer import tokenizer_config, tokenizer_json
from genx.gguf.vocabulary import TOKENIZER_ARRAYS, read_vocabulary
from genx.messages import printable

if TYPE_CHECKING:
    from genx.checkpoint.weights import Weight
    from genx.config import ModelConfig

# What newer files say about sampling, and Hugging Face's names for it.
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p"}


class GgufSource(Source):
    """Metadata and tensors as the files of a Hugging Face folder would hold them."""

    _held_names: ClassVar[Mapping[str, str]] = {**Source._held_names, **BLOCK_FORMATS}

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        match name:
            case "config.json":
                return config_json(self._model)
            case "generation_config.json":
                return self._generation_config()
            case "tokenizer.json" if self.has_tokenizer:
                return tokenizer_json(self._whole_metadata)
            case "tokenizer_config.json" if self.has_tokenizer:
                return tokenizer_config(self._whole_metadata)
        if required:
            raise CheckpointError(f"{printable(self.path)} has nothing that {name} would hold")
        return {}

    @property
    def has_tokenizer(self) -> bool:
        return "tokenizer.ggml.model" in self._model.metadata

    @property
    def weight_files(self) -> list[Path]:
        return list(gguf_parts(self.path))

    def summarize_tensors(self) -> Mapping[str, TensorSummary]:
        return {
            name: TensorSummary(tensor.element.name, tensor.shape, tensor.stop - tensor.start)
            for name, tensor in self._model.tensors.items()
        }

    def weights(self, config: "ModelConfig") -> "dict[str, Weight]":
        from genx.checkpoint.gguf.published import published_weights

        return published_weights(self._model, config)

    def _generation_config(self) -> dict[str, Any]:
        written: dict[str, Any] = {}
        if self.has_tokenizer:
            vocabulary = read_vocabulary(self._whole_metadata)
            written["eos_token_id"] = list(vocabulary.end_ids)
            for role in ("bos", "pad"):
                if f"{role}_token" in vocabulary.roles:
                    written[f"{role}_token_id"] = vocabulary.roles[f"{role}_token"]
        for key, name in _SAMPLING.items():
            value = self._model.metadata.get(f"general.sampling.{key}")
            if isinstance(value, int | float) and not isinstance(value, bool):
                written |= {"do_sample": True, name: value}
        return written

    @cached_property
    def _model(self) -> GgufModel:
        return read_gguf_model(self.path)

    @cached_property
    def _whole_metadata(self) -> Mapping[str, Any]:
        return read_gguf_model(self.path, whole=TOKENIZER_ARRAYS).metadata
