"""Memory: how much is free before a run, and the peak of a run (on the CPU, of the process's resident memory)."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FREE, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """What could be allocated on this device now, as far as the system says; a container's own limit counts."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by torch, but free
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:
        line = next(line for line in _FREE.read_text().splitlines() if line.startswith("MemAvailable"))
        free = int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        import psutil  # not on Linux

        return int(psutil.virtual_memory().available)
    try:
        limit = int((_GROUP / "memory.max").read_text())  # "max" without a limit
        return min(free, limit - int((_GROUP / "memory.current").read_text()) + _reclaimable())
    except (OSError, ValueError):
        return free


def _reclaimable() -> int:
    """File pages that count as used in a container, and that the system takes back when memory is short."""
    lines = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    return sum(int(value) for name, value in lines if name in ("inactive_file", "active_file"))


def reset_peak(device: torch.device) -> None:
    """Starts a new measurement where the system can (GPU, Linux); elsewhere the peak is the process's since start."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")  # Linux: forget the resident high-water mark
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """The largest use since `reset_peak`."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else _process("VmHWM")


def resident_bytes(device: torch.device) -> int:
    """The bytes in use now; where it is possible (glibc), freed memory is returned to the system first."""
    if device.type != "cuda" and sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else _process("VmRSS")


def _process(name: str) -> int:
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):  # not on Linux
        return _resident_elsewhere() if name == "VmRSS" else _peak_elsewhere()


def _resident_elsewhere() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _peak_elsewhere() -> int:
    """The peak since the process began: other systems know no other."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0)) or _resident_elsewhere()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
