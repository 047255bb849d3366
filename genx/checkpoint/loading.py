"""A checkpoint -> a model, strictly, without a second copy of the weights."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genx.checkpoint.dtypes import choose_device
from genx.checkpoint.locate import resolve_model
from genx.checkpoint.opening import Checkpoint, open_checkpoint
from genx.checkpoint.packing import Keep, kept_matrices, make_room
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError
from genx.messages import printable

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
