"""What every command that generates loads: configuration, tokenizer and model. Heavy imports are late."""

from pathlib import Path
from typing import TYPE_CHECKING

from genx.checkpoint import read_config_json
from genx.cli.requests import ModelRequest
from genx.cli.status import Status
from genx.engine.device import choose_device, choose_dtype

if TYPE_CHECKING:
    from genx.config import ModelConfig
    from genx.core.base_model import BaseModel
    from genx.tokenization import Tokenizer


def load_tokenizer(folder: Path, *, required: bool) -> "Tokenizer | None":
    """The folder's tokenizer; None where it is not `required` and there is none.

    Raises:
        TokenizerError: it is required and missing, or damaged.
    """
    if not required and not (folder / "tokenizer.json").is_file():
        return None
    from genx import tokenization

    return tokenization.load_tokenizer(folder)


def read_config(folder: Path) -> "ModelConfig":
    """The configuration of a checkpoint folder as its architecture reads it; no weight is looked at.

    Raises:
        CheckpointError: there is no config.json, or its architecture is not known.
        ConfigError: (a ValueError) a field is missing or impossible.
    """
    from genx.models.registry import model_class

    source = read_config_json(folder)
    return model_class(str(source.get("model_type", "absent"))).read_config(source)


def load_model(folder: Path, wanted: ModelRequest, status: Status) -> "BaseModel":
    """Load the model, and show on `status` how far it is.

    Raises:
        CheckpointError: the folder does not hold a model that genx knows, whole.
    """
    import torch

    from genx import checkpoint

    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    device = choose_device(wanted.device)
    return checkpoint.load_model(
        folder,
        dtype=choose_dtype(wanted.dtype, device),
        device=device,
        progress=lambda done, total: status.show(f"loading {folder.name}", done, total),
    )
