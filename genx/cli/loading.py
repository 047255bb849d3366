"""What commands find and load: a model, its configuration, tokenizer and weights. Heavy imports are late."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from genx.checkpoint import ModelNotFoundError, open_source, read_config_json, resolve_model
from genx.checkpoint.hub import download_model, parse_hub_id
from genx.cli.requests import ModelRequest
from genx.cli.status import Status
from genx.cli.terminal import Terminal
from genx.errors import GenxError

if TYPE_CHECKING:
    from genx.config import ModelConfig
    from genx.engine.loading import LoadedModel
    from genx.engine.team import Team
    from genx.tokenization import Tokenizer


def find_model(given: str, terminal: Terminal) -> Path:
    """The folder or GGUF file that -m means: a path, a name in the models folder, or else an id of the hub.

    That the hub is asked is said on stderr before it is; its bars are shown on a terminal only.

    Raises:
        CheckpointError: there is no such model here, nor at the hub where the name can be one of its ids.
    """
    try:
        return resolve_model(given)
    except ModelNotFoundError:
        hub_id = parse_hub_id(given)
        if hub_id is None:
            raise
    terminal.say(f"genx: there is no path {given}; asking the Hugging Face hub for it")
    return download_model(hub_id, bars=terminal.stderr_is_terminal)


def name_of(model: Path) -> str:
    """What a person calls the model at this path: its file or folder, or its id in the hub's cache."""
    for folder in model.parents:
        if folder.name.startswith("models--") and model.is_relative_to(folder / "snapshots"):
            return folder.name.removeprefix("models--").replace("--", "/")
    return model.name


def load_tokenizer(folder: Path, *, required: bool) -> "Tokenizer | None":
    """The model's tokenizer; None where it is not `required` and there is none.

    Raises:
        TokenizerError: it is required and missing, or damaged.
    """
    if not required and not open_source(folder).has_tokenizer:
        return None
    from genx import tokenization

    return tokenization.load_tokenizer(folder)


def read_config(folder: Path) -> "ModelConfig":
    """The configuration of a checkpoint as its architecture reads it; no weight is looked at.

    Raises:
        CheckpointError: there is no config.json, or its architecture is not known.
        ConfigError: (a ValueError) a field is missing or impossible.
    """
    from genx.models.registry import model_class

    source = read_config_json(folder)
    return model_class(str(source.get("model_type", "absent"))).read_config(source)


def team_of(wanted: ModelRequest, terminal: Terminal) -> "AbstractContextManager[Team | None]":
    """The processes that are to compute the model together, for a `with` block; None where one does."""
    if wanted.tensor_parallel == 1:
        return nullcontext()
    from genx.engine.team import Team

    def end(error: GenxError) -> None:
        terminal.say(f"genx: error: {error}")
        os._exit(error.exit_code)  # the main thread waits for what will not come

    return Team(wanted.tensor_parallel, end)


def import_torch() -> None:
    """Import what takes the longest, and everything on top of it that a run needs."""
    import genx.engine.loading  # noqa: F401


def load_model(folder: Path, wanted: ModelRequest, status: Status, team: "Team | None" = None) -> "LoadedModel":
    """Load the model, and show on `status` how far it is.

    Args:
        folder: the model's folder, or its file.
        wanted: how it is to run.
        status: where to show.
        team: see `team_of`.

    Raises:
        ArgumentError: it cannot be computed here as it is asked for.
        CheckpointError: the folder does not hold a model that genx knows, whole.
    """
    import torch

    from genx.engine.loading import load_to_run

    def progress(done: int, total: int) -> None:
        status.show(f"loading {name_of(folder)}", done, total)

    if team is not None:
        return team.load(folder, wanted.arithmetic(), wanted.threads, progress)
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    return load_to_run(folder, wanted.arithmetic(), progress=progress)
