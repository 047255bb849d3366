"""A model, loaded to be run as an `Arithmetic` says."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genx.checkpoint import load_model
from genx.checkpoint.loading import Progress
from genx.core.base_model import BaseModel
from genx.engine.arithmetic import STORED, Arithmetic
from genx.engine.stream import Steps

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready.

    Attributes:
        model: in eval mode, on its device.
        arithmetic: what it is computed in.
        weights: how the weights of its linear layers lie in memory; several names if they differ.
        weight_bytes: what all weights take, embeddings and norms too.
        parameters: numbers that the model has learned.
        steps: takes its steps, where several processes take them together; see `genx.engine.stream.stream`.
    """

    model: BaseModel
    arithmetic: Arithmetic
    weights: str
    weight_bytes: int
    parameters: int
    steps: Steps | None = None


def load_to_run(
    path: str | os.PathLike[str],
    arithmetic: Arithmetic,
    *,
    progress: Progress | None = None,
    mesh: "DeviceMesh | None" = None,
) -> LoadedModel:
    """Load the model and give it the operations that are to serve.

    Args:
        path: as for `genx.load_model`.
        arithmetic: see `choose_arithmetic`.
        progress: as for `genx.load_model`.
        mesh: as for `genx.load_model`; with torch's operations, and weights that are not quantised.

    Raises:
        CheckpointError: the folder does not hold a model that genx knows, whole.
        GenxError: its weights cannot be quantised.
    """
    if arithmetic.operations == "torch" and not arithmetic.is_quantized:
        model = load_model(path, dtype=arithmetic.dtype, device=arithmetic.device, progress=progress, mesh=mesh)
        held = {parameter.dtype for parameter in model.parameters() if parameter.dim() > 1}
        weights = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in held))
        return LoadedModel(model, arithmetic, weights, _nbytes(model), _count(model))
    from genx.kernels import attach

    dtype = STORED if arithmetic.is_quantized else arithmetic.weights
    model = load_model(path, dtype=dtype, device=arithmetic.device, progress=progress)
    parameters = _count(model)
    weights = arithmetic.weights if arithmetic.is_quantized else STORED
    attached = attach(model, weights, arithmetic.operations)
    return LoadedModel(model, arithmetic, attached.weights, _nbytes(model), parameters)


def _count(model: BaseModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _nbytes(model: BaseModel) -> int:
    # What is quantised lies in buffers.
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
