"""Matrices that stay in blocks on their way from a file into a model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from genx.checkpoint.weights import Weight
from genx.core.base_model import BaseModel
from genx.core.conv1d import Conv1D
from genx.kernels.packed import PackedMatrix, linear_format, packed_counterpart

Keep = Callable[[str, str], bool]
"""Whether a linear layer, by its name, is to keep a matrix of a format, rather than floats. A tied head is asked for
its embedding; an embedding alone keeps what it has, for only the rows that are looked up become floats."""


def keep_all(layer: str, stored: str) -> bool:
    """Keep every matrix in the blocks that it is stored in."""
    del layer, stored
    return True


def keep_as(quantization: str) -> Keep:
    """Keep blocks that are what the layer's weights become in a model that is quantised to int8 or int4."""
    return lambda layer, stored: stored == linear_format(quantization, layer)


def kept_matrices(
    model: BaseModel, published: str, weight: Weight, keep: Keep, *, tied: bool
) -> dict[str, PackedMatrix]:
    """The matrices that come out of one stored weight, by the names of the model's parameters.

    Empty if it is not in blocks, or any of them is to be floats: if the model takes more apart than rows, say.

    Args:
        model: a skeleton.
        published: the weight's name.
        weight: what is stored.
        keep: what is to stay in blocks.
        tied: whether the embedding is the head too.
    """
    blocks = weight.blocks
    if blocks is None:
        return {}
    # What is done to the layout is done to the numbers of the rows, twice side by side to see that it is only that.
    numbers = torch.arange(blocks.rows).unsqueeze(1).expand(-1, 2)
    rows: dict[str, Tensor] = {}
    for name, marked in model.adapt_checkpoint({published: blocks.arrange(numbers)}, model.config).items():
        found = _rows_of(model, name, marked)
        if found is None or not all(keep(layer, blocks.format) for layer in _linear_layers(model, name, tied=tied)):
            return {}
        rows[name] = found
    matrix = blocks.read() if rows else None
    return {} if matrix is None else {name: matrix.take(found) for name, found in rows.items()}


def _rows_of(model: BaseModel, name: str, marked: Tensor) -> Tensor | None:
    """Which stored rows are those of the parameter `name`; None if it is no matrix of them."""
    module = _module(model, name)
    if not name.endswith(".weight") or not isinstance(module, nn.Linear | Conv1D | nn.Embedding):
        return None
    if isinstance(module, Conv1D):
        marked = marked.t()
    if marked.dim() != 2 or marked.size(1) != 2 or not torch.equal(marked[:, 0], marked[:, 1]):
        return None
    return marked[:, 0]


def _linear_layers(model: BaseModel, name: str, *, tied: bool) -> list[str]:
    if not isinstance(_module(model, name), nn.Embedding):
        return [name.removesuffix(".weight")]
    return [model.head_name.removesuffix(".weight")] if tied and name == model.embedding_name else []


def _module(model: BaseModel, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def make_room(model: BaseModel, name: str, matrix: PackedMatrix) -> dict[str, Tensor]:
    """Give a skeleton a place for a matrix where the parameter `name` was; return the tensors to load there."""
    module = name.removesuffix(".weight")
    with torch.device("meta"):
        counterpart = packed_counterpart(model.get_submodule(module), matrix.format)
    assert counterpart is not None
    model.set_submodule(module, counterpart)
    return {f"{name}_values": matrix.values, f"{name}_scales": matrix.scales}
