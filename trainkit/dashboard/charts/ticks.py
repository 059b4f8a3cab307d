"""Round numbers for axes: 1, 2 and 5 times powers of ten."""

from __future__ import annotations

import math
from typing import Literal

Tick = tuple[float, str]
#: What an axis counts: numbers, shares (1 is 100%), or bytes.
Unit = Literal["", "%", "B"]

COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def linear(low: float, high: float, *, most: int, unit: Unit = "") -> list[Tick]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten in [low, high], with labels of equal precision."""
    if unit == "%":
        return [(value / 100, f"{text}%") for value, text in linear(100 * low, 100 * high, most=most)]
    if most < 1 or not high > low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            largest = max(abs(low), abs(high))
            return [(n * step, label(n * step, step=step, largest=largest, unit=unit)) for n in range(first, last + 1)]
    return []


def logarithmic(low: float, high: float, *, most: int, unit: Unit = "") -> list[Tick]:
    """For a log10 axis from `low` to `high` (exponents): 1, 2, 5 of every decade if they are few, else some decades."""
    if high - low < 1:
        found = linear(10**low, 10**high, most=most, unit=unit)
        return [(math.log10(value), text) for value, text in found if value > 0]
    decades = range(math.floor(low), math.ceil(high) + 1)
    exponents = [math.log10(m) + d for d in decades for m in (1, 2, 5) if low <= math.log10(m) + d <= high]
    if len(exponents) > most:
        whole = [float(d) for d in decades if low <= d <= high]
        exponents = whole[:: max(1, math.ceil(len(whole) / max(1, most)))]
    return [(value, short(10**value, unit)) for value in exponents]


def steps(low: float, high: float, *, most: int) -> list[Tick]:
    """Ticks at whole steps."""
    found = linear(low, high, most=most)
    if all(value == int(value) for value, _ in found):
        return found
    return [(float(n), str(n)) for n in range(math.ceil(low), math.floor(high) + 1)][:most]


def label(value: float, *, step: float, largest: float, unit: Unit = "") -> str:
    """`value` with just the digits that tell it from its neighbours `step` away."""
    if largest >= 1e15:
        return short(value)
    if largest >= 10_000 or (unit == "B" and largest >= 1000):
        name, size = next((name, size) for name, size in (BYTES if unit == "B" else COUNTS) if largest >= size)
        text = f"{value / size:.{_decimals(step / size)}f}"
        return text if value == 0 else text + name
    if largest < 1e-2:
        return short(value)
    return f"{value:.{_decimals(step)}f}"


def short(value: float, unit: Unit = "") -> str:
    """A number in few characters: `0.002`, `2e-4`, `1.5`, `20k`, `43%`."""
    if unit == "%":
        return f"{short(100 * value)}%"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if (1e3 if unit == "B" else 1e4) <= abs(value) < 1e15:
        name, size = next((n, s) for n, s in (BYTES if unit == "B" else COUNTS) if abs(value) >= s)
        return f"{value / size:.3g}{name}"
    if abs(value) < 1e-3 or abs(value) >= 1e15:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.3g}"


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))
