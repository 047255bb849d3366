"""Files of a checkpoint folder, none of them outside it."""

from pathlib import Path, PureWindowsPath
from typing import Any

from genx.config import read_json
from genx.errors import CheckpointError
from genx.messages import printable


def path_in(folder: Path, name: str) -> Path:
    """The path of the file `name` of `folder`, which need not exist.

    The name must be relative and without `..`, and links must not lead out of the folder. One exception: in the
    Hugging Face hub's cache a snapshot is a folder of links, so from `models--*/snapshots/<revision>` they may lead
    into `models--*/blobs` of the same repository.

    Raises:
        CheckpointError: the name or a link leads outside.
    """
    parts = PureWindowsPath(name)  # splits at both kinds of slash and knows drives, wherever the file was written
    if not parts.parts or parts.anchor or ".." in parts.parts or "\0" in name:
        raise CheckpointError(
            f"{printable(folder)} names a file {printable(name)!r}; allowed: relative names without '..', "
            "of files inside the folder"
        )
    path = folder / name
    try:
        target = path.resolve()
        root = folder.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise CheckpointError(f"{printable(path)} cannot be followed: {printable(error)}") from error
    blobs = _hub_blobs(root)
    if not target.is_relative_to(root) and not (blobs and target.is_relative_to(blobs)):
        raise CheckpointError(
            f"{printable(path)} is a link to {printable(target)}, outside its folder; "
            "copy the file there, or give the folder that it lies in"
        )
    return path


def is_there(path: Path) -> bool:
    """Whether there is something at `path`, links followed.

    Raises:
        CheckpointError: the folder may not be looked into.
    """
    try:
        return path.exists()
    except OSError as error:
        raise CheckpointError(f"{printable(path)} cannot be looked at: {error.strerror or error}") from error


def read_json_in(folder: Path, name: str, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in the file `name` of `folder`; empty where there is no such file and none is required.

    Raises:
        CheckpointError: it is required and missing, leads outside the folder, is no file, or holds something else.
        ConfigError: it is not JSON, or too large.
    """
    path = path_in(folder, name)
    if not is_there(path):
        if not required:
            return {}
        raise CheckpointError(f"{printable(folder)} has no {name}; expected a Hugging Face model folder")
    if not path.is_file():  # a named pipe, for one, would be waited for
        raise CheckpointError(f"{printable(path)} is not a regular file; expected a JSON object")
    value = read_json(path, name)
    if not isinstance(value, dict):
        raise CheckpointError(f"{printable(path)} holds a {type(value).__name__}, expected a JSON object")
    return value


def _hub_blobs(root: Path) -> Path | None:
    for repository in root.parents:
        if repository.name.startswith("models--") and root.is_relative_to(repository / "snapshots"):
            return repository / "blobs"
    return None
