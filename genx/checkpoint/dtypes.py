"""Which dtype and device a model is loaded in."""

import torch

from genx.errors import ArgumentError

FLOATS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def choose_dtype(asked: torch.dtype | str | None, configured: str | None, stored: torch.dtype) -> torch.dtype:
    """The dtype asked for; without one what the configuration names if it is a float genx knows, else the stored one.

    Raises:
        ArgumentError: (a ValueError) `asked` is none of the floats genx computes in.
    """
    if asked is None:
        return FLOATS.get(configured or "", stored)
    name = str(asked).removeprefix("torch.")
    if name not in FLOATS:
        raise ArgumentError("{dtype} is {given}; allowed: {floats}, or none", given=name, floats=", ".join(FLOATS))
    return FLOATS[name]


def choose_device(asked: torch.device | str | None) -> torch.device:
    """The device asked for; the CPU without one.

    Raises:
        ArgumentError: (a ValueError) torch does not know it, or this machine does not have it.
    """
    try:
        device = torch.device(asked or "cpu")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            "{device} is {given}, which torch cannot use here; allowed: cpu, or a cuda or mps device that this "
            "machine has",
            given=repr(str(asked)),
        ) from error
    return device
