"""What the trainer tells of the machine."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from trainkit.train import system_metrics
from trainkit.train.system_metrics import Gpus, SystemMetrics, busy


def test_a_core_at_work_counts_as_busy() -> None:
    looker, began = SystemMetrics(), sum(os.times()[:2])
    while sum(os.times()[:2]) - began < 0.2:
        sum(range(1000))
    now = time.perf_counter() + system_metrics.CORES_EVERY
    told = looker.read(now)
    cores = [value for metric, value in told.items() if metric.startswith("host/core/")]
    assert len(cores) == len(system_metrics._core_times()) and all(0 <= share <= 1 for share in cores)
    assert sum(cores) > 0 and told["host/cpu"] > 0  # how much of a core it gets depends on who else wants it
    assert told["memory/host"] > 1e6
    assert looker.read(now + system_metrics.EVERY / 2) == {}, "not so soon again"


def test_shares_are_of_the_time_between_two_looks() -> None:
    assert busy([(0, 0), (50, 100)], [(10, 40), (50, 200)]) == [0.25, 0.0]
    assert busy([(0, 0)], [(0, 0)]) == [0.0]
    assert busy([(0, 0)], [(1, 2), (1, 2)]) == []


def test_what_the_driver_does_not_report_is_left_out() -> None:
    class NVMLError(Exception):
        pass

    def refuse(handle: object) -> object:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetPowerUsage=lambda handle: {"a": 123_400}[handle],
        nvmlDeviceGetTemperature=lambda handle, sensor: {("a", 0): 61}[handle, sensor],
        nvmlDeviceGetUtilizationRates=refuse,
    )
    assert Gpus(nvml, {0: "a"}).read() == {"power/device/0": 123.4, "temperature/device/0": 61}


def test_a_device_that_reports_its_memory_reports_its_peak_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        id, platform, device_kind = 3, "gpu", "AMD"

        def __init__(self, told: dict[str, int] | None) -> None:
            self.told = told

        def memory_stats(self) -> dict[str, int] | None:
            return self.told

    def looked(told: dict[str, int] | None) -> dict[str, float]:
        monkeypatch.setattr(system_metrics.jax, "local_devices", lambda: [Device(told)])
        found = SystemMetrics().read(time.perf_counter() + 2 * system_metrics.EVERY)
        return {name: value for name, value in found.items() if name.startswith("memory/device")}

    both = {"memory/device/3": 5, "memory/device_peak/3": 9}
    assert looked({"bytes_in_use": 5, "peak_bytes_in_use": 9}) == both
    assert looked({"bytes_in_use": 5}) == {"memory/device/3": 5} and looked(None) == {}


def test_without_nvidia_devices_there_is_nothing_to_ask() -> None:
    assert Gpus.find([SimpleNamespace(platform="cpu", device_kind="cpu")]) is None
