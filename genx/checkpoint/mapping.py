"""Tensors as views of memory-mapped safetensors files."""

from collections.abc import Mapping

from safetensors import SafetensorError, safe_open
from torch import Tensor

from genx.checkpoint.weight_files import TensorLocation
from genx.errors import CheckpointError
from genx.messages import printable


def map_tensors(locations: Mapping[str, TensorLocation]) -> dict[str, Tensor]:
    """The tensors at `locations`, on the CPU in the dtype they are stored in; their bytes stay in the files.

    Raises:
        CheckpointError: a file cannot be mapped, or a tensor is empty or of a dtype that torch does not have.
    """
    tensors: dict[str, Tensor] = {}
    for path in {location.path for location in locations.values()}:
        wanted = {name: location.name for name, location in locations.items() if location.path == path}
        try:
            with safe_open(path, framework="pt") as file:
                # One view for each stored tensor, so that aliases share it.
                views = {stored: file.get_tensor(stored) for stored in set(wanted.values())}
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{printable(path)} cannot be mapped: {printable(error)}") from error
        tensors.update((name, views[stored]) for name, stored in wanted.items())
    empty = [name for name, tensor in tensors.items() if not tensor.numel()]
    if empty:
        raise CheckpointError(f"{printable(empty[0])} has the shape {list(tensors[empty[0]].shape)}, without any value")
    return {name: tensors[name] for name in locations}
