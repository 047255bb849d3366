"""One projection of a block with what stands before and after it, in one native call or by torch.

Shapes: see the legend in genx/core/base_model.py; O outputs and I inputs; N rows, the B * T of a step.
"""

from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Protocol

import torch
from torch import Tensor

from genx.core.feed_forward import Activation, activation
from genx.kernels.library import ACTIVATIONS, Library, Matrix, Norm, ProjectionStructure
from genx.kernels.modules import check_input
from genx.kernels.norm import KernelNorm

_NATIVE_ACTIVATIONS: Mapping[Activation | None, int] = {
    None: ACTIVATIONS["identity"],
    activation("silu"): ACTIVATIONS["silu"],
    activation("gelu_new"): ACTIVATIONS["tanh_gelu"],
    activation("gelu"): ACTIVATIONS["gelu"],
    activation("relu"): ACTIVATIONS["relu"],
}


class Multiplier(Protocol):
    """A linear layer as a projection uses it: y = x W^T + b."""

    in_features: int
    out_features: int

    def matrix(self) -> Matrix:
        """What native operations are told; the memory lives as long as the layer."""

    def multiply(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., I] to [..., O] by torch."""


class Projection:
    """norm -> linear layers side by side -> biases -> activation, or activation(first) * second -> + residual."""

    def __init__(
        self,
        linears: Sequence[Multiplier],
        native: Library | None,
        *,
        norm: KernelNorm | None = None,
        activate: Activation | None = None,
        gated: bool = False,
    ) -> None:
        """
        Args:
            linears: one to three, of the same I.
            native: the compiled operations, or None to have torch do all.
            norm: applied to the input.
            activate: applied to the outputs; by torch alone unless it is one of the core's.
            gated: two linears of the same O, of which the activated first gates the second.
        """
        self.columns = linears[0].in_features
        sizes = [linear.out_features for linear in linears]
        assert all(linear.in_features == self.columns for linear in linears)
        assert 1 <= len(linears) <= 3
        assert not gated or (len(sizes) == 2 and sizes[0] == sizes[1])
        assert norm is None or norm.columns == self.columns
        self.outputs = sizes[0] if gated else sum(sizes)
        self._linears = tuple(linears)
        self._norm = norm
        self._activate = activate
        self._gated = gated
        self._native = native if activate in _NATIVE_ACTIVATIONS else None
        self.is_native = self._native is not None
        if self._native is not None:
            self.structure = ProjectionStructure(
                (Matrix * 3)(*(linear.matrix() for linear in linears)),
                len(linears),
                self.columns,
                self.outputs,
                _NATIVE_ACTIVATIONS[activate],
                gated,
                Norm() if norm is None else norm.structure,
            )
            self._argument = byref(self.structure)

    def __call__(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        """`hidden` [..., I] to [..., O], plus `residual` [..., O] if there is one. All float32."""
        rows = hidden.numel() // self.columns
        if self._native is None or not 0 < rows <= self._native.rows_max:
            return self.by_torch(hidden, residual)
        hidden = hidden.contiguous()
        check_input(hidden, (*hidden.shape[:-1], self.columns))
        output = hidden.new_empty((*hidden.shape[:-1], self.outputs))
        address = None
        if residual is not None:
            check_input(residual, output.shape)
            address = residual.data_ptr()
        if self._native.project(self._argument, hidden.data_ptr(), address, output.data_ptr(), rows):
            raise MemoryError
        return output

    def by_torch(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        """The same by torch: the reference, and for many rows the faster one."""
        parts = self.separate(hidden)
        if self._activate is not None or self._gated:
            parts = [self._activated(parts[0], parts[1] if self._gated else None), *parts[1 + self._gated :]]
        output = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return output if residual is None else output.add_(residual)

    def separate(self, hidden: Tensor) -> list[Tensor]:
        """Each linear layer's outputs [..., O] for `hidden` [..., I], before any activation, multiplied by torch."""
        normalized = hidden if self._norm is None else self._norm(hidden)
        return [linear.multiply(normalized) for linear in self._linears]

    def _activated(self, values: Tensor, factors: Tensor | None) -> Tensor:
        """The activation of `values`, times `factors`, in the memory of `values` where that is possible."""
        if self._native is None:
            activated = values if self._activate is None else self._activate(values)
            return activated if factors is None else activated * factors
        address = None if factors is None else factors.data_ptr()
        self._native.activate(_NATIVE_ACTIVATIONS[self._activate], values.data_ptr(), address, values.numel())
        return values
