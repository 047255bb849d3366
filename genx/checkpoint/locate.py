"""Where models live: a path as it is given, or a name in the models folder."""

import os
import sys
from pathlib import Path, PureWindowsPath

from genx.errors import CheckpointError
from genx.messages import name_some, printable

MODELS_VARIABLE = "GENX_MODELS"
_HOW_TO_GET_ONE = "run scripts/fetch_smollm2 to get smollm2-135m, or give the path of a Hugging Face folder"


def models_folder() -> Path:
    """The folder of named models: $GENX_MODELS, else genx/models in the user's cache folder of this platform."""
    chosen = os.environ.get(MODELS_VARIABLE)
    if chosen:
        return _expand_home(chosen)
    return _user_cache_folder() / "genx" / "models"


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The folder that `name_or_path` means: that path where it exists, else that name in the models folder.

    Raises:
        CheckpointError: neither exists, or it is a file; the message names both places looked at, the models that
            there are, and how to get one.
    """
    given = os.fspath(name_or_path)
    if not given or "\0" in given:
        raise CheckpointError(f"the model is {given!r}; allowed: a folder, or the name of one in {models_folder()}")
    path = _expand_home(given)
    if _is_folder(path):
        return path
    if _is_file(path):
        raise CheckpointError(
            f"{printable(path)} is a file; give the folder with config.json and model.safetensors in it"
        )
    root = models_folder()
    looked_at = [printable(path.absolute())]
    if _is_name(given):
        if _is_folder(root / given):
            return root / given
        looked_at.append(printable(root / given))
    raise CheckpointError(
        f"there is no model {printable(given)}: {' and '.join(looked_at)} {_do_not_exist(looked_at)}; "
        f"{_models_there(root)}; {_HOW_TO_GET_ONE}"
    )


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
    try:
        names = sorted(
            folder.name
            for folder in root.iterdir()
            if not folder.name.startswith(".") and (folder / "config.json").is_file()
        )
    except OSError:
        names = []
    return f"models in {printable(root)}: {name_some(names) if names else 'none yet'}"


def _user_cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    return Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
