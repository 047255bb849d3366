"""The peak memory is that of this program alone."""

import subprocess
import sys

import pytest

MEBI = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's own count starts at nothing")
def test_what_the_parent_held_is_not_counted() -> None:
    """Linux's getrusage starts a program at the peak of the process that began it."""
    held = bytearray(400 * MEBI)
    code = "from genx.engine.memory import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 4 * MEBI < int(done.stdout) < 200 * MEBI < len(held)
