"""A model, loaded to be run as an `Arithmetic` says."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genx.checkpoint import Source, load_model, open_source, resolve_model
from genx.checkpoint.loading import Progress, load_packed
from genx.checkpoint.packing import keep_all, keep_as
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
        ArgumentError: the folder was quantised to another format than is asked for.
        GenxError: its weights cannot be quantised.
    """
    source = open_source(resolve_model(path))
    keeps = arithmetic.keeps_blocks(source) and mesh is None
    if arithmetic.operations == "torch" and not arithmetic.is_quantized and not keeps:
        model = load_model(path, dtype=arithmetic.dtype, device=arithmetic.device, progress=progress, mesh=mesh)
        held = {parameter.dtype for parameter in model.parameters() if parameter.dim() > 1}
        weights = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in held))
        return LoadedModel(model, arithmetic, weights, _nbytes(model), _count(model, source))
    from genx.kernels import attach

    if keeps:
        keep = keep_as(arithmetic.weights) if arithmetic.is_quantized else keep_all
        model = load_packed(path, keep, progress=progress)
    else:
        dtype = STORED if arithmetic.is_quantized else arithmetic.weights
        model = load_model(path, dtype=dtype, device=arithmetic.device, progress=progress)
    parameters = _count(model, source)
    weights = arithmetic.weights if arithmetic.is_quantized else STORED
    if keeps and source.quantization is not None:
        weights = source.quantization.format  # what is not in blocks stays as it is, whatever the operations
    attached = attach(model, weights, arithmetic.operations)
    return LoadedModel(model, arithmetic, attached.weights, _nbytes(model), parameters)


def _count(model: BaseModel, source: Source) -> int:
    from genx.kernels.packed import PackedModule

    packed = {module.weight_values.data_ptr(): module for module in model.modules() if isinstance(module, PackedModule)}
    in_blocks = sum(module.weight_values.size(0) * module.columns for module in packed.values())
    learned = in_blocks + sum(parameter.numel() for parameter in model.parameters())
    if source.has_copied_head:
        learned -= model.config.vocab_size * model.config.hidden_size
    return learned


def _nbytes(model: BaseModel) -> int:
    # What is quantised lies in buffers.
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
