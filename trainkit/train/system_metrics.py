"""What the machine is doing while it trains: memory, processors, power, heat."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

#: Seconds between looks at the trainer and its devices, and at all cores of the host; steps can be much shorter.
EVERY, CORES_EVERY = 1.0, 5.0


class SystemMetrics:
    """Memory and processor time of this process, its devices, and the cores of the host."""

    def __init__(self) -> None:
        self._looked = self._cores_looked = time.perf_counter()
        self._cpu = sum(os.times()[:2])
        self._cores = _core_times()
        self._gpus = Gpus.find(jax.local_devices())

    def look(self, now: float) -> dict[str, float]:
        """Metrics, or nothing where the last look was less than `EVERY` ago."""
        elapsed = now - self._looked
        if elapsed < EVERY:
            return {}
        cpu = sum(os.times()[:2])
        metrics: dict[str, float] = {"host/cpu": round((cpu - self._cpu) / elapsed, 2)}
        self._looked, self._cpu = now, cpu
        if (resident := _resident_bytes()) is not None:
            metrics["memory/host"] = resident
        for device in jax.local_devices():
            if statistics := device.memory_stats():
                metrics[f"memory/device/{device.id}"] = statistics["bytes_in_use"]
                if "peak_bytes_in_use" in statistics:
                    metrics[f"memory/device_peak/{device.id}"] = statistics["peak_bytes_in_use"]
        if self._gpus:
            metrics |= self._gpus.look()
        if now - self._cores_looked >= CORES_EVERY:
            before, self._cores, self._cores_looked = self._cores, _core_times(), now
            metrics |= {f"host/core/{n}": share for n, share in enumerate(busy(before, self._cores))}
        return metrics


class Gpus:
    """Power, temperature and utilisation of NVIDIA devices, from the driver's management library (NVML)."""

    def __init__(self, nvml: ModuleType | Any, handles: dict[int, Any]) -> None:
        """`handles` are NVML's, by the number that the device has in JAX."""
        self._nvml, self._handles = nvml, handles

    @classmethod
    def find(cls, devices: Sequence[Any]) -> Gpus | None:
        """None where these are no NVIDIA devices, or the driver does not tell."""
        if not any(device.platform == "gpu" and "nvidia" in device.device_kind.lower() for device in devices):
            return None
        try:
            import pynvml
        except ImportError:
            return None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            pynvml.nvmlInit()
            return cls(pynvml, {d.id: _handle(pynvml, name(d.local_hardware_id, visible)) for d in devices})
        except pynvml.NVMLError:
            return None

    def look(self) -> dict[str, float]:
        """Watts, degrees Celsius and the share of the last moments in which a kernel ran; what the driver does not tell
        is left out."""
        nvml = self._nvml
        metrics: dict[str, float] = {}
        for number, handle in self._handles.items():
            with contextlib.suppress(nvml.NVMLError):
                metrics[f"power/device/{number}"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            with contextlib.suppress(nvml.NVMLError):
                degrees = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
                metrics[f"temperature/device/{number}"] = degrees
            with contextlib.suppress(nvml.NVMLError):
                metrics[f"utilization/device/{number}"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return metrics


def name(place: int, visible: str | None) -> int | str:
    """What NVML calls the device at this place of `CUDA_VISIBLE_DEVICES`: a number or a UUID."""
    if not visible:
        return place
    found = visible.split(",")[place].strip()
    return int(found) if found.isdecimal() else found


def busy(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[float]:
    """The share of the time between two looks at (busy, all) ticks in which each core was busy."""
    if len(before) != len(after):  # a core came or went
        return []
    return [
        round((busy - was_busy) / (ticks - were), 3) if ticks > were else 0.0
        for (was_busy, were), (busy, ticks) in zip(before, after, strict=True)
    ]


def _handle(nvml: Any, name: int | str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(name) if isinstance(name, int) else nvml.nvmlDeviceGetHandleByUUID(name)


def _core_times() -> list[tuple[int, int]]:
    """(busy, all) ticks of each core since the host started; empty on systems without /proc.

    Of a line `cpu0 user nice system idle iowait …` (proc(5)) the fourth and fifth are idle.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        label, *rest = line.split()
        if label.startswith("cpu") and label != "cpu":
            ticks = list(map(int, rest[:8]))
            found.append((sum(ticks) - sum(ticks[3:5]), sum(ticks)))
    return found


def _resident_bytes() -> int | None:
    """Resident memory of this process; None on systems without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return None
