"""A model -> a checkpoint folder that transformers reads too."""

import ctypes
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from genx.checkpoint.safetensors_writer import TensorSource, write_json, write_safetensors
from genx.checkpoint.weight_files import INDEX_FILE, WEIGHTS_FILE
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError, GenxError
from genx.kernels.packed import PACKED_WEIGHT
from genx.messages import printable

# What safetensors calls the dtypes that a model can have.
FORMAT_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_VALUES_AT_ONCE = 1 << 22


def save_model(model: BaseModel, folder: str | os.PathLike[str]) -> None:
    """Write config.json and model.safetensors to `folder`, which is made if need be.

    Each file is replaced whole, so that a torn one is never seen, and saving into the folder that the model was
    loaded from works (but on Windows, which keeps a mapped file in place). A tied head is not stored. An older
    model.safetensors.index.json, which would describe other weights, is removed.

    Raises:
        CheckpointError: the folder or a file cannot be written.
        GenxError: weights are quantised in memory.
    """
    folder = Path(folder)
    state = model.state_dict()
    if any(tensor.dtype not in FORMAT_NAMES for tensor in state.values()):
        raise GenxError(PACKED_WEIGHT)
    if model.head_is_tied:
        del state[model.head_name]
    sources = {
        name: TensorSource(FORMAT_NAMES[tensor.dtype], tuple(tensor.shape), partial(bytes_of, tensor))
        for name, tensor in state.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # transformers refuses a file that does not name its framework.
        write_safetensors(folder / WEIGHTS_FILE, sources, {"format": "pt"})
        write_json(folder / "config.json", model.config_dict())
        (folder / INDEX_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the model cannot be saved to {printable(folder)}: {error.strerror or error}; "
            "check the space and the permissions, or choose another folder"
        ) from error


def bytes_of(tensor: Tensor) -> Iterator[bytes]:
    """The values of `tensor` in row-major order, some megabytes at a time. torch offers no way without numpy."""
    for part in torch.split(tensor.detach().reshape(-1), _VALUES_AT_ONCE):
        values = part.to("cpu").contiguous()
        yield ctypes.string_at(values.data_ptr(), values.nbytes)
