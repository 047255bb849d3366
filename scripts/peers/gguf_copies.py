"""The same weights in several GGUF files, for engines that read no other format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = Any  # numpy's, whose own annotations say no more than this

_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 7}


def write_copy(
    source: Path, target: Path, format_name: str, change: Callable[[str, Array], Array] | None = None
) -> None:
    """Write `source` again with its matrices in another format; `target` appears whole or not at all.

    Vectors stay float32. In a Q4_1 file the token embedding, which is the head too, has 8 bits: llama.cpp's own
    quantiser spares it as well (with Q6_K, which the package gguf cannot write).

    Args:
        source: a GGUF file of any format that the package gguf dequantises.
        target: the file to write.
        format_name: F32, F16, Q8_0 or Q4_1.
        change: from the name and the float32 values of a matrix to those that are written.
    """
    reader = gguf.GGUFReader(source)
    partial = target.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = _FILE_TYPES[format_name] if field.name == "general.file_type" else field.contents()
        kind = field.types[0]
        writer.add_key_value(
            field.name, value, kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        values = values if change is None else change(tensor.name, values)
        spared = format_name == "Q4_1" and tensor.name == "token_embd.weight"
        stored = gguf.GGMLQuantizationType["Q8_0" if spared else format_name]
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(target)


def off_the_grid(seed: int, block: int = 32) -> Callable[[str, Array], Array]:
    """Noise for weights that were dequantised: even, up to half a step of 4 bits to either side, in each block.

    Weights that have been through 4 bits lie on few values, which a 4-bit format can hit exactly and any other cannot.
    """
    random = np.random.default_rng(seed)

    def change(name: str, values: Array) -> Array:
        del name
        blocks = values.reshape(-1, block)
        step = (blocks.max(1, keepdims=True) - blocks.min(1, keepdims=True)) / 15
        noise = random.uniform(-0.5, 0.5, blocks.shape).astype(np.float32)
        return (blocks + step * noise).reshape(values.shape)

    return change
