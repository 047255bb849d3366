"""Rates, times and sizes, each measured in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TRIES = 5
_PEAK = "from genx.engine.memory import peak_memory_bytes; print(peak_memory_bytes('cpu'))"


class Bench:
    """`genx bench` with some options in common."""

    def __init__(self, repeats: int, threads: int) -> None:
        self._common = ("--repeats", str(repeats), "--threads", str(threads), "-o", "json", "-q")

    def __call__(self, model: Path, *options: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """The medians of genx's only point by name, and those of its peer's, empty without one."""
        command = [sys.executable, "-m", "genx", "bench", "-m", str(model), *options, *self._common]
        done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
        points = [_medians(point) for point in json.loads(done.stdout)["points"]]
        return points[0], points[1] if len(points) > 1 else {}


def _medians(point: Mapping[str, Any]) -> dict[str, float]:
    if point["status"] != "ok":
        raise RuntimeError(f"{point['engine']}: {point['error']}")
    found = {name: value["median"] for name, value in point.items() if isinstance(value, dict) and "median" in value}
    return {**found, "weight_bytes": (point["limits"] or {}).get("weight_bytes", 0)}


def process_s(*arguments: str) -> float:
    """Seconds that `python ARGUMENTS` takes, the shortest of several times."""
    tries: list[float] = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tries.append(time.perf_counter() - started)
    return min(tries)


def import_and_read_s(model: Path) -> float:
    """A process that imports torch and reads the weights once."""
    return process_s("-c", f"import torch; open({str(model / 'model.safetensors')!r}, 'rb').read()")


def torch_bytes() -> int:
    """The most memory of a process that does nothing but import torch."""
    done = subprocess.run([sys.executable, "-c", f"import torch; {_PEAK}"], check=True, capture_output=True, text=True)
    return int(done.stdout)


def bare_products_tps(model: Path, tokens: int, threads: int) -> float:
    """Tokens a second if a prompt were nothing but the float32 products of its linear layers, the head's once."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from genx import load_model

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    loaded = load_model(model, dtype="float32")
    linears = [module for module in loaded.modules() if isinstance(module, nn.Linear) and module is not loaded.lm_head]
    inputs = {size: torch.randn(tokens, size) for size in {linear.in_features for linear in linears}}
    tries: list[float] = []
    with torch.no_grad():
        for _ in range(_TRIES):
            started = time.perf_counter()
            for linear in linears:
                F.linear(inputs[linear.in_features], linear.weight)
            F.linear(inputs[loaded.lm_head.in_features][:1], loaded.lm_head.weight)
            tries.append(time.perf_counter() - started)
    torch.set_num_threads(before)
    return tokens / min(tries)
