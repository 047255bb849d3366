"""The tensors of a GGUF file under their published names and in their published layout, read one at a time."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from genx.checkpoint.gguf.layouts import LAYOUTS, Layout
from genx.checkpoint.gguf.packed import PackedFiles, dtype_of
from genx.checkpoint.gguf.relaid import read_relaid, relaid_format
from genx.checkpoint.weights import Blocks, Weight
from genx.config import ModelConfig
from genx.errors import CheckpointError
from genx.gguf.parts import GgufModel, PackedTensor
from genx.messages import name_some, printable

_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)\.(weight|bias)")
_OUTSIDE = re.compile(r"(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(ffn_gate|ffn_up|ffn_down)\.(\d{1,6})")  # files of before 2024 do not stack experts
# What follows from the configuration, or has become part of it.
_IGNORED = re.compile(r"(rope_freqs|rope_factors_long|rope_factors_short|blk\.\d+\.attn_rot_embd)\.weight")

Parts = Sequence[PackedTensor]
Build = Callable[..., Tensor]


def published_weights(model: GgufModel, config: ModelConfig) -> dict[str, Weight]:
    """Every tensor of `model`, by its published name.

    Args:
        config: of the model, as its architecture reads it.

    Raises:
        CheckpointError: a tensor is none of the architecture's, or cannot have the layout that it should.
    """
    files = PackedFiles(model.tensors.values())
    weights: dict[str, Weight] = {}
    for name, parts, build in _Publisher(model, config).all():
        if name in weights:
            raise CheckpointError(f"{printable(model.path)} stores {printable(name)} twice; download it again")
        examples = [torch.empty(part.shape, dtype=dtype_of(part), device="meta") for part in parts]
        try:
            example = build(*examples)
        except (RuntimeError, IndexError) as error:
            raise CheckpointError(
                f"{printable(model.path)}: {printable(name)} cannot be made of {[list(part.shape) for part in parts]}: "
                f"{printable(str(error).splitlines()[0])}; download the file again"
            ) from error
        weights[name] = Weight(example, partial(_read, files, parts, build), _blocks(parts, build))
    return weights


def _blocks(parts: Parts, build: Build) -> Blocks | None:
    if len(parts) != 1:
        return None
    kept = relaid_format(parts[0])
    return None if kept is None else Blocks(kept, parts[0].shape[0], partial(read_relaid, parts[0]), build)


def _read(files: PackedFiles, parts: Parts, build: Build) -> Tensor:
    return build(*(files.read(part) for part in parts))


class _Publisher:
    """Finds for each published tensor the stored ones, and how it is made of them."""

    def __init__(self, model: GgufModel, config: ModelConfig) -> None:
        self._model = model
        self._config = config
        self._layout: Layout = LAYOUTS[config.model_type]
        self._unknown: list[str] = []

    def all(self) -> Iterator[tuple[str, Parts, Build]]:
        for name, tensor in self._model.tensors.items():
            if _IGNORED.fullmatch(name):
                continue
            if match := _IN_LAYER.fullmatch(name):
                yield from self._in_layer(name, tensor, match[1], match[2], match[3])
            elif (match := _OUTSIDE.fullmatch(name)) and match[1] in self._layout.model:
                yield f"{self._layout.model[match[1]]}.{match[2]}", [tensor], self._change(match[1])
            else:
                self._unknown.append(name)
        if self._unknown:
            raise CheckpointError(
                f"{printable(self._model.path)} holds {len(self._unknown)} tensors that genx's "
                f"{self._config.model_type} does not have: {name_some(self._unknown)}"
            )

    def _in_layer(
        self, name: str, tensor: PackedTensor, number: str, stem: str, kind: str
    ) -> Iterator[tuple[str, Parts, Build]]:
        layout, layer = self._layout, f"{self._layout.layers}{number}."
        merged = next((one for one in layout.merged if f"{stem}.{kind}" in one.stems), None)
        expert = _EXPERT.fullmatch(stem)
        if stem in layout.layer:
            yield f"{layer}{layout.layer[stem]}.{kind}", [tensor], self._change(stem)
        elif stem in layout.experts:
            for index, slice_ in enumerate(self._slices(name, tensor)):
                yield f"{layer}{layout.experts[stem].format(index)}.{kind}", [slice_], self._change(stem)
        elif expert and f"{expert[1]}_exps" in layout.experts:
            yield f"{layer}{layout.experts[f'{expert[1]}_exps'].format(int(expert[2]))}.{kind}", [tensor], _as_it_is
        elif merged is None:
            self._unknown.append(name)
        elif f"{stem}.{kind}" == merged.stems[0]:
            parts = [self._model.tensors.get(f"blk.{number}.{part}") for part in merged.stems]
            if None in parts:
                raise CheckpointError(
                    f"{printable(self._model.path)} has {printable(name)} without its counterpart; download it again"
                )
            yield layer + merged.published, [part for part in parts if part is not None], merged.join

    def _change(self, stem: str) -> Build:
        change = self._layout.changes.get(stem)
        return _as_it_is if change is None else partial(_changed, change, self._config)

    def _slices(self, name: str, tensor: PackedTensor) -> Iterator[PackedTensor]:
        """The experts of a stack, each with its own bytes."""
        count = self._config.num_local_experts
        if len(tensor.shape) < 2 or tensor.shape[0] != count:
            raise CheckpointError(
                f"{printable(self._model.path)}: {printable(name)} has the shape {list(tensor.shape)}; "
                f"expected a stack of {count:,} experts"
            )
        size = (tensor.stop - tensor.start) // count
        for start in range(tensor.start, tensor.stop, size):
            yield dataclasses.replace(tensor, shape=tensor.shape[1:], start=start, stop=start + size)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _changed(change: Callable[[Tensor, ModelConfig], Tensor], config: ModelConfig, tensor: Tensor) -> Tensor:
    return change(tensor, config)
