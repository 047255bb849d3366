"""The tests of native operations once more, compiled with the address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = ["tests/kernels/test_products.py", "tests/kernels/test_attention.py", "tests/kernels/test_quantize.py"]
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]


def address_sanitizer() -> str | None:
    """The runtime that must be loaded before all else, or None where there is none."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    return str(path.resolve()) if path.is_absolute() else None


@pytest.mark.slow
@pytest.mark.skipif(address_sanitizer() is None, reason="needs gcc with its sanitizers, on Linux")
@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_no_operation_leaves_its_memory(level: str, tmp_path: Path) -> None:
    build = [sys.executable, str(ROOT / "scripts" / "hatch_build.py"), str(tmp_path), "--", *FLAGS]
    subprocess.run(build, check=True, env={**os.environ, "CC": "gcc"})
    library = tmp_path / f"native-{level}.so"
    if not library.exists():
        pytest.skip(f"no {level} build on this machine")
    environment = {
        **os.environ,
        "GENX_TEST_NATIVE": str(library),
        "LD_PRELOAD": str(address_sanitizer()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves memory to the end of the process
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
