"""Folders on disk <-> models: safetensors, shards, strict loading, saving, and where models live.

Importing this package does not import torch; `load_model` and `save_model` do when they are first used.
"""

from genx.checkpoint.locate import models_folder, resolve_model
from genx.checkpoint.safetensors_header import SafetensorsHeader, StoredTensor, read_header

__all__ = [
    "SafetensorsHeader",
    "StoredTensor",
    "models_folder",
    "read_header",
    "resolve_model",
]
