"""Weights that the system is asked to read early."""

import os
import sys
from pathlib import Path

import pytest

from genx.checkpoint.read_ahead import read_ahead
from tests.architectures import make_tiny


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked")
def test_every_file_of_weights_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int, int]] = []

    def advise(descriptor: int, *rest: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").resolve().name
        asked.append((name, *rest))  # type: ignore[arg-type]

    monkeypatch.setattr(os, "posix_fadvise", advise)
    read_ahead(make_tiny("llama", tmp_path).folder)
    assert asked == [("model.safetensors", 0, 0, os.POSIX_FADV_WILLNEED)]


def test_nothing_happens_where_there_is_nothing(tmp_path: Path) -> None:
    read_ahead(tmp_path)
    read_ahead(tmp_path / "nowhere")
    (tmp_path / "model.gguf").write_bytes(b"no")
    read_ahead(tmp_path / "model.gguf")
