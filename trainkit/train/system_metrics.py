"""Metrics of the machine that trains: memory, processors, power and temperature."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from trainkit.parallel import nvidia

#: Seconds between two readings of the trainer and its devices, and of the cores of the host. Steps can be much shorter.
EVERY, CORES_EVERY = 1.0, 5.0


class SystemMetrics:
    """Memory and processor time of this process, its devices, and the cores of the host."""

    def __init__(self) -> None:
        self._read_at = self._cores_read_at = time.perf_counter()
        self._cpu = sum(os.times()[:2])
        self._cores = _core_times()
        self._gpus = Gpus.find(jax.local_devices())

    def read(self, now: float) -> dict[str, float]:
        """Return the metrics; empty if the last ones were read less than `EVERY` seconds ago."""
        elapsed = now - self._read_at
        if elapsed < EVERY:
            return {}
        cpu = sum(os.times()[:2])
        metrics: dict[str, float] = {"host/cpu": round((cpu - self._cpu) / elapsed, 2)}
        self._read_at, self._cpu = now, cpu
        if (resident := _resident_bytes()) is not None:
            metrics["memory/host"] = resident
        for device in jax.local_devices():
            if statistics := device.memory_stats():
                metrics[f"memory/device/{device.id}"] = statistics["bytes_in_use"]
                if "peak_bytes_in_use" in statistics:
                    metrics[f"memory/device_peak/{device.id}"] = statistics["peak_bytes_in_use"]
        if self._gpus:
            metrics |= self._gpus.read()
        if now - self._cores_read_at >= CORES_EVERY:
            before, self._cores, self._cores_read_at = self._cores, _core_times(), now
            metrics |= {f"host/core/{n}": share for n, share in enumerate(busy(before, self._cores))}
        return metrics


class Gpus:
    """Power, temperature and utilisation of NVIDIA devices, from the driver's management library (NVML)."""

    def __init__(self, nvml: ModuleType | Any, handles: dict[int, Any]) -> None:
        """`handles` are NVML's, by the device's number in JAX."""
        self._nvml, self._handles = nvml, handles

    @classmethod
    def find(cls, devices: Sequence[Any]) -> Gpus | None:
        """Return a reader for these devices; None if they are not NVIDIA's, or NVML is not available."""
        if not any(device.platform == "gpu" and "nvidia" in device.device_kind.lower() for device in devices):
            return None
        if (nvml := nvidia.open_nvml()) is None:
            return None
        try:
            handles = dict(enumerate(nvidia.handles(nvml)))  # by CUDA's numbers
        except nvml.NVMLError:
            return None
        return cls(nvml, {d.id: handles[d.local_hardware_id] for d in devices if d.local_hardware_id in handles})

    def read(self) -> dict[str, float]:
        """Return power (watts), temperature (°C) and utilisation (the share of time in which a kernel ran).

        What the driver does not report is omitted."""
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


def busy(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[float]:
    """Return the share of time in which each core was busy between two readings of (busy, all) ticks."""
    if len(before) != len(after):  # a core was added or removed
        return []
    return [
        round((busy - was_busy) / (ticks - were), 3) if ticks > were else 0.0
        for (was_busy, were), (busy, ticks) in zip(before, after, strict=True)
    ]


def _core_times() -> list[tuple[int, int]]:
    """Return (busy, all) ticks of each core since the host started; empty on systems without /proc.

    In a line `cpu0 user nice system idle iowait …` (proc(5)) the fourth and fifth numbers are idle ticks.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return []
    cores = []
    for line in lines:
        label, *rest = line.split()
        if label.startswith("cpu") and label != "cpu":
            ticks = list(map(int, rest[:8]))
            cores.append((sum(ticks) - sum(ticks[3:5]), sum(ticks)))
    return cores


def _resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None on systems without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return None
