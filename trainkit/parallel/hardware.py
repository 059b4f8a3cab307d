"""What the hardware offers: the memory of the host, and the peak performance of devices. Imports no jax.

The peaks are those of the vendors' data sheets and white papers for dense matrices (half of what is advertised "with
sparsity") and, on GeForce cards, for sums in float32. A device that is not listed has no known peak: nothing is guessed
for a part of a device (MIG), a laptop's device of the same name, or a newer one.

Sources: NVIDIA's data sheets of V100, T4, A10, A40, A100, L4, L40, L40S, H100, H200, GH200 and DGX B200, its white
papers of the architectures GA102, AD102 and GB202 (RTX 30, 40 and 50, RTX A6000, RTX 6000 Ada), and Google's pages on
Cloud TPU v4, v5e, v5p and v6e.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from trainkit.plan import Plan


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of available memory, by Linux or by the control groups, whichever is less; None if unknown.

    `root` is the directory of /proc and /sys.
    """
    sizes = _meminfo(root, "MemAvailable"), *(available for _, available in _control_groups(root))
    return min((size for size in sizes if size is not None), default=None)


def whole_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory, or the limit of a control group if that is less; None if unknown."""
    sizes = _meminfo(root, "MemTotal"), *(limit for limit, _ in _control_groups(root))
    return min((size for size in sizes if size is not None), default=None)


def _meminfo(root: Path, field: str) -> int | None:
    match = re.search(rf"^{field}: +(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _control_groups(root: Path) -> list[tuple[int, int]]:
    """Return (limit, available), in bytes, for each control group of this process with a limit, of version 1 or 2."""
    groups = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "sys/fs/cgroup" / controllers
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(base):
                break
            limit, used = (_read(directory / name).strip() for name in names)
            if limit.isdecimal() and used.isdecimal():
                # the kernel frees the cache of files that nobody is using when memory is needed
                idle = re.search(r"^(?:total_)?inactive_file (\d+)", _read(directory / "memory.stat"), re.MULTILINE)
                groups.append((int(limit), max(0, int(limit) - int(used) + (int(idle[1]) if idle else 0))))
    return groups


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Peak(NamedTuple):
    """The peak of one device: 10^12 operations per second by dtype (None without a unit for it), and `memory` in
    10^9 bytes per second.

    `float32` is what JAX uses by default: TF32 on NVIDIA GPUs that have it, one pass in bfloat16 on TPUs.
    """

    float32: float
    float16: float | None
    bfloat16: float | None
    fp8: float | None
    memory: float


def _ampere(tf32: float, half: float, memory: float, *, fp8: float | None = None) -> Peak:
    return Peak(tf32, half, half, fp8, memory)


def _tpu(bfloat16: float, memory: float) -> Peak:
    return Peak(bfloat16, None, bfloat16, None, memory)


_HOPPER, _HOPPER_NVL = (494.7, 989.4), (417.5, 835.5)
#: Patterns of the whole name, without "NVIDIA" and "Tesla" and with spaces for dashes.
PEAKS: dict[str, Peak] = {
    r"V100 SXM[23] (16|32)GB": Peak(15.7, 125, None, None, 900),
    r"V100 PCIE (16|32)GB": Peak(14, 112, None, None, 900),
    r"V100S PCIE 32GB": Peak(16.4, 130, None, None, 1134),
    r"T4": Peak(8.1, 65, None, None, 300),
    r"A10": _ampere(62.5, 125, 600),
    r"A10G": _ampere(35, 70, 600),
    r"A40": _ampere(74.8, 149.7, 696),
    r"RTX A6000": _ampere(77.4, 154.8, 768),
    r"A100 (SXM4 40GB|PCIE 40GB)": _ampere(156, 312, 1555),
    r"A100 SXM4? 80GB": _ampere(156, 312, 2039),
    r"A100 (80GB PCIE|PCIE 80GB)": _ampere(156, 312, 1935),
    r"GEFORCE RTX 3090": _ampere(35.6, 71, 936),
    r"GEFORCE RTX 3090 TI": _ampere(40, 80, 1008),
    r"L4": _ampere(60, 121, 300, fp8=242.5),
    r"L40": _ampere(90.5, 181, 864, fp8=362),
    r"L40S": _ampere(183, 362, 864, fp8=733),
    r"RTX 6000 ADA GENERATION": _ampere(182.1, 364.2, 960, fp8=728.5),
    r"GEFORCE RTX 4090": _ampere(82.6, 165.2, 1008, fp8=330.3),
    r"H100 80GB HBM3|H100 SXM5?( 80GB)?": _ampere(*_HOPPER, 3350, fp8=1978.9),
    r"H100 PCIE": _ampere(378, 756, 2000, fp8=1513),
    r"H100 NVL": _ampere(*_HOPPER_NVL, 3900, fp8=1670.5),
    r"H200": _ampere(*_HOPPER, 4800, fp8=1978.9),
    r"H200 NVL": _ampere(*_HOPPER_NVL, 4800, fp8=1670.5),
    r"GH200 480GB": _ampere(*_HOPPER, 4000, fp8=1978.9),
    r"B200": _ampere(1125, 2250, 8000, fp8=4500),
    r"GEFORCE RTX 5090": _ampere(104.8, 209.5, 1792, fp8=419),
    r"TPU V4": _tpu(275, 1228),
    r"TPU V5 LITE|TPU V5E": _tpu(197, 819),
    r"TPU V5P?": _tpu(459, 2765),
    r"TPU V6 LITE|TPU V6E": _tpu(918, 1640),
}


def peak_flops(kind: str, compute: str) -> float | None:
    """Return the operations per second of one device, where a multiply-add counts as two; None if unknown.

    `kind` is JAX's `device_kind`, `compute` one of "float32", "float16", "bfloat16" and "fp8".
    """
    peak = _peak(kind)
    tera = None if peak is None else {**peak._asdict(), "memory": None}.get(compute)
    return None if tera is None else tera * 1e12


def peak_bandwidth(kind: str) -> float | None:
    """Return the bytes per second between one device and its memory; None if unknown."""
    peak = _peak(kind)
    return None if peak is None else peak.memory * 1e9


def peak_of_all(kind: str, compute: str, *, devices: int, tflops: float | None = None) -> float | None:
    """Return the operations per second of so many devices; None if unknown. `tflops`, of one, replaces the table."""
    flops = tflops * 1e12 if tflops is not None else peak_flops(kind, compute)
    return None if flops is None else devices * flops


def peak_of(plan: Plan, *, tflops: float | None) -> float | None:
    """Return the operations per second of all devices that a plan trains on; None if unknown."""
    return peak_of_all(plan.devices.kind, plan.compute, devices=plan.batch.replicas, tflops=tflops)


def _peak(kind: str) -> Peak | None:
    name = re.sub(r"^(NVIDIA|TESLA) ", "", re.sub(r"[\s-]+", " ", kind.upper()).strip())
    name = name.removeprefix("TESLA ")
    return next((peak for pattern, peak in PEAKS.items() if re.fullmatch(pattern, name)), None)
