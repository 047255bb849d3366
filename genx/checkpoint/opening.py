"""A checkpoint and the model that it holds, compared before any value is read."""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genx.checkpoint.dtypes import choose_dtype
from genx.checkpoint.mxfp4 import quantization_method
from genx.checkpoint.quantization import METHOD
from genx.checkpoint.skeleton import build_skeleton
from genx.checkpoint.source import Source, open_source
from genx.checkpoint.weights import Weight
from genx.config import ModelConfig
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError, GenxWarning
from genx.messages import name_some, printable
from genx.models.registry import ARCHITECTURES, model_class


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that holds exactly the model of its configuration, before any value is read.

    Attributes:
        source: where it comes from.
        fields: its config.json.
        model: without storage.
        weights: by their published names.
        sizes: bytes that each of the model's parameters has as it is stored; a tied head is not among them.
    """

    source: Source
    fields: Mapping[str, Any]
    model: BaseModel
    weights: dict[str, Weight]
    sizes: Mapping[str, int]
    _prevailing: torch.dtype

    def choose_dtype(self, asked: torch.dtype | str | None) -> torch.dtype:
        """The dtype asked for, else the configuration's, else the one that most stored bytes have.

        Raises:
            ArgumentError: (a ValueError) it is none of the floats genx computes in.
        """
        return choose_dtype(asked, self.model.config.dtype, self._prevailing)

    def names_of(self, published: str) -> list[str]:
        """The parameters that come out of one published tensor; none if the model has no use for it."""
        adapted = self.model.adapt_checkpoint({published: self.weights[published].example}, self.model.config)
        return [name for name in adapted if name in self.sizes]


def open_checkpoint(path: Path, *, stacklevel: int = 2) -> Checkpoint:
    """Check the headers of a checkpoint against the model of its configuration; see `load_model` for what is raised.

    Args:
        path: a folder or a GGUF file.
        stacklevel: whose line a warning names, as in `warnings.warn`.
    """
    source = open_source(path)
    fields = source.read_json("config.json", required=True)
    architecture = _architecture(path, fields)
    config = architecture.read_config(fields)
    weights = source.weights(config)
    tensors = _adapt(path, architecture, config, weights)
    tied, note = _is_head_tied(architecture, config, tensors)
    if tied:
        tensors.pop(architecture.head_name, None)
    config = dataclasses.replace(config, tie_word_embeddings=tied)
    model = build_skeleton(path, architecture, config, len(tensors))
    _check_fit(path, model, tensors)
    if note:
        warnings.warn(f"{printable(path)}: {note}", GenxWarning, stacklevel=stacklevel)
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    return Checkpoint(source, fields, model, weights, sizes, _prevailing_dtype(tensors))


def _architecture(folder: Path, fields: Mapping[str, Any]) -> type[BaseModel]:
    place = printable(folder / "config.json")
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{place} has no model_type; allowed: {', '.join(sorted(ARCHITECTURES))}")
    architecture = model_class(model_type)
    method = quantization_method(fields)
    if method is not None and method not in (METHOD, *architecture.quantizations):
        raise CheckpointError(
            f"{place} describes weights quantised by {printable(method)}; genx loads floats, its own blocks, and "
            "mxfp4 of gpt_oss; get the unquantised checkpoint"
        )
    return architecture


def _adapt(
    folder: Path, architecture: type[BaseModel], config: ModelConfig, weights: Mapping[str, Weight]
) -> dict[str, Tensor]:
    """Examples under the model's names. One by one, so that two that come to the same name are noticed."""
    adapted: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for published, weight in weights.items():
        tensor = weight.example
        try:
            renamed = architecture.adapt_checkpoint({published: tensor}, config)
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{printable(folder)}: {printable(published)} {list(tensor.shape)} cannot be split into the parts "
                f"that {architecture.__name__} has: {printable(error)}"
            ) from error
        for name, part in renamed.items():
            if name in adapted:
                raise CheckpointError(
                    f"{printable(folder)} stores {printable(name)} twice, as {printable(origin[name])} and as "
                    f"{printable(published)}; keep one"
                )
            adapted[name], origin[name] = part, published
    return adapted


def _is_head_tied(
    architecture: type[BaseModel], config: ModelConfig, tensors: Mapping[str, Tensor]
) -> tuple[bool, str | None]:
    """Whether the head is the token embedding: what is stored decides. Also what to say where the config differs."""
    head, embedding = tensors.get(architecture.head_name), tensors.get(architecture.embedding_name)
    wanted = config.tie_word_embeddings
    if head is None:
        note = f"{architecture.head_name} is not stored, though tie_word_embeddings is false; the embedding serves"
        return True, None if wanted else note
    if embedding is None:
        return False, None
    if head.is_meta:  # of a GGUF file, which says what it means, or in blocks of its own
        return False, None
    if head.data_ptr() == embedding.data_ptr():  # an alias: the saver had tied them
        return True, None
    if not wanted or torch.equal(head.to(embedding.dtype), embedding):
        return wanted, None
    note = f"{architecture.head_name} differs from the embedding, though tie_word_embeddings is true; it serves as head"
    return False, note


def _check_fit(folder: Path, model: BaseModel, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not exactly the model's, each named with what was expected."""
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if model.head_is_tied:
        del wanted[model.head_name]
    missing = [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in tensors]
    unexpected = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items() if name not in wanted]
    misshapen = [
        f"{name} {list(tensor.shape)}, expected {list(wanted[name])}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name]
    ]
    no_floats = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')}, expected a float of 16 bits or more"
        for name, tensor in tensors.items()
        if name in wanted and not (tensor.dtype.is_floating_point and tensor.dtype.itemsize >= 2)
    ]
    faults = {"missing": missing, "unexpected": unexpected, "wrongly shaped": misshapen, "not float": no_floats}
    listed = [f"{len(names)} {fault}: {name_some(names)}" for fault, names in faults.items() if names]
    if listed:
        raise CheckpointError(
            f"{printable(folder)} does not hold the {model.config.model_type} model of its config.json: "
            f"{'; '.join(listed)}; get the complete checkpoint with the config.json that belongs to it"
        )


def _prevailing_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    stored: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        stored[tensor.dtype] += tensor.nbytes
    return stored.most_common(1)[0][0]
