"""The published models that genx knows by name: one `config.json` each, with the source of its numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import genx
from genx.config import read_json
from genx.errors import UsageError

SOURCE_KEY = "_source"


def presets_folder() -> Path:
    """Where presets lie: inside an installed package, at the top of a source tree."""
    package = Path(genx.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    """All names, sorted."""
    return sorted(path.stem for path in presets_folder().glob("*.json"))


def find_preset(name: str) -> Path | None:
    """The file of a preset; upper and lower case are the same."""
    path = presets_folder() / f"{name.lower()}.json"
    return path if name.lower() in preset_names() else None


def read_preset(path: Path) -> Mapping[str, Any]:
    """A preset's configuration.

    Raises:
        UsageError: the file holds no object.
    """
    config = read_json(path, "the preset")
    if not isinstance(config, dict):
        raise UsageError(f"the preset {path} holds no JSON object; reinstall genx")
    return config


def similar_presets(name: str) -> list[str]:
    """Names that `name` may be a slip for."""
    import difflib  # only a mistake needs it

    return difflib.get_close_matches(name.lower(), preset_names(), n=3, cutoff=0.5)
