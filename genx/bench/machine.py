"""What this machine can do: how fast memory is read, and how fast matrices are multiplied."""

import time
from collections.abc import Callable

import torch

from genx.bench.limits import Rates

Clock = Callable[[], float]

_READ_BYTES = 512 << 20  # beyond the caches of any processor
_FEWER_BYTES = 64 << 20  # where memory is short
_LEAST_TRIES, _MOST_TRIES = 3, 7
_ENOUGH_S = 1.0  # of trying, after the least tries
_CPU_SIDE, _GPU_SIDE = 1024, 8192  # rows and columns of the matrices: enough for full speed, done within a second


def clock_of(device: str, clock: Clock = time.perf_counter) -> Clock:
    """A clock that reads the time once the device has done what it was told."""
    if not device.startswith(("cuda", "mps")):
        return clock

    def read() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        else:
            torch.mps.synchronize()
        return clock()

    return read


def measure_rates(device: str, dtypes: tuple[str, ...], clock: Clock = time.perf_counter) -> Rates:
    """The best of several tries each, with the threads that torch is set to; float32 is always among the dtypes."""
    watch = clock_of(device, clock)
    return Rates(
        threads=torch.get_num_threads(),
        read_gb_s=_read_gb_s(device, watch),
        matmul_gflop_s={dtype: _matmul_gflop_s(device, dtype, watch) for dtype in dict.fromkeys(("float32", *dtypes))},
    )


def _read_gb_s(device: str, clock: Clock) -> float:
    try:
        block = torch.ones(_READ_BYTES // 4, device=device)
    except RuntimeError:
        block = torch.ones(_FEWER_BYTES // 4, device=device)
    return block.nbytes / _shortest(block.sum, clock) / 1e9


def _matmul_gflop_s(device: str, dtype: str, clock: Clock) -> float:
    side = _CPU_SIDE if device == "cpu" else _GPU_SIDE
    left = torch.ones(side, side, device=device, dtype=getattr(torch, dtype))
    return 2 * side**3 / _shortest(lambda: left @ left, clock) / 1e9


def _shortest(work: Callable[[], object], clock: Clock) -> float:
    tries: list[float] = []
    while len(tries) < _LEAST_TRIES or (len(tries) < _MOST_TRIES and sum(tries) < _ENOUGH_S):
        started = clock()
        work()
        tries.append(clock() - started)
    return min(tries)
