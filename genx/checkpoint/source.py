"""Where a checkpoint comes from: a Hugging Face folder, or a GGUF file that reads as if it were one. No torch."""

import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from genx.checkpoint import mxfp4
from genx.checkpoint.folder import read_json_in
from genx.checkpoint.quantization import HEAD, WEIGHT_BITS, Quantization, StoredBlocks, find_blocks, read_quantization
from genx.checkpoint.weight_files import TensorLocation, find_tensors
from genx.errors import CheckpointError
from genx.gguf.header import is_gguf
from genx.messages import printable

if TYPE_CHECKING:
    from genx.checkpoint.weights import Weight
    from genx.config import ModelConfig


@dataclass(frozen=True)
class TensorSummary:
    """What a file says about one tensor: its element type in the format's spelling, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Source(ABC):
    """A checkpoint: small JSON files, and weights.

    Attributes:
        path: the folder, or the GGUF file.
    """

    # What stored dtypes are held as, other than float32.
    _held_names: ClassVar[Mapping[str, str]] = {"F16": "float16", "BF16": "bfloat16"}

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """The JSON object that the file `name` of a folder holds; empty where there is none and none is required.

        Raises:
            CheckpointError: it is required and missing, or cannot be read.
            ConfigError: it is not JSON, or too large.
            TokenizerError: a GGUF file holds no tokenizer that genx can make.
        """

    @property
    @abstractmethod
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer, whole or damaged."""

    @property
    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The files that hold the weights, in the order of their names.

        Raises:
            CheckpointError: there are none.
        """

    @abstractmethod
    def summarize_tensors(self) -> Mapping[str, TensorSummary]:
        """Every stored tensor by its stored name; aliases are left out.

        Raises:
            CheckpointError: there are no weights, or a file is damaged.
        """

    def prevailing_dtype(self) -> str:
        """The float dtype that most of the stored bytes have, or that blocks become: bfloat16 in folders, else float32.

        Raises:
            CheckpointError: there are no weights, or a file is damaged.
        """
        stored: Counter[str] = Counter()
        for tensor in self.summarize_tensors().values():
            stored[self._held_names.get(tensor.dtype, "float32")] += tensor.nbytes
        return stored.most_common(1)[0][0] if stored else "float32"

    def bytes_held(self) -> int:
        """What the weights take in memory, held as they are stored where genx computes with that.

        Raises:
            CheckpointError: there are no weights, or a file is damaged.
        """
        bits = (
            math.prod(tensor.shape) * WEIGHT_BITS[self._held_names.get(tensor.dtype, "float32")]
            for tensor in self.summarize_tensors().values()
        )
        return round(sum(bits) / 8)

    @property
    def quantization(self) -> Quantization | None:
        """How `genx convert --quantize` made it; None if it did not. Where blocks are the file's own, that is no such.

        Raises:
            CheckpointError: the configuration says so in a way that it does not write.
        """
        return None

    @property
    def has_copied_head(self) -> bool:
        """Whether the head that is stored is the token embedding in fewer bits, and no weights of its own.

        Raises:
            CheckpointError: there are no weights, or a file is damaged.
        """
        return False

    @abstractmethod
    def weights(self, config: "ModelConfig") -> "dict[str, Weight]":
        """Every tensor by its published name, in its published layout. Imports torch.

        Args:
            config: of the model, as its architecture reads it.

        Raises:
            CheckpointError: a file is damaged, or holds something else than such a model.
        """


class FolderSource(Source):
    """A Hugging Face folder."""

    _held_names: ClassVar[Mapping[str, str]] = {
        **Source._held_names,
        "MXFP4": "bfloat16",
        "int8": "int8",
        "int4": "int4",
    }

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        return read_json_in(self.path, name, required=required)

    @property
    def has_tokenizer(self) -> bool:
        return (self.path / "tokenizer.json").is_file()

    @property
    def weight_files(self) -> list[Path]:
        return sorted({location.path for location in find_tensors(self.path).values()})

    def summarize_tensors(self) -> Mapping[str, TensorSummary]:
        stored = {name: place for name, place in find_tensors(self.path).items() if name == place.name}
        found = {
            name: TensorSummary(place.tensor.dtype, place.tensor.shape, place.tensor.stop - place.tensor.start)
            for name, place in stored.items()
        }
        for name, packed in self._packed(stored).items():
            parts = (found.pop(packed.blocks), found.pop(packed.scales))
            found[name] = TensorSummary(mxfp4.METHOD.upper(), packed.shape, sum(part.nbytes for part in parts))
        for name, blocks in self._blocks(stored).items():
            parts = (found.pop(blocks.values), found.pop(blocks.scales))
            found[name] = TensorSummary(blocks.format, blocks.shape, sum(part.nbytes for part in parts))
        return found

    def prevailing_dtype(self) -> str:
        return self.quantization.format if self.quantization else super().prevailing_dtype()

    @cached_property
    def quantization(self) -> Quantization | None:
        return read_quantization(self.read_json("config.json"), self.path / "config.json")

    @property
    def has_copied_head(self) -> bool:
        is_tied = self.quantization is not None and self.read_json("config.json").get("tie_word_embeddings") is True
        return is_tied and HEAD in self.summarize_tensors()

    def weights(self, config: "ModelConfig") -> "dict[str, Weight]":
        from genx.checkpoint.mapping import map_tensors
        from genx.checkpoint.mxfp4_values import unpacked
        from genx.checkpoint.weights import mapped, mapped_blocks
        from genx.kernels.packed import PackedMatrix

        del config
        places = find_tensors(self.path)
        packed, blocks = self._packed(places), self._blocks(places)
        tensors = map_tensors(places)
        weights = {
            name: unpacked(parts, tensors.pop(parts.blocks), tensors.pop(parts.scales))
            for name, parts in packed.items()
        }
        for name, stored in blocks.items():
            matrix = PackedMatrix(stored.format, tensors.pop(stored.values), tensors.pop(stored.scales), stored.columns)
            weights[name] = mapped_blocks(matrix, input_first=stored.input_first)
        return weights | {name: mapped(tensor) for name, tensor in tensors.items()}

    def _packed(self, places: Mapping[str, TensorLocation]) -> Mapping[str, mxfp4.PackedWeight]:
        method = mxfp4.quantization_method(self.read_json("config.json"))
        return mxfp4.find_packed(places) if method == mxfp4.METHOD else {}

    def _blocks(self, places: Mapping[str, TensorLocation]) -> Mapping[str, StoredBlocks]:
        return find_blocks(places, self.quantization) if self.quantization else {}


def open_source(path: str | os.PathLike[str]) -> Source:
    """The checkpoint at `path`, of which nothing is read yet.

    Raises:
        CheckpointError: it is a file of another kind than GGUF.
    """
    path = Path(path)
    if not path.is_file():
        return FolderSource(path)
    if not is_gguf(path):
        raise CheckpointError(
            f"{printable(path)} is no GGUF file; give one, or the folder with config.json and model.safetensors in it"
        )
    from genx.checkpoint.gguf.source import GgufSource

    return GgufSource(path)


def read_config_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """config.json of a model folder as it stands there, or what it would hold for a GGUF file. No torch.

    Raises:
        CheckpointError: there is none, it leads outside the folder, or is no JSON object; or a GGUF file is damaged.
        ConfigError: it is not JSON, or too large.
    """
    return open_source(path).read_json("config.json", required=True)
