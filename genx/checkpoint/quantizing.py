"""A checkpoint as the tensors of a folder in blocks, each quantised when its turn to be written comes.

The layout is that of genx/checkpoint/quantization.py, and the blocks are those that `--quantize` makes at load.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from genx.checkpoint.opening import Checkpoint
from genx.checkpoint.packing import keep_as, kept_matrices
from genx.checkpoint.quantization import HEAD, SCALES, VALUES, Quantization
from genx.checkpoint.safetensors_writer import TensorSource
from genx.checkpoint.saving import FORMAT_NAMES, bytes_of
from genx.core.conv1d import Conv1D
from genx.kernels.library import Library, native_library
from genx.kernels.linear import packed
from genx.kernels.packed import PackedMatrix, linear_format, packed_layouts
from genx.kernels.quantize import ROW_MULTIPLE


@dataclass
class QuantizedTensors:
    """What is to be written.

    Attributes:
        units: tensors by their names; those of one unit belong in one file.
        quantization: what config.json is to say.
    """

    quantization: Quantization
    units: list[Mapping[str, TensorSource]] = field(default_factory=list)


def quantized_tensors(checkpoint: Checkpoint, quantize: str) -> QuantizedTensors:
    """Plan the tensors; no value is read yet.

    Args:
        checkpoint: the source.
        quantize: int8 or int4.
    """
    columns: dict[str, int] = {}
    input_first: set[str] = set()
    left_out: set[str] = set()
    found = QuantizedTensors(Quantization(quantize, columns, input_first, left_out))
    for published in sorted(checkpoint.weights):
        for parameter in checkpoint.names_of(published):
            for name, made in _made_of(checkpoint, published, parameter, quantize):
                if isinstance(made, TensorSource):
                    found.units.append({name: made})
                    if len(made.shape) > 1:
                        left_out.add(name.rpartition(".")[0])
                    continue
                found.units.append(made.tensors(name))
                if made.columns % ROW_MULTIPLE:
                    columns[name] = made.columns
                if isinstance(checkpoint.model.get_submodule(name.rpartition(".")[0]), Conv1D):
                    input_first.add(name)
    return found


def _made_of(
    checkpoint: Checkpoint, published: str, parameter: str, quantize: str
) -> Iterator[tuple[str, "TensorSource | _Matrix"]]:
    """What is written of one of the model's parameters, under which names."""
    model, weight = checkpoint.model, checkpoint.weights[published]
    layer, _, kind = parameter.rpartition(".")
    module = model.get_submodule(layer)
    shape = tuple(model.get_parameter(parameter).shape)

    def matrix(kept: str) -> _Matrix:
        columns, rows = shape if isinstance(module, Conv1D) else reversed(shape)
        return _Matrix(kept, rows, columns, partial(_matrix, checkpoint, published, parameter, kept, quantize))

    if kind == "weight" and isinstance(module, nn.Linear | Conv1D):
        yield parameter, matrix(linear_format(quantize, layer))
        return
    is_tied = parameter == model.embedding_name and model.head_is_tied
    head = linear_format(quantize, HEAD.removesuffix(".weight"))
    stored = weight.blocks.format if weight.blocks and isinstance(module, nn.Embedding) else None
    if stored is not None and (not is_tied or stored == head):
        yield parameter, matrix(stored)
        return
    dtype = torch.float32 if weight.example.dtype == torch.float64 else weight.example.dtype
    yield parameter, TensorSource(FORMAT_NAMES[dtype], shape, partial(_floats, checkpoint, published, parameter, dtype))
    if is_tied:
        yield HEAD, matrix(head)


class _Matrix:
    """One matrix, whose scales wait in memory from when its values were written until their turn."""

    def __init__(self, kept: str, rows: int, columns: int, make: Callable[[], PackedMatrix]) -> None:
        self.columns = columns
        self._layouts = packed_layouts(kept, rows, columns)
        self._make = make
        self._scales: Tensor | None = None

    def tensors(self, name: str) -> Mapping[str, TensorSource]:
        """Its two parts."""
        (values, values_shape), (_, scales_shape) = self._layouts
        return {
            name + VALUES: TensorSource({torch.int8: "I8", torch.uint8: "U8"}[values], values_shape, self._values),
            name + SCALES: TensorSource("F16", scales_shape, self._waiting),
        }

    def _values(self) -> Iterator[bytes]:
        matrix = self._make()
        self._scales = matrix.scales
        yield from bytes_of(matrix.values)

    def _waiting(self) -> Iterator[bytes]:
        scales = self._make().scales if self._scales is None else self._scales
        self._scales = None
        yield from bytes_of(scales)


def _matrix(checkpoint: Checkpoint, published: str, parameter: str, kept: str, quantize: str) -> PackedMatrix:
    """Blocks as they are stored where they are what is wanted, else floats quantised."""
    model, stored = checkpoint.model, checkpoint.weights[published]
    matrices = kept_matrices(model, published, stored, keep_as(quantize), tied=model.head_is_tied)
    if parameter in matrices:
        return matrices[parameter]
    weight = _read(checkpoint, published, parameter)
    if isinstance(model.get_submodule(parameter.rpartition(".")[0]), Conv1D):
        weight = weight.t()
    library = native_library()
    return packed(kept, weight, library if isinstance(library, Library) else None)


def _floats(checkpoint: Checkpoint, published: str, parameter: str, dtype: torch.dtype) -> Iterator[bytes]:
    return bytes_of(_read(checkpoint, published, parameter).to(dtype))


def _read(checkpoint: Checkpoint, published: str, parameter: str) -> Tensor:
    model = checkpoint.model
    weight = model.adapt_checkpoint({published: checkpoint.weights[published].read()}, model.config)[parameter]
    return weight.float() if weight.dtype == torch.float64 else weight
