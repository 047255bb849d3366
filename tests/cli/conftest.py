"""Small checkpoints that say what a test wants."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1

EOS = 256
"""The id of `</s>` in the folders of `scripted`."""

Scripted = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_model_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENX_MODEL", raising=False)


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    """Write a model that continues any prompt of one byte by the given text or ids, then ends; give its folder."""

    def write(
        script: str | Sequence[int], *, added: Sequence[Any] = (), pieces: Sequence[str] = (), **model: Any
    ) -> str:
        ids = [*script.encode(), EOS + len(pieces)] if isinstance(script, str) else list(script)
        folder = tmp_path / "model"
        write_t1(folder, ["</s>", *added], pieces=pieces, eos_token="</s>")
        write_scripted(folder, ids, context=max(64, len(ids) + 8), **model)
        return str(folder)

    return write
