"""A checkpoint -> a model, strictly, without a second copy of the weights."""

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from genx.checkpoint.dtypes import choose_device, choose_dtype
from genx.checkpoint.locate import resolve_model
from genx.checkpoint.mxfp4 import quantization_method
from genx.checkpoint.packing import Keep, kept_matrices, make_room
from genx.checkpoint.quantization import METHOD
from genx.checkpoint.skeleton import build_skeleton
from genx.checkpoint.source import Source, open_source
from genx.checkpoint.weights import Weight
from genx.config import ModelConfig
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError, GenxWarning
from genx.messages import name_some, printable
from genx.models.registry import ARCHITECTURES, model_class

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from genx.parallel.parameters import Part

Progress = Callable[[int, int], None]


def load_model(
    path: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    *,
    progress: Progress | None = None,
    mesh: "DeviceMesh | None" = None,
) -> BaseModel:
    """The model of a Hugging Face folder or a GGUF file, in eval mode.

    The files are mapped into memory: a parameter whose dtype and device already fit is the mapped file itself, others
    are dequantised and converted one at a time. Changing parameters in memory does not change the file.

    Args:
        path: a folder, a GGUF file, or the name of one in the models folder; see `resolve_model`.
        dtype: float32, float16, bfloat16 or float64. None means what config.json says (`dtype` or `torch_dtype`),
            even where the file differs; if that is none of the four, the dtype that most of the stored bytes have.
            "stored" leaves each tensor the dtype that it has in the file. Quantised blocks count as float32, which
            holds them exactly.
        device: where the parameters go; None is the CPU.
        progress: called with bytes done and bytes in all, first with 0 and then after every tensor.
        mesh: processes, in one dimension, that each load their part of the weights and compute together, all of them
            called alike; None loads the whole. See `genx.parallel.divide`.

    Raises:
        CheckpointError: the folder is missing, damaged or incomplete, holds a quantised model or one that genx does
            not know, or does not fit into memory. Every tensor that is missing, unexpected or wrongly shaped is named.
        ConfigError: config.json is not JSON, or describes no possible model.
        ArgumentError: the dtype or the device is not one that there is, or the mesh does not divide the model.

    Warns:
        GenxWarning: the head is missing where the configuration wants one of its own (the token embedding serves),
            or is stored and different where it wants the embedding (the stored one serves).
    """
    target = choose_device(device)
    checked = open_checkpoint(resolve_model(path), stacklevel=3)
    _fill(checked, None if dtype == "stored" else checked.choose_dtype(dtype), target, progress, mesh)
    return checked.model.eval()


def load_packed(path: str | os.PathLike[str], keep: Keep, *, progress: Progress | None = None) -> BaseModel:
    """As `load_model` with the dtype "stored", on the CPU, but matrices stay in the blocks that they are stored in.

    In the place of linear layers and embeddings then stand those of genx/kernels/packed.py. Blocks of a folder are the
    mapped file; those of a GGUF file are copied into another order.

    Args:
        path: as for `load_model`.
        keep: which matrices stay in blocks; the others are dequantised.
        progress: as for `load_model`.
    """
    checked = open_checkpoint(resolve_model(path), stacklevel=3)
    _fill(checked, None, choose_device("cpu"), progress, None, keep)
    return checked.model.eval()


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
            f"{place} describes weights quantised by {printable(method)}; genx loads float weights, and mxfp4 of "
            "gpt_oss; get the unquantised checkpoint"
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


def _fill(
    checkpoint: Checkpoint,
    dtype: torch.dtype | None,
    device: torch.device,
    progress: Progress | None,
    mesh: "DeviceMesh | None",
    keep: Keep | None = None,
) -> None:
    """Give the model its parameters, letting go of each stored tensor that was converted."""
    report = progress or (lambda done, total: None)
    model, total = checkpoint.model, sum(checkpoint.sizes.values())
    done = 0
    report(done, total)
    parts = {} if mesh is None else _divide(model, mesh)
    parameters: dict[str, Tensor] = {}
    tied = model.head_is_tied
    for published in list(checkpoint.weights):
        wanted = checkpoint.names_of(published)
        weight = checkpoint.weights.pop(published)
        if not wanted:
            continue
        kept = {} if keep is None else kept_matrices(model, published, weight, keep, tied=tied)
        for name, matrix in kept.items():
            names = [name, model.head_name] if tied and name == model.embedding_name else [name]
            for place in names:
                parameters |= make_room(model, place, matrix)
            tied = tied and len(names) == 1
            done += checkpoint.sizes[name]
            report(done, total)
        if kept:
            continue
        for name, stored in model.adapt_checkpoint({published: weight.read()}, model.config).items():
            part = parts.get(name)
            own = stored if part is None else part.own(stored)
            own = _put(name, own, dtype, device, f"after {done:,} of {total:,} bytes")
            parameters[name] = own if part is None else part.held(own)
            done += checkpoint.sizes[name]
            report(done, total)
    if tied:
        parameters[model.head_name] = parameters[model.embedding_name]
    model.load_state_dict(parameters, assign=True)
    if tied:
        model.tie_head()  # the assignment made two parameters of it


def _divide(model: BaseModel, mesh: "DeviceMesh") -> "dict[str, Part]":
    from genx.parallel.divide import divide  # imports what of torch only several processes need

    return divide(model, mesh)


def _put(name: str, stored: Tensor, dtype: torch.dtype | None, device: torch.device, when: str) -> Tensor:
    dtype = dtype or stored.dtype
    try:
        return stored.to(device=device, dtype=dtype)
    except (MemoryError, RuntimeError, TypeError) as error:  # TypeError: a Mac's GPU has no float64
        raise CheckpointError(
            f"{name} {list(stored.shape)} cannot be put on {device} as {dtype}, {when}: "
            f"{printable(str(error).splitlines()[0])}"
        ) from error
