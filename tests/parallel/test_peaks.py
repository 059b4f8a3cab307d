"""The table of what devices can do at best."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.parallel.hardware import PEAKS, peak_bandwidth, peak_flops, peak_of_all

#: As JAX calls them.
KINDS = {
    "NVIDIA H100 80GB HBM3": ("bfloat16", 989.4, 3350),
    "NVIDIA H100 PCIe": ("bfloat16", 756, 2000),
    "NVIDIA H100 NVL": ("fp8", 1670.5, 3900),
    "NVIDIA H200": ("bfloat16", 989.4, 4800),
    "NVIDIA B200": ("bfloat16", 2250, 8000),
    "NVIDIA A100-SXM4-40GB": ("float32", 156, 1555),
    "NVIDIA A100-SXM4-80GB": ("bfloat16", 312, 2039),
    "NVIDIA A100 80GB PCIe": ("float16", 312, 1935),
    "NVIDIA L4": ("bfloat16", 121, 300),
    "NVIDIA L40S": ("fp8", 733, 864),
    "NVIDIA A10": ("bfloat16", 125, 600),
    "NVIDIA A10G": ("bfloat16", 70, 600),
    "NVIDIA GeForce RTX 3090": ("bfloat16", 71, 936),
    "NVIDIA GeForce RTX 4090": ("bfloat16", 165.2, 1008),
    "NVIDIA GeForce RTX 5090": ("bfloat16", 209.5, 1792),
    "Tesla V100-SXM2-16GB": ("float16", 125, 900),
    "Tesla T4": ("float16", 65, 300),
    "TPU v4": ("bfloat16", 275, 1228),
    "TPU v5 lite": ("bfloat16", 197, 819),
    "TPU v5": ("bfloat16", 459, 2765),
    "TPU v6 lite": ("bfloat16", 918, 1640),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_found_by_the_name_that_jax_gives_it(kind: str) -> None:
    compute, tera, gigabytes = KINDS[kind]
    assert peak_flops(kind, compute) == pytest.approx(tera * 1e12)
    assert peak_bandwidth(kind) == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H900",
        "NVIDIA A100-SXM-64GB",
    ],
)
def test_what_is_not_listed_or_is_only_a_part_of_a_device_has_no_known_peak(kind: str) -> None:
    assert peak_flops(kind, "bfloat16") is None and peak_bandwidth(kind) is None
    assert peak_of_all(kind, "bfloat16", devices=8) is None


def test_a_dtype_that_a_device_has_no_unit_for_has_no_peak() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
    assert peak_flops("TPU v4", "float16") is None
    assert peak_flops("NVIDIA H200", "memory") is None, "no dtype"


def test_the_recipe_goes_before_the_table_and_devices_add_up() -> None:
    h200 = peak_flops("NVIDIA H200", "bfloat16")
    assert h200 is not None
    assert peak_of_all("NVIDIA H200", "bfloat16", devices=4) == 4 * h200
    assert peak_of_all("NVIDIA H200", "bfloat16", devices=4, tflops=2.5) == 1e13
    assert peak_of_all("cpu", "float32", devices=1, tflops=0.5) == 5e11


def test_no_name_is_meant_by_two_rows_and_less_precision_is_never_slower() -> None:
    for kind in KINDS:
        name = re.sub(r"^(NVIDIA|TESLA) ", "", kind.upper().replace("-", " "))
        assert sum(bool(re.fullmatch(pattern, name)) for pattern in PEAKS) == 1, kind
    for pattern, peak in PEAKS.items():
        there = [tera for tera in (peak.float32, peak.bfloat16 or peak.float16, peak.fp8) if tera is not None]
        assert there == sorted(there), pattern
        assert 0 < peak.memory < 20_000, "in GB a second"


@given(st.text())
def test_any_name_can_be_asked_for(kind: str) -> None:
    assert peak_flops(kind, "float32") is None or peak_bandwidth(kind) is not None
