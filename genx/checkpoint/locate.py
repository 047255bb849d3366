"""Where models live: a path as it is given, a name in the models folder, or the one that genx carries.

A model is a folder or a GGUF file.
"""

import os
import sys
from pathlib import Path, PureWindowsPath

from genx.errors import CheckpointError
from genx.gguf.header import is_gguf
from genx.gguf.parts import gguf_parts
from genx.messages import name_some, printable

MODELS_VARIABLE = "GENX_MODELS"
_SUFFIX = ".gguf"
EMBEDDED_NAME = "storyteller"
_HOW_TO_GET_ONE = (
    f"{EMBEDDED_NAME} comes with genx; run scripts/fetch_smollm2 to get smollm2-135m, or give a Hugging Face folder or "
    "a GGUF file"
)


class ModelNotFoundError(CheckpointError):
    """There is no model of that path or name."""


def models_folder() -> Path:
    """The folder of named models: $GENX_MODELS, else genx/models in the user's cache folder of this platform."""
    chosen = os.environ.get(MODELS_VARIABLE)
    if chosen:
        return _expand_home(chosen)
    return _user_cache_folder() / "genx" / "models"


def embedded_model() -> Path:
    """The folder of the model that genx carries."""
    return Path(__file__).resolve().parents[1] / EMBEDDED_NAME


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The model that `name_or_path` means: that path where it exists, else that name in the models folder or in genx.

    A folder without config.json in which there is one GGUF file means that file; a name may leave `.gguf` out.

    Raises:
        ModelNotFoundError: neither exists; the message names both places looked at, the models that there are, and
            how to get one.
        CheckpointError: it is a file of another kind.
    """
    given = os.fspath(name_or_path)
    if not given or "\0" in given:
        raise CheckpointError(f"the model is {given!r}; allowed: a path, or the name of one in {models_folder()}")
    path = _expand_home(given)
    found = _model_at(path)
    if found is not None:
        return found
    if _is_file(path):
        raise CheckpointError(
            f"{printable(path)} is no GGUF file; give one, or the folder with config.json and model.safetensors in it"
        )
    root = models_folder()
    looked_at = [printable(path.absolute())]
    if _is_name(given):
        found = _model_at(root / given) or _model_at(root / f"{given}{_SUFFIX}")
        if found is not None:
            return found
        if given == EMBEDDED_NAME:
            return embedded_model()
        looked_at.append(printable(root / given))
    raise ModelNotFoundError(
        f"there is no model {printable(given)}: {' and '.join(looked_at)} {_do_not_exist(looked_at)}; "
        f"{_models_there(root)}; {_HOW_TO_GET_ONE}"
    )


def installed_models() -> dict[str, Path]:
    """The models in the models folder, by name."""
    return _models_in(models_folder())


def _model_at(path: Path) -> Path | None:
    """A folder (with one GGUF file and no config.json, that file), or a GGUF file; None if there is neither."""
    if _is_file(path):
        return path if is_gguf(path) else None
    if not _is_folder(path):
        return None
    try:
        files = sorted(path.glob(f"*{_SUFFIX}"))
    except OSError:
        return path
    first_parts = [file for file in files if gguf_parts(file)[0] == file]
    return path if _is_file(path / "config.json") or len(first_parts) != 1 else first_parts[0]


def _expand_home(given: str) -> Path:
    try:
        return Path(given).expanduser()
    except RuntimeError:  # ~name of a user that this machine does not know
        return Path(given)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than the file system allows, or a place that may not be looked into
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _do_not_exist(places: list[str]) -> str:
    return "do not exist" if len(places) > 1 else "does not exist"


def _is_name(given: str) -> bool:
    """Whether `given` stays inside the folder it is looked up in."""
    parts = PureWindowsPath(given)  # splits at both kinds of slash and knows drives
    return not parts.anchor and ".." not in parts.parts


def _models_there(root: Path) -> str:
    names = _models_in(root)
    return f"models in {printable(root)}: {name_some(names) if names else 'none yet'}"


def _models_in(root: Path) -> dict[str, Path]:
    try:
        entries = sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return {}
    found = {entry.name.removesuffix(_SUFFIX): _model_at(entry) for entry in entries}
    return {name: path for name, path in found.items() if path is not None and _is_whole(path)}


def _is_whole(path: Path) -> bool:
    """Whether it is more than a folder of something, and no later file of a model that has several."""
    return _is_file(path / "config.json") if _is_folder(path) else gguf_parts(path)[0] == path


def _user_cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    return Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
