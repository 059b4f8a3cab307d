"""The texts on the borders of a chart: last and best values, changes, values under the crosshair."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from rich.cells import cell_len
from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.charts import ticks
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.plot import letter
from trainkit.events.series import Series
from trainkit.text import format_bytes, format_count, format_quantity, neutralise

Goal = Literal["min", "max"] | None
Part = tuple[str, str]

#: The last words of a metric of which less, or more, is better, and of one that is a share.
LESS = re.compile(r"loss|perplexity|bits_per_byte|error|data_wait")
MORE = re.compile(r"accuracy|reward|score|margin|precision|recall|f1|mcc|auroc|r_squared|pearson|spearman|mrr|mfu$")
#: Metrics that tell how fast single steps are.
TIMED = ("throughput/", "time/")
#: The units of metrics, by the beginnings of their names.
SUFFIXES = {"time/": "s", "power/": "W", "temperature/": "°C"}
SHARE = re.compile(r"accuracy|mfu$|share$")


class TitlePart(NamedTuple):
    """Part of a title; of those that find no room, the one with the highest rank is the first to go."""

    rank: int
    parts: Sequence[Part]


class CurveSummary(NamedTuple):
    """The finite values of a curve in a window. `change` has the means of the first and of the last tenth, None for a
    single point; `median` is that of the points, or of the means of buckets."""

    last: float
    low: float
    low_at: float
    high: float
    high_at: float
    change: tuple[float, float] | None
    median: float


class CrosshairReading(NamedTuple):
    """The lowest and highest value of a curve at a crosshair if it has one `here`, otherwise the last value before.

    `at` is the step of the value.
    """

    low: float
    high: float
    at: float
    here: bool


def goal(metric: str) -> Goal:
    """Return whether the lowest or the highest value is the best; None if neither is."""
    last = metric.rpartition("/")[2]
    if LESS.search(last) or metric == "time/step":
        return "min"
    return "max" if MORE.search(last) or metric.startswith("throughput/") else None


def unit(metric: str) -> ticks.Unit:
    """Return what an axis of this metric counts."""
    return "B" if metric.startswith("memory/") else "%" if SHARE.search(metric) else ""


def format_value(metric: str, value: float) -> str:
    """Return a value in few characters with its unit: memory in bytes, shares in per cent, times in seconds, …"""
    if suffix := next((suffix for prefix, suffix in SUFFIXES.items() if metric.startswith(prefix)), ""):
        return f"{format_value('', value)} {suffix}"
    if not math.isfinite(value):
        return format_quantity(value)
    if unit(metric) == "B":
        return format_bytes(value)
    if unit(metric) == "%":
        return f"{100 * value:.2f}%"
    if 1e-3 <= abs(value) < 1e4:
        return format_quantity(value)
    return format_count(value) if 1e4 <= abs(value) < 1e15 else ticks.short(value)


def summarize(series: Series, window: StepRange | None = None) -> CurveSummary | None:
    """Return a summary of the buckets that end in the window (None: all); None if no value is finite."""
    steps = np.frombuffer(series.steps) if len(series) else np.empty(0)
    begin, end = 0 if window is None else int(np.searchsorted(steps, window.low)), _ending(series, window)
    thinned = series.stride > 1
    there = slice(begin, end)

    def part(name: str, otherwise: str) -> np.ndarray:
        return np.frombuffer(getattr(series, name if thinned else otherwise))[there]

    if begin >= end:
        return None
    good = np.isfinite(part("lows", "values"))
    if not good.any():
        return None
    low, low_at, high, high_at = (
        part(name, otherwise)[good]
        for name, otherwise in (("lows", "values"), ("low_at", "steps"), ("highs", "values"), ("high_at", "steps"))
    )
    count = part("counts", "values")[good] if thinned else np.ones(len(low))
    total = part("totals", "values")[good]
    lowest, highest = int(low.argmin()), int(high.argmax())
    return CurveSummary(
        last=series.values[end - 1],
        low=float(low[lowest]), low_at=float(low_at[lowest]),
        high=float(high[highest]), high_at=float(high_at[highest]),
        change=_change(steps[there][good], total, count),
        median=float(np.median(total / count)),
    )  # fmt: skip


def last(series: Series, window: StepRange | None = None) -> float | None:
    """Return the last value up to the end of the window (None: of all); None if there is none."""
    end = _ending(series, window)
    return series.values[end - 1] if end else None


def value_range(series: Series, low: float, high: float) -> CrosshairReading | None:
    """Return what the series has from step `low` up to `high`, exclusive; None if it starts later."""
    if not len(series):
        return None
    steps = np.frombuffer(series.steps)
    firsts = np.frombuffer(series.first_steps) if series.stride > 1 else steps
    begin, end = int(np.searchsorted(steps, low)), int(np.searchsorted(firsts, high))
    if begin >= end:
        if not end:
            return None
        value = series.values[end - 1]
        return CrosshairReading(value, value, float(steps[end - 1]), False)
    name = ("lows", "highs") if series.stride > 1 else ("values", "values")
    least, most = (np.frombuffer(getattr(series, n))[begin:end] for n in name)
    finite = np.isfinite(least)
    if not finite.any():
        return CrosshairReading(math.nan, math.nan, float(steps[begin]), True)
    return CrosshairReading(float(least[finite].min()), float(most[finite].max()), float(steps[begin]), True)


def fit_parts(pieces: Sequence[TitlePart], width: int) -> Content:
    """Return the pieces that fit into `width` cells, two cells apart; at least one, cut if necessary."""
    kept = [(piece, length) for piece in pieces if (length := sum(cell_len(text) for text, _ in piece.parts))]
    while len(kept) > 1 and sum(length + 2 for _, length in kept) - 2 > width:
        kept.remove(max(reversed(kept), key=lambda entry: entry[0].rank))
    parts: list[Part] = []
    for piece, _ in kept:
        parts += [("  ", theme.DIM), *piece.parts] if parts else piece.parts
    return Content.assemble(*parts).truncate(max(0, width), ellipsis=True)


def legend(curve: Curve, index: int, *, letters: bool) -> list[Part]:
    """Return the sign of a curve in the legend, and its name."""
    sign = "━" if not letters else letter(index) if index else "⠿"
    return [(f"{sign} ", curve.color), (f"{neutralise(curve.label)} ", theme.DIM)]


def format_reading(metric: str, found: CrosshairReading | None) -> Part:
    """Return the value or values under the crosshair."""
    if found is None:
        return "–", theme.DIM
    low, high = format_value(metric, found.low), format_value(metric, found.high)
    if not found.here:
        return f"{low} at step {found.at:,.0f}", theme.DIM
    return (low if low == high else f"{low}–{high}"), theme.BRIGHT


def format_best(metric: str, found: CurveSummary) -> str:
    """Return the best value and its step; the extremes of a metric without a better direction; the median of speeds and
    times, because the best is that of a single step, such as the first after a pause."""
    if metric.startswith(TIMED):
        return f"median {format_value(metric, found.median)}"
    which, low, high = goal(metric), format_value(metric, found.low), format_value(metric, found.high)
    if which is None:
        return f"min {low}  max {high}"
    value, at = (low, found.low_at) if which == "min" else (high, found.high_at)
    return f"best {value} at step {at:,.0f}"


def format_change(metric: str, found: CurveSummary) -> Part:
    """Return how much the mean of the last tenth of the window differs from that of the first."""
    if found.change is None:
        return "", theme.DIM
    before, now = found.change
    share = (now - before) / abs(before) if before else math.nan
    amount = f"{abs(share):.1%}" if abs(share) < 10 else format_value(metric, abs(now - before))
    if now == before or amount == "0.0%":
        return "Δ 0.0%", theme.DIM
    which = goal(metric)
    color = theme.DIM if which is None else theme.GOOD if (now < before) == (which == "min") else theme.WARN
    return f"Δ {'+' if now > before else '−'}{amount}", color


def shorten(text: str, width: int) -> str:
    """Return as much of `text` as fits into `width` cells; a path keeps its end, which says more."""
    if cell_len(text) <= width:
        return text
    if "/" not in text:
        return Content(text).truncate(max(0, width), ellipsis=True).plain
    while text and cell_len(text) + 1 > width:
        text = text[1:]
    text = text[max(0, text.find("/", 0, 4)) :]
    return f"…{text}" if width > 0 else ""


def _ending(series: Series, window: StepRange | None) -> int:
    """How many of the buckets end where the window does, or before."""
    return len(series) if window is None else bisect_right(series.steps, window.high + 1e-9)


def _change(steps: np.ndarray, total: np.ndarray, count: np.ndarray) -> tuple[float, float] | None:
    if len(steps) < 2:
        return None
    tenth = (steps[-1] - steps[0]) / 10
    before, now = np.searchsorted(steps, [steps[0] + tenth, steps[-1] - tenth], side="right")
    before, now = max(1, int(before)), min(len(steps) - 1, int(now))
    with np.errstate(over="ignore", invalid="ignore"):
        means = float(total[:before].sum() / count[:before].sum()), float(total[now:].sum() / count[now:].sum())
    return means if all(map(math.isfinite, means)) else None
