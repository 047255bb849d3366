"""A checkpoint -> a Hugging Face folder in another dtype or in blocks: from GGUF, or from another folder."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from genx.checkpoint.locate import resolve_model
from genx.checkpoint.opening import Checkpoint, open_checkpoint
from genx.checkpoint.quantization import Quantization
from genx.checkpoint.quantizing import quantized_tensors
from genx.checkpoint.safetensors_header import read_header
from genx.checkpoint.safetensors_writer import TensorSource, write_json, write_safetensors
from genx.checkpoint.saving import FORMAT_NAMES, bytes_of
from genx.checkpoint.source import FolderSource, Source
from genx.checkpoint.weight_files import INDEX_FILE, WEIGHTS_FILE
from genx.checkpoint.weights import Weight
from genx.errors import CheckpointError
from genx.messages import printable

Progress = Callable[[int, int], None]

_SMALL_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE_FILE = "chat_template.jinja"
_NOTE_FILE = "conversion.json"
_LARGEST_SHARD = 2 << 30  # what an interruption can cost


@dataclass(frozen=True)
class _Shard:
    """One file to write."""

    name: str
    tensors: Mapping[str, TensorSource]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def is_written(self, folder: Path) -> bool:
        """Whether the file is there; it appears whole or not at all."""
        if not (folder / self.name).is_file():
            return False
        stored = {
            name: (tensor.dtype, tensor.shape) for name, tensor in read_header(folder / self.name).tensors.items()
        }
        return stored == {name: (tensor.dtype, tensor.shape) for name, tensor in self.tensors.items()}


def convert_model(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    *,
    quantize: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the checkpoint at `path` to `folder` as Hugging Face lays models out, and return the folder.

    The folder appears whole or not at all. What was written before an interruption, in files of at most 2 GiB beside
    it, is kept and used by the next conversion of the same source.

    Args:
        path: a folder, a GGUF file, or the name of one in the models folder; see `resolve_model`.
        folder: must not exist, or be empty.
        dtype: see `load_model`; None dequantises a folder in blocks to float32, which holds them exactly.
        quantize: int8 or int4 writes linear layers' weights in blocks, see `genx.checkpoint.quantization`, and leaves
            other floats as they are stored; without a dtype.
        progress: called with bytes written and bytes in all.

    Raises:
        CheckpointError: the source is not a whole model that genx knows, `folder` exists, or cannot be written.
        ConfigError, TokenizerError: a small file of the source is damaged.
        ArgumentError: the dtype is not one that there is.
        GenxError: a weight cannot be quantised.
    """
    source, folder = resolve_model(path), Path(folder)
    _refuse_existing(folder)
    checkpoint = open_checkpoint(source)
    made = checkpoint.source.quantization
    if quantize is not None and made is not None and made.format != quantize:
        raise CheckpointError(
            f"{printable(source)} has weights of {made.format}; allowed: {made.format}, or a dtype; "
            "convert the original again"
        )
    chosen = torch.float32 if dtype is None and quantize is None and made else checkpoint.choose_dtype(dtype)
    quantization = None
    if quantize is None:
        units, largest = _float_units(checkpoint, chosen), _LARGEST_SHARD
    else:
        quantized = quantized_tensors(checkpoint, quantize)
        units, largest, quantization = quantized.units, _LARGEST_SHARD // 4, quantized.quantization
    work = folder.with_name(f".{folder.name}.partial")
    try:
        _begin(work, checkpoint.source, quantize or str(chosen))
        _write_small_files(work, checkpoint, chosen, quantization)
        _write_weights(work, _shards(units, largest), progress or (lambda done, total: None))
        (work / _NOTE_FILE).unlink()
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    except OSError as error:
        raise CheckpointError(
            f"the model cannot be written to {printable(folder)}: {error.strerror or printable(error)}; "
            "check the space and the permissions, or choose another folder; what is written is used again"
        ) from error
    return folder


def _refuse_existing(folder: Path) -> None:
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise CheckpointError(f"{printable(folder)} cannot be looked into: {error.strerror}") from error
    if taken:
        raise CheckpointError(f"{printable(folder)} exists already; give another folder, or remove it")


def _begin(work: Path, source: Source, written_as: str) -> None:
    """Make the work folder, empty unless it holds the beginning of this very conversion."""
    files = [[str(file.resolve()), (status := file.stat()).st_size, status.st_mtime_ns] for file in source.weight_files]
    note = {"files": files, "as": written_as}
    try:
        is_same = json.loads((work / _NOTE_FILE).read_text(encoding="utf-8")) == note
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        write_json(work / _NOTE_FILE, note)


def _write_small_files(
    work: Path, checkpoint: Checkpoint, dtype: torch.dtype, quantization: Quantization | None
) -> None:
    source, model = checkpoint.source, checkpoint.model
    dropped = ("dtype", "quantization_config")  # of the source
    config: dict[str, Any] = {name: value for name, value in checkpoint.fields.items() if name not in dropped}
    config |= {
        "architectures": [model.architecture],
        "tie_word_embeddings": model.head_is_tied,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if quantization is not None:
        config["quantization_config"] = quantization.to_json()
        config["tie_word_embeddings"] = model.head_is_tied or source.has_copied_head
    write_json(work / "config.json", config)
    for name in _SMALL_FILES:
        if content := source.read_json(name):
            write_json(work / name, content)
    template = source.path / _TEMPLATE_FILE
    if isinstance(source, FolderSource) and template.is_file():
        shutil.copyfile(template, work / _TEMPLATE_FILE)


def _float_units(checkpoint: Checkpoint, dtype: torch.dtype) -> list[Mapping[str, TensorSource]]:
    """Each tensor by itself, in the order of their names."""
    return [
        {name: TensorSource(FORMAT_NAMES[dtype], tuple(weight.example.shape), partial(_pieces, weight, dtype))}
        for name, weight in sorted(checkpoint.weights.items())
        if checkpoint.names_of(name)
    ]


def _shards(units: Iterable[Mapping[str, TensorSource]], largest: int) -> list[_Shard]:
    """The tensors in files of bounded size, each unit in one."""
    groups: list[dict[str, TensorSource]] = [{}]
    size = 0
    for unit in units:
        nbytes = sum(tensor.nbytes for tensor in unit.values())
        if groups[-1] and size + nbytes > largest:
            groups.append({})
            size = 0
        groups[-1] |= unit
        size += nbytes
    if len(groups) == 1:
        return [_Shard(WEIGHTS_FILE, groups[0])]
    return [
        _Shard(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group) for number, group in enumerate(groups, 1)
    ]


def _pieces(weight: Weight, dtype: torch.dtype) -> Iterable[bytes]:
    return bytes_of(weight.read().to(dtype))


class _Count:
    """Bytes written, told as they grow."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        progress(0, total)

    def add(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    def pieces(self, tensor: TensorSource) -> Iterable[bytes | memoryview]:
        for piece in tensor.read():
            yield piece
            self.add(len(piece))


def _write_weights(work: Path, shards: list[_Shard], progress: Progress) -> None:
    total = sum(shard.nbytes for shard in shards)
    count = _Count(total, progress)
    for shard in shards:
        if shard.is_written(work):
            count.add(shard.nbytes)
            continue
        tensors = {
            name: TensorSource(tensor.dtype, tensor.shape, partial(count.pieces, tensor))
            for name, tensor in shard.tensors.items()
        }
        # transformers refuses a file that does not name its framework.
        write_safetensors(work / shard.name, tensors, {"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: shard.name for shard in shards for name in shard.tensors}
        write_json(work / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
