"""What makes a row the same row in another run: its id, and digests of its prompt and of all that shapes its text.

No torch.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genx.checkpoint import open_source
from genx.engine.settings import GenerationSettings

# JSON readers that keep numbers as doubles, such as jq, are exact up to here.
_SEED_BITS = 53
_SAMPLED_BLOCKS = 64
_BLOCK = 1 << 16  # bytes
_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class RowIdentity:
    """A row's own id, or else its place in its input (None where there is one input only); and which of its samples."""

    id: str | None
    source: str | None = None
    number: int | None = None
    sample: int = 1

    @classmethod
    def of(cls, row_id: str | int | None, source: str | None, number: int, sample: int = 1) -> "RowIdentity":
        """The identity of a row: by its id if it has one, so that it may move within the input."""
        return cls(None, source, number, sample) if row_id is None else cls(str(row_id), sample=sample)


def row_seed(seed: int, identity: RowIdentity) -> int:
    """The seed of a row's own generator: the first 53 bits of SHA-256 of the run's seed, the row's identity and sample.

    It depends on nothing else: not on the rows around, their number or order, nor on the batch size.
    """
    digest = _sha256([seed, identity.id, identity.source, identity.number, identity.sample])
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def prompt_digest(*parts: Any) -> str:
    """A digest of what the prompt is made of; any JSON values."""
    return _digits(_sha256(parts))


def settings_digest(settings: GenerationSettings, run: Mapping[str, Any]) -> str:
    """A digest of all settings that shape a row's text, its own seed included, and of what shapes all of a run."""
    shaping = {
        "max_new_tokens": settings.max_new_tokens,
        "sampling": [settings.temperature, settings.top_k, settings.top_p] if settings.do_sample else None,
        "seed": settings.seed,
        "eos_token_ids": settings.eos_token_ids,
        "stop": settings.stop,
    }
    return _digits(_sha256([shaping, run]))


def model_digest(model: Path) -> str:
    """A digest of a checkpoint's files: small ones as a whole; of large ones the size and 64 evenly spread blocks.

    Other weights of the same shapes give another digest, unless they agree in every block.
    """
    digest = hashlib.sha256()
    for path in _files_in(model) if model.is_dir() else open_source(model).weight_files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            for start in _block_starts(size):
                stream.seek(start)
                digest.update(stream.read(_BLOCK))
    return _digits(digest.digest())


def _files_in(folder: Path) -> Iterable[Path]:
    kinds = (".json", ".jinja", ".safetensors", ".gguf")
    return (path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.suffix in kinds)


def _block_starts(size: int) -> Iterable[int]:
    blocks = -(-size // _BLOCK)
    if blocks <= _SAMPLED_BLOCKS:
        return (block * _BLOCK for block in range(blocks))
    return ((size - _BLOCK) * block // (_SAMPLED_BLOCKS - 1) for block in range(_SAMPLED_BLOCKS))


def _sha256(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).digest()


def _digits(digest: bytes) -> str:
    return digest.hex()[:_DIGEST_DIGITS]
