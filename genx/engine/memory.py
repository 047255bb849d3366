"""The peak memory of a run, from the system's own books."""

import sys
from pathlib import Path


def peak_memory_bytes(device: str) -> int | None:
    """The most memory in use at once: on a CUDA device what torch allocated there, else what this process held.

    None where the system does not tell.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return _peak_of_process_windows() if sys.platform == "win32" else _peak_of_process()


def _peak_of_process() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    if sys.platform == "linux":
        peak = _high_water_mark(Path("/proc/self/status"))
        if peak is not None:
            return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def _high_water_mark(status: Path) -> int | None:
    """Linux's own count for this program. That of getrusage starts at what the parent held when it began it."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "VmHWM":
            return int(rest.split()[0]) * 1024
    return None


def _peak_of_process_windows() -> int | None:
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS of psapi.h
        _fields_ = (
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            *(
                (name, ctypes.c_size_t)
                for name in (
                    "PeakWorkingSetSize",
                    "WorkingSetSize",
                    "QuotaPeakPagedPoolUsage",
                    "QuotaPagedPoolUsage",
                    "QuotaPeakNonPagedPoolUsage",
                    "QuotaNonPagedPoolUsage",
                    "PagefileUsage",
                    "PeakPagefileUsage",
                )
            ),
        )

    counters = Counters(cb=ctypes.sizeof(Counters))
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined, unused-ignore]
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    kernel.K32GetProcessMemoryInfo.argtypes = (wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        return None
    return int(counters.PeakWorkingSetSize)
