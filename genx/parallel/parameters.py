"""The part of a parameter that a process holds, and the form in which its module holds it.

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from genx.core.conv1d import Conv1D
from genx.core.division import Channels, Inputs, Once, Outputs, Share, Slice, Units, Vocabulary


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Part:
    """What a process holds of one parameter.

    Attributes:
        own: the process's part of the whole; a view where it is one run, so that no more of a mapped file is read.
        held: what the module holds, of the own part: itself, or a DTensor that knows of the others.
    """

    own: Callable[[Tensor], Tensor]
    held: Callable[[Tensor], Tensor] = _as_it_is


def parts_of(module: nn.Module, share: Share, mesh: DeviceMesh) -> dict[str, Part]:
    """The parts of a module's own parameters, by the names that it has for them.

    The layers that every token passes through hold plain tensors: a linear layer of DTensors takes some hundred
    microseconds a call to find out where its result lies, which is known here.

    Args:
        module: a linear layer, a norm or an embedding.
        share: what of it is divided.
        mesh: the processes, in one dimension.
    """
    outputs, inputs = (1, 0) if isinstance(module, Conv1D) else (0, 1)
    found: dict[str, Part] = {}
    for name, parameter in module.named_parameters(recurse=False):
        match share:
            case Vocabulary():
                found[name] = _rows(mesh, parameter.shape)
            case Channels(units):
                shape = parameter.shape
                if units.count < mesh.size():  # and then repeated
                    shape = torch.Size((units.size * mesh.size(),))
                found[name] = Part(_cut(mesh, (units,), 0), _distributed_by(mesh, shape))
            case Outputs(parts):
                found[name] = Part(_cut(mesh, parts, outputs if name == "weight" else 0))
            case Inputs(units):
                found[name] = Part(_cut(mesh, (units,), inputs)) if name == "weight" else _once(mesh)
    return found


def part_of_parameter(share: Slice | Once, mesh: DeviceMesh) -> Part:
    """The part of a parameter that its module uses as it is."""
    return Part(_cut(mesh, (share.units,), share.dim)) if isinstance(share, Slice) else _once(mesh)


def _cut(mesh: DeviceMesh, parts: tuple[Units, ...], dim: int) -> Callable[[Tensor], Tensor]:
    runs = [units.run_of(mesh.get_local_rank(), mesh.size()) for units in parts]

    def own(whole: Tensor) -> Tensor:
        pieces = torch.split(whole, [units.count * units.size for units in parts], dim)
        held = [piece.narrow(dim, *run) for piece, run in zip(pieces, runs, strict=True)]
        return held[0] if len(held) == 1 else torch.cat(held, dim)

    return own


def _rows(mesh: DeviceMesh, shape: torch.Size) -> Part:
    """Runs of rows as `torch.chunk` cuts them: the last processes may have fewer, or none."""
    rank, each = mesh.get_local_rank(), -(-shape[0] // mesh.size())
    first, last = (min(end * each, shape[0]) for end in (rank, rank + 1))
    return Part(lambda whole: whole[first:last], _distributed_by(mesh, shape))


def _once(mesh: DeviceMesh) -> Part:
    return Part(_as_it_is if mesh.get_local_rank() == 0 else torch.zeros_like)


def _distributed_by(mesh: DeviceMesh, shape: torch.Size) -> Callable[[Tensor], Tensor]:
    """Makes a DTensor of that shape of each process's rows."""
    stride = torch.empty(shape, device="meta").stride()
    return lambda part: DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
