"""How much memory is free, by the system's own books."""

from pathlib import Path

import pytest

from genx.engine import free_memory
from genx.engine.free_memory import free_memory_bytes


def test_some_memory_is_free() -> None:
    assert 1 << 20 < free_memory_bytes("cpu") < 1 << 50


def test_a_container_may_allow_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(free_memory, "_available_linux", lambda: 10_000)
    (tmp_path / "memory.current").write_text("1000\n")
    for limit, free in (("max", 10_000), ("5000", 4000), ("500", 0), ("50000", 10_000)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert free_memory_bytes("cpu") == free
