"""Which weights of a folder are in MXFP4, as gpt-oss publishes its experts: 4-bit values that share scales. No torch.

A block is 32 values. The weight NAME [E, in, out] is stored output-first in two tensors of bytes: NAME_blocks
[E, out, in / 32, 16] and NAME_scales [E, out, in / 32]. Layers that `modules_to_not_convert` names have floats
instead: what is stored decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genx.checkpoint.weight_files import TensorLocation
from genx.errors import CheckpointError
from genx.messages import printable

METHOD = "mxfp4"
"""Its `quant_method` in config.json."""

VALUES = 32
"""Of a block, in 16 bytes."""

_BLOCKS, _SCALES = "_blocks", "_scales"


@dataclass(frozen=True)
class PackedWeight:
    """Where the two parts of one weight [E, in, out] lie, by their stored names."""

    blocks: str
    scales: str
    shape: tuple[int, int, int]


def quantization_method(fields: Mapping[str, Any]) -> str | None:
    """How config.json says that the weights are quantised; None if it does not."""
    quantization = fields.get("quantization_config")
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    return str(method or "an unnamed method")


def find_packed(stored: Mapping[str, TensorLocation]) -> dict[str, PackedWeight]:
    """The packed weights among `stored`, by their own names.

    Raises:
        CheckpointError: one lacks a part, or its parts do not belong together, or it is there as floats too.
    """
    names = {name.removesuffix(part) for name in stored for part in (_BLOCKS, _SCALES) if name.endswith(part)}
    for name in sorted(names & stored.keys()):
        raise CheckpointError(
            f"{printable(stored[name].path)} stores {printable(name)} twice, as {METHOD} and as floats; keep one"
        )
    return {name: _packed(name, stored) for name in sorted(names)}


def _packed(name: str, stored: Mapping[str, TensorLocation]) -> PackedWeight:
    parts = [stored.get(name + part) for part in (_BLOCKS, _SCALES)]
    blocks, scales = ((part.tensor.dtype, part.tensor.shape) if part else ("", ()) for part in parts)
    *leading, size = blocks[1] or (0,)
    if blocks[0] != "U8" or scales != ("U8", tuple(leading)) or len(leading) != 3 or 2 * size != VALUES:
        given = ", ".join(
            f"{part} {location.tensor.dtype} {list(location.tensor.shape)}" if location else f"no {part}"
            for part, location in zip((_BLOCKS, _SCALES), parts, strict=True)
        )
        path = next(part.path for part in parts if part)
        raise CheckpointError(
            f"{printable(path)} stores {printable(name)} as {given}; expected for {METHOD}: _blocks U8 [experts, "
            f"outputs, inputs / {VALUES}, {VALUES // 2}] and _scales U8 [experts, outputs, inputs / {VALUES}]; "
            "download the file again"
        )
    experts, outputs, groups = leading
    return PackedWeight(name + _BLOCKS, name + _SCALES, (experts, groups * VALUES, outputs))
