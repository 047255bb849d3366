"""Models of the Hugging Face hub: ids, and the files of a model that genx needs, through huggingface_hub's cache.

Importing this imports neither torch nor huggingface_hub.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genx.checkpoint.weight_files import INDEX_FILE, WEIGHTS_FILE, read_index
from genx.errors import CheckpointError
from genx.messages import name_some, printable

_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w./-]*))?", re.ASCII)
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", INDEX_FILE,
)  # fmt: skip


@dataclass(frozen=True)
class HubId:
    """`org/name`, and the branch, tag or commit after an @."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def parse_hub_id(given: str) -> HubId | None:
    """The id that `given` is, or None."""
    match = _ID.fullmatch(given)
    return None if match is None or ".." in given else HubId(match[1], match[2])


def download_model(model: HubId, *, bars: bool = False) -> Path:
    """The folder, or the GGUF file, in huggingface_hub's cache; what is missing there is downloaded, and resumed.

    Only what genx reads is asked for: the small files, and the weights as safetensors, or else a single GGUF file.
    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN mean what they mean to huggingface_hub.

    Args:
        bars: whether its progress bars are shown on stderr.

    Raises:
        CheckpointError: the hub does not know the model, refuses it or cannot be reached, and the cache has not got
            all of it; or it has no weights that genx reads.
    """
    _prepare(bars=bars)
    try:
        folder = _snapshot(model, list(_SMALL_FILES))
        wanted = [*set(read_index(folder).values())] if (folder / INDEX_FILE).is_file() else [WEIGHTS_FILE]
        folder = _snapshot(model, wanted)
        if all((folder / name).is_file() for name in wanted):
            return folder
        name = _only_weights(model, folder)
        folder = _snapshot(model, [name])
        return folder if name.endswith(".safetensors") else folder / name
    except CheckpointError:
        raise
    except Exception as error:  # its own errors, those of its two ways to download, and the network's
        raise CheckpointError(_explain(model, error)) from error


def _prepare(*, bars: bool) -> None:
    from huggingface_hub import snapshot_download  # sets the level of its logger when it is first imported
    from huggingface_hub.utils.tqdm import disable_progress_bars

    del snapshot_download
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what matters of its warnings becomes an error here
    if not bars:
        disable_progress_bars()


def _snapshot(model: HubId, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    # The names are patterns; a bracket makes a sign in them stand for itself.
    patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in names]
    return Path(snapshot_download(model.name, revision=model.revision, allow_patterns=patterns))


def _only_weights(model: HubId, folder: Path) -> str:
    """The one file of weights of a repository that has none of the usual name."""
    found = folder.iterdir() if folder.is_dir() else ()
    cached = [path.name for path in found if path.suffix in (".safetensors", ".gguf")]
    names = cached if len(cached) == 1 else _names_at_the_hub(model)
    safetensors = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    ggufs = [name for name in names if name.endswith(".gguf") and "/" not in name]
    candidates = safetensors or ggufs
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CheckpointError(
            f"{model} has {len(candidates)} files that could be the weights: {name_some(candidates)}; "
            f"download one with: hf download {model.name} FILE --local-dir FOLDER; and give its path"
        )
    raise CheckpointError(f"{model} has no weights that genx reads; expected {WEIGHTS_FILE}, shards, or one GGUF file")


def _names_at_the_hub(model: HubId) -> list[str]:
    from huggingface_hub import HfApi

    return list(HfApi().list_repo_files(model.name, revision=model.revision))


def _explain(model: HubId, error: Exception) -> str:
    from huggingface_hub import constants, errors

    status: Any = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return f"the hub gives {model} only to who accepted its terms; accept them on its page and run: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub's {model.name} has no revision {model.revision or 'main'}; check it on the model's page"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        return (
            f"there is no path {model}, and the hub does not give a model of that name; "
            "check it, or, if it is private, run: hf auth login"
        )
    if constants.HF_HUB_OFFLINE:
        return f"{model} is not whole in {printable(constants.HF_HUB_CACHE)}, and HF_HUB_OFFLINE forbids to ask the hub"
    reason = printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
    return (
        f"{model} is not whole in {printable(constants.HF_HUB_CACHE)}, and the hub cannot be asked: {reason}; "
        "try again, or give the path of a folder"
    )
