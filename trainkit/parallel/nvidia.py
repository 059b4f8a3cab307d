"""NVIDIA's GPUs by the numbers that CUDA gives them, and the share of their memory that XLA may take.

Asks the driver (libcuda) and its management library (NVML). Imports no jax, and takes no memory of a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainkit.errors import TrainkitError
from trainkit.text import format_bytes, neutralise

#: What stays free beside XLA's memory for the CUDA context, the kernels and the buffers of collectives, which XLA takes
#: from the driver: bytes, and a share of the card. Not measured yet.
RESERVED_BYTES, RESERVED_SHARE = 1 << 30, 0.01
#: Variables by which a person decides about the memory.
DECIDED_BY = (
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)


class GpuMemory(NamedTuple):
    """The memory of one GPU, and what other processes hold of it."""

    total: int
    free: int
    holders: tuple[tuple[int, int], ...] = ()
    """(process id, bytes) of each process that the driver names."""

    @property
    def reserve(self) -> int:
        """Return the bytes that XLA must leave free."""
        return RESERVED_BYTES + int(RESERVED_SHARE * self.total)

    @property
    def share(self) -> float:
        """Return the share of the card that XLA may take, rounded down."""
        return max(0, int(1000 * (self.free - self.reserve) / self.total)) / 1000


def open_nvml() -> Any | None:
    """Return NVML as the module `pynvml`; None without the package or without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def handles(nvml: Any, cuda: Any | None = None) -> list[Any]:
    """Return NVML's handle of each device that CUDA shows this process, in CUDA's order.

    NVML counts devices along the bus; CUDA counts the fastest first unless CUDA_DEVICE_ORDER says otherwise, and only
    those in CUDA_VISIBLE_DEVICES. Both know a device by its address on the bus. `cuda` is libcuda if None.
    """
    try:
        cuda = cuda or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, found = ctypes.c_int(), []
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    for ordinal in range(count.value):
        device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetPCIBusId(address, 32, device):
            return []
        found.append(nvml.nvmlDeviceGetHandleByPciBusId(address.value))
    return found


def memory_of_gpus() -> list[GpuMemory]:
    """Return the memory of each GPU that CUDA shows this process; empty if it is unknown or one is divided (MIG)."""
    nvml, found = open_nvml(), []
    if nvml is None:
        return []
    try:
        for handle in handles(nvml):
            if _is_divided(nvml, handle):
                return []
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            holders = tuple((one.pid, one.usedGpuMemory or 0) for one in processes if one.pid != os.getpid())
            found.append(GpuMemory(memory.total, memory.free, holders))
    except nvml.NVMLError:
        return []
    return found


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] != 0
    except nvml.NVMLError:  # the card cannot be divided
        return False


def claim_memory(gpus: Sequence[GpuMemory] | None = None) -> str:
    """Let XLA take what is free on the GPUs but a small reserve, and return this decision in words.

    JAX would take 75 % of each. Returns "" if nothing is known about the GPUs, or there are none. Call it before jax
    opens a device. `gpus` are this machine's if None.

    Raises:
        TrainkitError: a GPU has no memory left.
    """
    gpus = memory_of_gpus() if gpus is None else gpus
    if not gpus:
        return ""
    if name := next((name for name in DECIDED_BY if os.environ.get(name)), None):
        return f"as {name}={os.environ[name]} says"
    number, least = min(enumerate(gpus), key=lambda pair: pair[1].share)
    if not least.share:
        raise TrainkitError(
            f"GPU {number} has {format_bytes(least.free)} free of {format_bytes(least.total)}; "
            f"CUDA alone takes up to {format_bytes(least.reserve)}",
            where="parallel.platform",
            hint=f"{_holders(least) or 'another program holds it'}: end it, or choose another GPU by"
            " CUDA_VISIBLE_DEVICES",
        )
    os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{least.share:.3f}"
    taken = least.total - least.free
    others = f", {format_bytes(taken)} is taken" + (f" ({_holders(least)})" if least.holders else "")
    return (
        f"{format_bytes(int(least.share * least.total))} of {format_bytes(least.total)} on each GPU:"
        f" {format_bytes(least.reserve)} stays free for CUDA{others}"
    )


def _holders(memory: GpuMemory) -> str:
    """Return who holds memory of a GPU, in words; empty if the driver names nobody."""
    named = [f"process {pid} ({_program(pid)}) holds {format_bytes(size)}" for pid, size in memory.holders]
    return ", ".join(named)


def _program(pid: int) -> str:
    try:
        return neutralise(Path(f"/proc/{pid}/comm").read_text().strip())
    except OSError:
        return "of another container"
