"""The bytes of GGUF tensors as floats: plain ones mapped from the file, blocks dequantised."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genx.errors import CheckpointError
from genx.gguf.parts import PackedTensor
from genx.messages import printable

_FLOATS: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
_VALUES_AT_ONCE = 1 << 19  # dequantising takes several times its result in passing


class PackedFiles:
    """The files of one model, mapped into memory, to read floats from."""

    def __init__(self, tensors: Iterable[PackedTensor]) -> None:
        """Map the files of `tensors`; nothing is read.

        Raises:
            CheckpointError: a file cannot be mapped.
        """
        self._bytes = {path: _map(path) for path in {tensor.path for tensor in tensors}}

    def read(self, tensor: PackedTensor) -> Tensor:
        """The values of `tensor`, in `dtype_of(tensor)`; plain floats are a view of the file.

        Raises:
            CheckpointError: the package that dequantises them is not installed, or cannot.
        """
        data = self._bytes[tensor.path][tensor.start : tensor.stop]
        if tensor.element.name in _FLOATS:
            return data.view(_FLOATS[tensor.element.name]).view(tensor.shape)
        return self._dequantise(data, tensor)

    def _dequantise(self, data: Tensor, tensor: PackedTensor) -> Tensor:
        package = _import_gguf(tensor)
        import numpy as np

        # The package takes rows of blocks in small groups; which blocks make a row is of no matter to it.
        blocks = data.view(-1, tensor.element.size)
        values = torch.empty(len(blocks), tensor.element.values)
        kind = package.GGMLQuantizationType[tensor.element.name]
        step = max(1, _VALUES_AT_ONCE // tensor.element.values)
        try:
            with np.errstate(all="ignore"):  # scales of a damaged file may be infinite
                for first in range(0, len(blocks), step):
                    row = blocks[first : first + step].reshape(1, -1).numpy()
                    part = torch.from_numpy(package.dequantize(row, kind))
                    values[first : first + step] = part.view(-1, tensor.element.values)
        except (NotImplementedError, KeyError) as error:
            raise CheckpointError(
                f"{printable(tensor.path)} is quantised as {tensor.element.name}, which the installed gguf does "
                "not dequantise; update it with: python -m pip install -U gguf"
            ) from error
        return values.view(tensor.shape)


def dtype_of(tensor: PackedTensor) -> torch.dtype:
    """The dtype that a tensor is read in: its own, or float32, which holds every block's values exactly."""
    return _FLOATS.get(tensor.element.name, torch.float32)


def _map(path: Path) -> Tensor:
    try:
        return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{printable(path)} cannot be mapped: {printable(str(error).splitlines()[0])}") from error


def _import_gguf(tensor: PackedTensor) -> Any:
    try:
        import_module("numpy")
        return import_module("gguf")
    except ImportError as error:
        raise CheckpointError(
            f"{printable(tensor.path)} is quantised ({tensor.element.name}); reading that needs the package gguf: "
            "python -m pip install 'genx[gguf]'"
        ) from error
