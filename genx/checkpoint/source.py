"""Where a checkpoint comes from: a Hugging Face folder, or a GGUF file that reads as if it were one. No torch."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from genx.checkpoint import mxfp4
from genx.checkpoint.folder import read_json_in
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

    # Dtypes other than float32 that stored ones are loaded in.
    _float_names: ClassVar[Mapping[str, str]] = {"F16": "float16", "BF16": "bfloat16"}

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
            stored[tensor.dtype] += tensor.nbytes
        most = stored.most_common(1)[0][0] if stored else "F32"
        return self._float_names.get(most, "float32")

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

    _float_names: ClassVar[Mapping[str, str]] = {**Source._float_names, "MXFP4": "bfloat16"}

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
        return found

    def weights(self, config: "ModelConfig") -> "dict[str, Weight]":
        from genx.checkpoint.mapping import map_tensors
        from genx.checkpoint.mxfp4_values import unpacked
        from genx.checkpoint.weights import mapped

        del config
        places = find_tensors(self.path)
        packed = self._packed(places)
        tensors = map_tensors(places)
        weights = {
            name: unpacked(parts, tensors.pop(parts.blocks), tensors.pop(parts.scales))
            for name, parts in packed.items()
        }
        return weights | {name: mapped(tensor) for name, tensor in tensors.items()}

    def _packed(self, places: Mapping[str, TensorLocation]) -> Mapping[str, mxfp4.PackedWeight]:
        method = mxfp4.quantization_method(self.read_json("config.json"))
        return mxfp4.find_packed(places) if method == mxfp4.METHOD else {}


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
