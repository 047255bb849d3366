"""Which safetensors files hold a folder's weights, and where each tensor lies. No torch."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genx.checkpoint.folder import is_there, path_in, read_json_in
from genx.checkpoint.safetensors_header import SafetensorsHeader, StoredTensor, read_header
from genx.errors import CheckpointError, GenxWarning
from genx.messages import name_some, printable

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class TensorLocation:
    """Where a tensor lies: the file, and the name it has there (another one for an alias)."""

    path: Path
    name: str
    tensor: StoredTensor


def find_tensors(folder: Path) -> dict[str, TensorLocation]:
    """Every tensor of the checkpoint in `folder`, by its name, with aliases that the files' metadata give.

    model.safetensors holds them all; without it model.safetensors.index.json decides, also about how its files are
    called, and a tensor counts only in the file that the index gives it. Without both, a single *.safetensors file
    is taken, whatever its name.

    Raises:
        CheckpointError: there are no weights that genx reads, files or tensors are missing, a file is damaged, or
            lies outside the folder.
    """
    whole, index = path_in(folder, WEIGHTS_FILE), path_in(folder, INDEX_FILE)
    if is_there(index):
        files = read_index(folder)
        if not is_there(whole) or WEIGHTS_FILE in files.values():
            return _find_indexed(folder, files)
        # Saving a model over an older, sharded one leaves such an index behind; other software reads the whole too.
        warnings.warn(
            f"{printable(folder)} has {WEIGHTS_FILE} and an {INDEX_FILE} that does not name it; the index is ignored",
            GenxWarning,
            stacklevel=2,
        )
    if is_there(whole):
        return _locate(read_header(whole))
    return _locate(read_header(_only_file(folder)))


def _locate(header: SafetensorsHeader) -> dict[str, TensorLocation]:
    """The tensors of one file and their aliases: names that a saver dropped as duplicates of a stored one."""
    found = {name: TensorLocation(header.path, name, tensor) for name, tensor in header.tensors.items()}
    for alias, name in header.metadata.items():
        if alias not in header.tensors and name in header.tensors:
            found[alias] = TensorLocation(header.path, name, header.tensors[name])
    return found


def read_index(folder: Path) -> dict[str, str]:
    """Which file holds which tensor, as model.safetensors.index.json of `folder` says.

    Raises:
        CheckpointError: it does not say so.
    """
    files = read_json_in(folder, INDEX_FILE).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise CheckpointError(
            f"{printable(folder / INDEX_FILE)} has no weight_map from tensor names to file names; download it again"
        )
    return files


def _find_indexed(folder: Path, files: Mapping[str, str]) -> dict[str, TensorLocation]:
    shards = {file: path_in(folder, file) for file in sorted(set(files.values()))}
    absent = [file for file, path in shards.items() if not is_there(path)]
    if absent:
        raise CheckpointError(
            f"{printable(folder)} lacks {len(absent)} of the {len(shards)} files that {INDEX_FILE} names: "
            f"{name_some(absent)}; download them"
        )
    located = {file: _locate(read_header(path)) for file, path in shards.items()}
    wanting = [f"{name} ({file})" for name, file in files.items() if name not in located[file]]
    if wanting:
        raise CheckpointError(
            f"{len(wanting)} tensors that {printable(folder / INDEX_FILE)} names are not in the files it gives: "
            f"{name_some(wanting)}; download the index and the files again"
        )
    found = {name: located[file][name] for name, file in files.items()}
    for file, names in located.items():
        for name, location in names.items():
            if name != location.name and files.get(location.name) == file:
                found.setdefault(name, location)
    return found


def _only_file(folder: Path) -> Path:
    """The one safetensors file of a folder that has neither of the usual names."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{printable(folder)} cannot be read: {error.strerror or error}") from error
    candidates = [name for name in names if name.endswith(".safetensors")]
    if len(candidates) == 1:
        return path_in(folder, candidates[0])
    if candidates:
        raise CheckpointError(
            f"{printable(folder)} has {len(candidates)} safetensors files and no {INDEX_FILE}: "
            f"{name_some(candidates)}; download the index, or leave one file"
        )
    raise CheckpointError(_why_no_weights(folder, names))


def _why_no_weights(folder: Path, names: Sequence[str]) -> str:
    place = printable(folder)
    if gguf := [name for name in names if name.endswith(".gguf")]:
        return f"{place} has weights as GGUF only ({name_some(gguf)}); give the file itself instead of its folder"
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        return (
            f"{place} has weights as pickle only ({name_some(pickles)}), which genx does not read, since it can run "
            f"code; get {WEIGHTS_FILE}, or load the folder with transformers and save_pretrained it"
        )
    return f"{place} has no weights; expected {WEIGHTS_FILE}, or {INDEX_FILE} and the files it names"
