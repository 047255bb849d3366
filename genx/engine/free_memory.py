"""How much memory is free for a run, from the system's own books."""

import os
import sys
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(device: str) -> int:
    """Bytes that can still be taken on a device: on CUDA what the driver says, else what the system has available.

    Where the system tells the total only, half of it counts as free.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if sys.platform == "win32":
        return _available_windows()
    available = _available_linux()
    if available is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit = _left_in_cgroup()
    return available if limit is None else min(available, limit)


def _available_linux() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_in_cgroup() -> int | None:
    """What the container that this process may run in still allows."""
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))  # "max" where there is none
        return max(limit - int((_CGROUP / "memory.current").read_text(encoding="ascii")), 0)
    return None


def _available_windows() -> int:
    import ctypes
    from ctypes import wintypes

    class Status(ctypes.Structure):  # MEMORYSTATUSEX of sysinfoapi.h
        _fields_ = (
            ("dwLength", wintypes.DWORD),
            ("dwMemoryLoad", wintypes.DWORD),
            *(
                (name, ctypes.c_ulonglong)
                for name in (
                    "ullTotalPhys",
                    "ullAvailPhys",
                    "ullTotalPageFile",
                    "ullAvailPageFile",
                    "ullTotalVirtual",
                    "ullAvailVirtual",
                    "ullAvailExtendedVirtual",
                )
            ),
        )

    status = Status(dwLength=ctypes.sizeof(Status))
    ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined, unused-ignore]
    return int(status.ullAvailPhys)
