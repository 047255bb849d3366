"""Give a loaded model the kernels: its linear layers, embeddings and shared blocks are replaced by counterparts.

The model's class and its forward stay as they are. Everything is computed in float32, whatever the weights are.
"""

from dataclasses import dataclass

import torch
from torch import nn

from genx.core.base_model import BaseModel
from genx.core.conv1d import Conv1D
from genx.errors import ArgumentError, GenxError
from genx.kernels.blocks import KernelEmbedding, counterpart
from genx.kernels.library import Library, native_library
from genx.kernels.linear import FloatLinear, KernelLinear, QuantizedLinear, Scratch, packed
from genx.kernels.packed import PACKED_FORMATS, PackedLinear, linear_format

WEIGHTS = ("stored", "float32", "bfloat16", "float16", *PACKED_FORMATS)
MODES = ("auto", "native", "torch")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Attached:
    """What `attach` chose, and why."""

    weights: str
    """How the linear layers' weights lie in memory; several names if they differ."""

    weight_bytes: int
    """What they take."""

    operations: str
    """native or torch."""

    reason: str
    """Why, for a person."""


def attach(model: BaseModel, weights: str = "stored", mode: str = "auto") -> Attached:
    """Replace the model's blocks, in place, for inference on the CPU.

    Args:
        model: as loaded, on the CPU; in eval mode and without gradients afterwards.
        weights: the linear layers' weights: as stored, another float dtype, or quantised to 8 or 4 bits in blocks.
            Token and position embeddings are not quantised, except that a head of its own is always a linear layer.
            What is in blocks already stays as it is.
        mode: native operations if there are any, or must be, or must not be.

    Returns:
        What was chosen.

    Raises:
        ArgumentError: an argument is none of the allowed ones.
        GenxError: native operations are asked for and there are none, or the model is not on the CPU, or its weights
            cannot be quantised.
    """
    _check(model, weights, mode)
    library = "they were not wanted (mode torch)" if mode == "torch" else native_library()
    native = library if isinstance(library, Library) else None
    if native is None and mode == "native":
        raise GenxError(f"there are no native operations: {library}")
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dtype == torch.float64:
            parameter.data = parameter.data.float()
    if weights in ("float32", "bfloat16", "float16"):
        _convert(model, getattr(torch, weights))
    if native is None and weights not in PACKED_FORMATS:
        _convert(model, torch.float32)
    _Replacer(native, weights if weights in PACKED_FORMATS else None).replace_in(model)
    return _description(model, library)


class _Replacer:
    def __init__(self, native: Library | None, quantization: str | None) -> None:
        self._native = native
        self._quantization = quantization
        self._scratch = Scratch()

    def replace_in(self, parent: nn.Module, prefix: str = "") -> None:
        """Replace what is below `parent`, whose name in the model is `prefix`, the innermost modules first."""
        for name, child in parent.named_children():
            self.replace_in(child, f"{prefix}{name}.")
            replacement = self.replacement(child, prefix + name)
            if replacement is not None:
                parent.add_module(name, replacement.eval())

    def replacement(self, module: nn.Module, name: str) -> nn.Module | None:
        """The module's counterpart; None where it stays, with float32 parameters."""
        if isinstance(module, PackedLinear):
            return QuantizedLinear(module.matrix, module.bias, self._scratch, self._native)
        if isinstance(module, nn.Linear | Conv1D):
            return self.linear(module, name)
        if isinstance(module, nn.Embedding):
            return KernelEmbedding(module)
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.float()
        return None if self._native is None else counterpart(module, self._native)

    def linear(self, module: nn.Linear | Conv1D, name: str) -> KernelLinear:
        """The counterpart of a linear layer."""
        input_first = isinstance(module, Conv1D)
        weight, bias = module.weight, module.bias
        if self._quantization is None:
            return FloatLinear(weight, bias, self._scratch, self._native, input_first=input_first)
        matrix = packed(linear_format(self._quantization, name), weight.t() if input_first else weight, self._native)
        return QuantizedLinear(matrix, bias, self._scratch, self._native)


def _convert(model: BaseModel, dtype: torch.dtype) -> None:
    # Not by the module's own method, which takes scales of blocks for floats like others.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _check(model: BaseModel, weights: str, mode: str) -> None:
    if weights not in WEIGHTS:
        raise ArgumentError("{weights} is {given!r}; allowed: {allowed}", given=weights, allowed=", ".join(WEIGHTS))
    if mode not in MODES:
        raise ArgumentError("{kernels} is {given!r}; allowed: {allowed}", given=mode, allowed=", ".join(MODES))
    for name, parameter in model.named_parameters():
        if not parameter.is_cpu or parameter.dtype not in _FLOATS:
            raise GenxError(
                f"{name} is {parameter.dtype} on {parameter.device}; allowed with kernels: "
                "float32, bfloat16, float16 or float64 on the CPU"
            )


def _description(model: BaseModel, library: Library | str) -> Attached:
    linears = [module for module in model.modules() if isinstance(module, KernelLinear)]
    formats = sorted({linear.format for linear in linears})
    size = sum(linear.weight_nbytes for linear in linears)
    if isinstance(library, str):
        return Attached(" and ".join(formats), size, "torch", f"no native operations: {library}")
    return Attached(" and ".join(formats), size, "native", library.description)
