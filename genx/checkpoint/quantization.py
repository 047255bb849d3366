"""Folders whose linear layers are in blocks of 8 or 4 bits, as `genx convert --quantize` writes them. No torch.

A matrix NAME [O, I] is two tensors, which genx maps into memory and computes with as they lie; P is I filled up with
zero weights to a multiple of 64. Each row's columns are in blocks of 32 that share scales.

    int8   NAME_values I8 [O, P]       NAME_scales F16 [O, P / 32]       weight = scale * value
    int4   NAME_values U8 [O, P / 2]   NAME_scales F16 [O, P / 32, 2]    weight = scale * value + offset

In int4 a row is, for each 64 columns, 8 little-endian words of 32 bits: the nibble k of word i (k = 0 the lowest) is
the value, 0 to 15, of column 8 k + i. NAME is the model's own, the rows are outputs, and all other tensors are floats.
A head that is tied to a float embedding is stored for itself. An embedding may be in blocks, and is the tied head then.

config.json says so in `quantization_config`: `quant_method` genx; `bits` 8 or 4, of all but a head, which has 8;
`group_size` 32; `modules_to_not_convert`, the modules whose matrices are floats; `columns`, I of each matrix of which
it is no multiple of 64; and `input_first`, the matrices that are [I, O] as floats, for which rows are outputs too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from genx.checkpoint.weight_files import TensorLocation
from genx.errors import CheckpointError
from genx.messages import printable
from genx.sampling_args import is_whole_number

METHOD = "genx"
"""Its `quant_method` in config.json."""

HEAD = "lm_head.weight"
"""The head's own name in every model; stored beside a float embedding that it is tied to, it is that in fewer bits."""

VALUES, SCALES = "_values", "_scales"
"""What follows the name of a weight in those of its parts."""

WEIGHT_BITS: Mapping[str, float] = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8.5, "int4": 5}
"""Bits that a weight takes in memory; blocks of 32 have a scale of 16 bits, and those of 4 bits an offset too."""

_BLOCK, _ROW_MULTIPLE = 32, 64
_FORMATS = {"I8": "int8", "U8": "int4"}
_BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True)
class Quantization:
    """What config.json says.

    Attributes:
        format: int8 or int4.
        columns: I of the matrices of which it is no multiple of 64.
        input_first: matrices that are [I, O] as floats.
        left_out: modules whose matrices are floats.
    """

    format: str
    columns: Mapping[str, int] = field(default_factory=dict)
    input_first: Collection[str] = ()
    left_out: Collection[str] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that `read_quantization` reads."""
        return {
            "quant_method": METHOD,
            "bits": _BITS[self.format],
            "group_size": _BLOCK,
            "modules_to_not_convert": sorted(self.left_out),
            "columns": dict(sorted(self.columns.items())),
            "input_first": sorted(self.input_first),
        }


def read_quantization(fields: Mapping[str, Any], place: object) -> Quantization | None:
    """What the fields of a config.json say of genx's own quantisation; None if nothing.

    Args:
        fields: all of them.
        place: where they stand, for the message.

    Raises:
        CheckpointError: it is none that genx writes.
    """
    told = fields.get("quantization_config")
    if not isinstance(told, Mapping) or told.get("quant_method") != METHOD:
        return None
    formats = {bits: name for name, bits in _BITS.items()}
    bits, group, columns = told.get("bits"), told.get("group_size"), told.get("columns", {})
    if not is_whole_number(bits) or bits not in formats or group != _BLOCK:
        raise CheckpointError(
            f"{printable(place)} describes weights of {printable(bits)} bits in groups of {printable(group)}; "
            f"allowed: 8 or 4 bits in groups of {_BLOCK}; convert the model again"
        )
    input_first = told.get("input_first", [])
    are_counts = isinstance(columns, Mapping) and all(is_whole_number(count) for count in columns.values())
    if not are_counts or not isinstance(input_first, list) or not all(isinstance(name, str) for name in input_first):
        raise CheckpointError(
            f"{printable(place)}: columns of quantization_config is not an object of whole numbers, or input_first no "
            "list of names; convert the model again"
        )
    return Quantization(formats[bits], columns, frozenset(input_first))


@dataclass(frozen=True)
class StoredBlocks:
    """Where the two parts of one matrix lie, by their stored names, and what it is.

    Attributes:
        values: name of a part.
        scales: name of the other.
        format: int8 or int4.
        rows: O.
        columns: I.
        input_first: whether it is [I, O] as floats.
    """

    values: str
    scales: str
    format: str
    rows: int
    columns: int
    input_first: bool

    @property
    def shape(self) -> tuple[int, int]:
        """That it has as floats."""
        return (self.columns, self.rows) if self.input_first else (self.rows, self.columns)


def find_blocks(stored: Mapping[str, TensorLocation], quantization: Quantization) -> dict[str, StoredBlocks]:
    """The matrices in blocks among `stored`, by their own names.

    Raises:
        CheckpointError: one lacks a part, its parts do not belong together, or it is stored as floats too.
    """
    names = {name.removesuffix(part) for name in stored for part in (VALUES, SCALES) if name.endswith(f".weight{part}")}
    return {name: _blocks(name, stored, quantization) for name in sorted(names)}


def _blocks(name: str, stored: Mapping[str, TensorLocation], quantization: Quantization) -> StoredBlocks:
    values, scales = stored.get(name + VALUES), stored.get(name + SCALES)
    if name in stored:
        raise CheckpointError(
            f"{printable(stored[name].path)} stores {printable(name)} in blocks and as floats; convert the model again"
        )
    if values is None or scales is None:
        path = next(part.path for part in (values, scales) if part is not None)
        raise CheckpointError(
            f"{printable(path)} stores one part of {printable(name)} without the other; expected both "
            f"{VALUES} and {SCALES}; convert the model again"
        )
    kept = _FORMATS.get(values.tensor.dtype)
    shape = values.tensor.shape
    padded = (2 if kept == "int4" else 1) * (shape[1] if len(shape) == 2 else 0)
    columns = quantization.columns.get(name, padded)
    groups = (*shape[:1], padded // _BLOCK, *((2,) if kept == "int4" else ()))
    fits = kept is not None and padded and padded % _ROW_MULTIPLE == 0 and padded - _ROW_MULTIPLE < columns <= padded
    if not fits or (scales.tensor.dtype, scales.tensor.shape) != ("F16", groups):
        raise CheckpointError(
            f"{printable(values.path)} stores {printable(name)} as {VALUES} {values.tensor.dtype} {list(shape)} and "
            f"{SCALES} {scales.tensor.dtype} {list(scales.tensor.shape)}, of {columns:,} columns; expected I8 [rows, "
            f"P] and F16 [rows, P / {_BLOCK}], or U8 [rows, P / 2] and F16 [rows, P / {_BLOCK}, 2], with P the columns "
            f"filled up to a multiple of {_ROW_MULTIPLE}; convert the model again"
        )
    assert kept is not None
    return StoredBlocks(name + VALUES, name + SCALES, kept, shape[0], columns, name in quantization.input_first)
