"""The processes of one machine as torch knows them: found by a file, each with its device."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from genx.errors import ArgumentError, GenxError

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""By what processes on a device type send each other tensors."""

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def check_processes(processes: int, device: str) -> None:
    """Refuse what this machine or this torch cannot do.

    Args:
        processes: at least 1.
        device: a device type.

    Raises:
        ArgumentError: there are not so many devices, or the device type is none that several processes share work on.
        GenxError: this torch lacks what it takes.
    """
    if device not in BACKENDS:
        raise ArgumentError(
            "{tensor_parallel} is {given} and {device} {name}; allowed with it: {allowed}",
            given=processes,
            name=device,
            allowed=", ".join(BACKENDS),
        )
    if not (dist.is_available() and dist.is_backend_available(BACKENDS[device])):
        raise GenxError(
            f"this torch ({torch.__version__}) cannot send tensors between processes on {device}: it is built without "
            f"{BACKENDS[device]}; use a build that has it, or leave out --tensor-parallel"
        )
    if device == "cuda" and processes > torch.cuda.device_count():
        raise ArgumentError(
            "{tensor_parallel} is {given}; allowed: at most {devices}, a CUDA device for each process",
            given=processes,
            devices=torch.cuda.device_count(),
        )


@contextmanager
def meeting_place() -> Iterator[Path]:
    """A file that is not there yet, by which processes find each other; nobody else can reach it."""
    with tempfile.TemporaryDirectory(prefix="genx-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "store"


@contextmanager
def joined(rank: int, processes: int, device: str, place: Path) -> Iterator[DeviceMesh]:
    """This process as one of several; the block is left by all of them.

    Args:
        rank: which one, from 0.
        processes: how many.
        device: cpu or cuda; of several CUDA devices each process takes the one of its rank.
        place: see `meeting_place`.
    """
    if device == "cuda":
        torch.cuda.set_device(rank)
    elif sys.platform in _LOOPBACK:
        # No name of this machine need be known to it, and nobody outside can connect.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    dist.init_process_group(BACKENDS[device], init_method=place.as_uri(), rank=rank, world_size=processes)
    try:
        yield init_device_mesh(device, (processes,))
    finally:
        dist.destroy_process_group()
