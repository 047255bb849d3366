"""Divide a model among processes.

Every process of the mesh does the same, and then calls the model with the same arguments: hidden states are whole and
equal in all of them, heads and inner channels are each process's own, and so is the cache, which holds its heads only.
Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from genx.core.base_model import BaseModel
from genx.core.division import Channels, Divided, Inputs, Once, Outputs, Share, Slice, Summed, Units, Vocabulary
from genx.errors import ArgumentError
from genx.parallel.parameters import Part, part_of_parameter, parts_of

_SUM = PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=Replicate())
_MOST_PROCESSES = 64  # that an error line goes through


class DividedNorm(ParallelStyle):
    """A norm over channels of which each process has its own: its mean is taken over all of them."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def take(module: nn.Module, inputs: tuple[Tensor, ...]) -> DTensor:
            return DTensor.from_local(inputs[0], device_mesh, [Shard(-1)], run_check=False)

        def give(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Tensor:
            return output.redistribute(placements=[Shard(-1)]).to_local()  # type: ignore[no-any-return]

        module.register_forward_pre_hook(take)
        module.register_forward_hook(give)
        return module


def divide(model: BaseModel, mesh: DeviceMesh) -> dict[str, Part]:
    """Leave this process its part of the model's parameters, and let the blocks sum what the processes compute.

    Args:
        model: whole, in every process the same; on the meta device where its parameters are still to be read.
        mesh: the processes, in one dimension, on the device type that computes.

    Returns:
        How each divided parameter is cut, for who reads it later.

    Raises:
        ArgumentError: (a ValueError) its heads or inner channels cannot be divided among so many.
    """
    check_divisible(model, mesh.size())
    shares = shares_of(model)
    parts: dict[str, Part] = {}
    plan: dict[str, ParallelStyle] = {}
    for name, share in shares.items():
        if isinstance(share, Slice | Once):
            parts[name] = part_of_parameter(share, mesh)
            continue
        if not isinstance(share, Summed):
            found = parts_of(model.get_submodule(name), share, mesh)
            parts.update({f"{name}.{own}": part for own, part in found.items()})
        style = _style(model.get_submodule(name), share, _is_summed_later(name, shares))
        if style is not None:
            plan[name] = style
    model.host_decides = "several processes compute it"
    tied = model.head_is_tied
    for name, part in parts.items():
        _replace(model, name, part)
    parallelize_module(model, mesh, plan)
    if tied:
        model.tie_head()
    return parts


def check_divisible(model: BaseModel, processes: int) -> None:
    """Refuse a number of processes that the model's heads or inner channels cannot be divided among.

    Args:
        model: whole; no value of its parameters is looked at.
        processes: at least 1.

    Raises:
        ArgumentError: (a ValueError) some would hold more than others.
    """
    units: list[Units] = []
    for share in shares_of(model).values():
        if isinstance(share, Outputs):
            units += share.parts
        elif isinstance(share, Inputs | Channels | Slice):
            units.append(share.units)
    wrong = next((unit for unit in units if not unit.allows(processes)), None)
    if wrong is None:
        return
    allowed = [str(count) for count in range(1, _MOST_PROCESSES + 1) if all(unit.allows(count) for unit in units)]
    raise ArgumentError(
        "{tensor_parallel} is {given}, and the model's {field} of {count} cannot be divided so; allowed: {allowed}",
        given=processes,
        field=wrong.field,
        count=wrong.count,
        allowed=", ".join(allowed),
    )


def shares_of(model: BaseModel) -> dict[str, Share]:
    """What of a model is divided, and how, by the names of its modules and parameters."""
    embedding, head = (name.rpartition(".")[0] for name in (model.embedding_name, model.head_name))
    shares: dict[str, Share] = {embedding: Vocabulary(), head: Vocabulary()}
    for name, module in model.named_modules():
        if isinstance(module, Divided):
            shares.update({f"{name}.{own}".strip("."): share for own, share in module.division.items()})
    return shares


def own_nbytes(model: BaseModel) -> int:
    """Bytes of the parameters that this process holds of a divided model."""
    own = (part.to_local() if isinstance(part, DTensor) else part for part in model.parameters())
    return sum(part.nbytes for part in own)


def _style(module: nn.Module, share: Share, is_summed_later: bool) -> ParallelStyle | None:
    """How torch makes a module's result the same in every process; None where it stays each process's own."""
    match share:
        case Vocabulary() if isinstance(module, nn.Embedding):
            return RowwiseParallel(input_layouts=Replicate())
        case Vocabulary():
            return ColwiseParallel(output_layouts=Replicate())
        case Channels():
            return DividedNorm()
        case Summed():
            return _SUM
        case Inputs() if not is_summed_later:
            return _SUM
    return None


def _is_summed_later(name: str, shares: Mapping[str, Share]) -> bool:
    around = (shares.get(name[:place]) for place, sign in enumerate(name) if sign == ".")
    return any(isinstance(block, Summed) for block in around)


def _replace(model: BaseModel, name: str, part: Part) -> None:
    owner, _, own_name = name.rpartition(".")
    whole = model.get_parameter(name)
    own = part.own(whole.detach())
    if not own.is_meta:
        own = own.clone()  # or the whole would stay in memory
    held = nn.Parameter(part.held(own), requires_grad=whole.requires_grad)
    model.get_submodule(owner).register_parameter(own_name, held)
