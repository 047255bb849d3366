"""Where a report was measured. No torch: what torch alone knows comes from the process that asks it."""

import datetime
import hashlib
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from genx import __version__
from genx.checkpoint import open_source

_PIECE = 1 << 20


def describe_machine() -> dict[str, Any]:
    """The parts of `env` that do not depend on the run: versions, processor, cores, and the time."""
    return {
        "genx": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "affinity": usable_cores(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def usable_cores() -> int | None:
    """Cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return os.cpu_count() if affinity is None else len(affinity(0))


def cpu_name() -> str:
    """The processor as it calls itself."""
    if platform.system() == "Linux":
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model", "cpu"):
                    return value.strip()
    if platform.system() == "Darwin":
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def hash_model(folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """The sha256 of config.json, where it is a file of its own, and of every file of weights, in the order of names.

    Args:
        folder: of the checkpoint, or a GGUF file.
        progress: called with bytes done and bytes in all.

    Raises:
        CheckpointError: there are no weights.
    """
    weights = open_source(folder).weight_files
    files = weights if folder.is_file() else [folder / "config.json", *weights]
    total = sum(file.stat().st_size for file in files)
    digest, done = hashlib.sha256(), 0
    for file in files:
        for piece in _pieces(file):
            digest.update(piece)
            done += len(piece)
            progress(done, total)
    return digest.hexdigest()


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            yield piece
