"""What a device can do at best: operations and bytes a second, by the name that JAX gives it.

The numbers are those of the vendors' data sheets and white papers, of dense matrices (half of what is advertised "with
sparsity") and, on GeForce cards, with sums in float32. A device that is not listed has no known peak: a part of one
(MIG), a laptop's of the same name, or a newer one is not guessed at.

Sources: NVIDIA's data sheets of V100, T4, A10, A40, A100, L4, L40, L40S, H100, H200, GH200 and DGX B200, its white
papers of the architectures GA102, AD102 and GB202 (RTX 30, 40 and 50, RTX A6000, RTX 6000 Ada), and Google's pages on
Cloud TPU v4, v5e, v5p and v6e.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from trainkit.plan import Plan


class Peak(NamedTuple):
    """Of one device: 10^12 operations a second by dtype, None where it has no unit for it, and GB (10^9 bytes) a
    second from its memory.

    `float32` is what JAX makes of it by default: TF32 on NVIDIA GPUs that have it, one pass in bfloat16 on TPUs.
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
#: Pattern of the whole name (without "NVIDIA" and "Tesla", spaces for dashes) -> what it can do.
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
    """Operations a second of one device, a multiplication and an addition being two; None where that is not known.

    `kind` is JAX's `device_kind`, `compute` one of "float32", "float16", "bfloat16" and "fp8".
    """
    found = _find(kind)
    tera = None if found is None else {**found._asdict(), "memory": None}.get(compute)
    return None if tera is None else tera * 1e12


def peak_bandwidth(kind: str) -> float | None:
    """Bytes a second between one device and its memory; None where that is not known."""
    found = _find(kind)
    return None if found is None else found.memory * 1e9


def peak_of_all(kind: str, compute: str, *, devices: int, tflops: float | None = None) -> float | None:
    """Operations a second of so many devices; `tflops` is what the recipe says of one, which the table gives way to."""
    one = tflops * 1e12 if tflops is not None else peak_flops(kind, compute)
    return None if one is None else devices * one


def peak_of(plan: Plan, *, tflops: float | None) -> float | None:
    """The same of all devices that a plan trains on."""
    return peak_of_all(plan.devices.kind, plan.compute, devices=plan.batch.replicas, tflops=tflops)


def _find(kind: str) -> Peak | None:
    name = re.sub(r"^(NVIDIA|TESLA) ", "", re.sub(r"[\s-]+", " ", kind.upper()).strip())
    name = name.removeprefix("TESLA ")
    return next((peak for pattern, peak in PEAKS.items() if re.fullmatch(pattern, name)), None)
