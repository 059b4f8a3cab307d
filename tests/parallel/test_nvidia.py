"""GPUs by CUDA's numbers, and the share of their memory that XLA takes. The driver is a substitute."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from trainkit.errors import TrainkitError
from trainkit.parallel import nvidia
from trainkit.parallel.nvidia import DECIDED_BY, GpuMemory, claim_memory, handles

GB = 10**9


class Cuda:
    """CUDA's driver on a machine with these addresses on the bus, in CUDA's order."""

    def __init__(self, *addresses: bytes, status: int = 0) -> None:
        self.addresses, self.status = addresses, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.addresses)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = 100 + ordinal
        return 0

    def cuDeviceGetPCIBusId(self, address: Any, length: int, device: Any) -> int:
        address.value = self.addresses[device.value - 100]
        return 0


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has decided about the memory, and what a test decides is forgotten."""
    for name in DECIDED_BY:
        monkeypatch.setenv(name, "")


def test_a_device_of_cuda_is_found_by_its_address_though_nvml_counts_in_another_order() -> None:
    slow_first = [b"0000:01:00.0", b"0000:41:00.0"]
    nvml = SimpleNamespace(nvmlDeviceGetHandleByPciBusId=slow_first.index)
    assert handles(nvml, Cuda(*reversed(slow_first))) == [1, 0]
    assert handles(nvml, Cuda(slow_first[1])) == [1], "the only one that is visible"
    assert handles(nvml, Cuda(slow_first[0], status=100)) == [], "a driver that does not start"


def test_xla_takes_what_is_free_on_the_fullest_gpu_but_a_reserve() -> None:
    empty, used = GpuMemory(80 * GB, 80 * GB), GpuMemory(80 * GB, 70 * GB, ((4_000_000_000, 10 * GB),))
    assert 0.97 < empty.share < 0.98, "JAX would take 0.75"
    words = claim_memory([empty, used])
    share = float(os.environ["XLA_CLIENT_MEM_FRACTION"])
    assert share == used.share and used.free - 2 * used.reserve < share * used.total <= used.free - used.reserve
    assert "process 4000000000 (of another container) holds 10.0 GB" in words and "of 80.0 GB on each GPU" in words


def test_a_gpu_without_memory_is_an_error_that_names_who_holds_it() -> None:
    full = GpuMemory(24 * GB, GB // 2, ((os.getpid(), 23 * GB),))
    with pytest.raises(TrainkitError, match=r"GPU 1 has 500\.0 MB free of 24\.0 GB") as error:
        claim_memory([GpuMemory(24 * GB, 24 * GB), full])
    assert f"process {os.getpid()} (" in (error.value.hint or "") and "CUDA_VISIBLE_DEVICES" in (error.value.hint or "")
    assert not os.environ["XLA_CLIENT_MEM_FRACTION"]


@pytest.mark.parametrize("name", DECIDED_BY)
def test_what_a_person_decided_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0.5")
    assert claim_memory([GpuMemory(80 * GB, 80 * GB)]) == f"as {name}=0.5 says"
    assert name == "XLA_CLIENT_MEM_FRACTION" or not os.environ["XLA_CLIENT_MEM_FRACTION"]


def test_without_gpus_or_with_divided_ones_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim_memory([]) == "" and not os.environ["XLA_CLIENT_MEM_FRACTION"]
    one = SimpleNamespace(total=80 * GB, free=80 * GB)
    nvml = SimpleNamespace(
        NVMLError=OSError,
        nvmlDeviceGetMigMode=lambda handle: (handle, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: one,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7, usedGpuMemory=None)],
    )
    monkeypatch.setattr(nvidia, "open_nvml", lambda: nvml)
    monkeypatch.setattr(nvidia, "handles", lambda nvml: [0, 1])
    assert nvidia.memory_of_gpus() == [], "the second one is divided"
    monkeypatch.setattr(nvidia, "handles", lambda nvml: [0])
    assert nvidia.memory_of_gpus() == [GpuMemory(80 * GB, 80 * GB, ((7, 0),))]
