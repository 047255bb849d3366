"""Folders and files on disk <-> models: safetensors, shards, GGUF, strict loading, saving, and where models live.

Importing this package does not import torch; the first use of `load_model`, `save_model` or `convert_model` does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from genx.checkpoint.generation_defaults import GenerationDefaults, read_generation_defaults
from genx.checkpoint.locate import (
    EMBEDDED_NAME,
    ModelNotFoundError,
    embedded_model,
    installed_models,
    models_folder,
    resolve_model,
)
from genx.checkpoint.safetensors_header import SafetensorsHeader, StoredTensor, read_header
from genx.checkpoint.source import Source, TensorSummary, open_source, read_config_json
from genx.checkpoint.weight_files import TensorLocation, find_tensors

if TYPE_CHECKING:
    from genx.checkpoint.conversion import convert_model as convert_model
    from genx.checkpoint.loading import load_model as load_model
    from genx.checkpoint.saving import save_model as save_model

__all__ = [
    "EMBEDDED_NAME",
    "GenerationDefaults",
    "ModelNotFoundError",
    "SafetensorsHeader",
    "Source",
    "StoredTensor",
    "TensorLocation",
    "TensorSummary",
    "convert_model",
    "embedded_model",
    "find_tensors",
    "installed_models",
    "load_model",
    "models_folder",
    "open_source",
    "read_config_json",
    "read_generation_defaults",
    "read_header",
    "resolve_model",
    "save_model",
]


# What imports torch, by the module that it is in.
_LATE = {
    "convert_model": "genx.checkpoint.conversion",
    "load_model": "genx.checkpoint.loading",
    "save_model": "genx.checkpoint.saving",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
