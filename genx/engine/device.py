"""Which device runs the model, in which dtype, on how many threads, by name."""

from collections.abc import Sequence

from genx.errors import ArgumentError

DEVICES: Sequence[str] = ("auto", "cpu", "cuda", "mps")
LARGEST_THREADS = 1024  # beyond some thousands the thread library ends the process without a word
DTYPES: Sequence[str] = ("auto", "float32", "bfloat16", "float16")


def check_device_and_dtype(device: str, dtype: str) -> None:
    """Refuse names that stand for no device or dtype; needs no torch.

    Raises:
        ArgumentError: `device` is not one of DEVICES, or `dtype` not one of DTYPES.
    """
    if device not in DEVICES:
        raise ArgumentError("{device} is {given!r}; allowed: {allowed}", given=device, allowed=", ".join(DEVICES))
    if dtype not in DTYPES:
        raise ArgumentError("{dtype} is {given!r}; allowed: {allowed}", given=dtype, allowed=", ".join(DTYPES))


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that no machine can start; needs no torch.

    Raises:
        ArgumentError: it is below 1 or above LARGEST_THREADS.
    """
    if threads is not None and not 1 <= threads <= LARGEST_THREADS:
        raise ArgumentError(
            "{threads} is {given}; allowed: a whole number from 1 to {largest}", given=threads, largest=LARGEST_THREADS
        )


def check_processes(processes: int | None, device: str) -> None:
    """Refuse a number of processes that are to compute a model together, where it can be told without torch.

    Args:
        processes: None where none is given.
        device: one of DEVICES.

    Raises:
        ArgumentError: it is below 1 or above LARGEST_THREADS, or the device is one that cannot be shared work on.
    """
    if processes is not None and not 1 <= processes <= LARGEST_THREADS:
        raise ArgumentError(
            "{tensor_parallel} is {given}; allowed: a whole number from 1 to {largest}",
            given=processes,
            largest=LARGEST_THREADS,
        )
    if processes not in (None, 1) and device == "mps":
        raise ArgumentError(
            "{tensor_parallel} {given} and {device} mps are both given; allowed: one of them, there is one such device",
            given=processes,
        )


def choose_device(name: str) -> str:
    """The device of this name; `auto` is CUDA where there is one, else the CPU."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
