"""Curves: the options for drawing them, their points in a window, smoothing, and the range of the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from trainkit.dashboard import theme
from trainkit.dashboard.charts.columns import Envelope, Floats, Points, StepRange, drawable, envelope, points
from trainkit.events.series import Series

#: The share of the highest and lowest columns that may be cut off, the columns needed for that, by how
#: much that must enlarge the rest, and the margin around the rest.
OUTLIERS, ENOUGH, GAIN, ROOM = 0.02, 40, 4.0, 0.1

#: Columns on each side that count for the trend: a share of all of them.
REACH = 1 / 40

Smoothing = Literal["auto", "0.9", "0.99", "0.999", "off"]
SMOOTHINGS: tuple[Smoothing, ...] = ("auto", "0.9", "0.99", "0.999", "off")
Range = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One series and how it is drawn.

    Attributes:
        band: the colour of the band that many points form below their smoothed line; None: no band.
        metric: its name in the log, which decides the unit of its values and the exact points that replace it.
        label: its name in the legend.
        filled: an area down to the bottom, rather than a line.
    """

    series: Series
    color: str
    band: str | None = None
    metric: str = ""
    label: str = ""
    filled: bool = False


class ChartOptions(NamedTuple):
    """A person's options for a chart: logarithmic values, smoothing, whether outliers fit on the scale."""

    log: bool = False
    smoothing: Smoothing = "auto"
    whole: bool = False


class DrawnCurve(NamedTuple):
    """A curve ready to be drawn: what was measured, and its smoothed line if it has a band."""

    curve: Curve
    raw: Envelope
    smooth: Envelope | None


def extent(curves: Sequence[Curve], *, log: bool = False) -> StepRange | None:
    """Return all steps of the curves, on a logarithmic axis from 1 on; None if they have no points."""
    there = [c.series for c in curves if len(c.series)]
    if not there:
        return None
    low = min(s.first_steps[0] if s.stride > 1 else s.steps[0] for s in there)
    high = max(s.steps[-1] for s in there)
    log = log and high >= 1
    return StepRange(max(1.0, low) if log else low, high, log)


def visible_curves(curves: Sequence[Curve], look: ChartOptions) -> list[Curve]:
    """Return the curves that have points. A single curve without a band gets one if it is to be averaged."""
    there = [curve for curve in curves if len(curve.series)]
    if len(there) == 1 and there[0].band is None and look.smoothing not in ("auto", "off"):
        return [replace(there[0], band=theme.FAINT)]
    return there


def points_to_draw(
    curve: Curve, window: StepRange, look: ChartOptions, exact: Mapping[str, Series]
) -> tuple[Points, Points | None]:
    """Return the points of a curve in the window, and its moving average if the options ask for it."""
    series, low, high = exact.get(curve.metric, curve.series), window.low, window.high
    raw = points(series, low=low, high=high, log=look.log)
    if curve.band is None or look.smoothing in ("auto", "off"):
        return raw, None
    close = series if series is not curve.series else None
    decay = float(look.smoothing)
    return raw, moving_average(curve.series, decay, exact=close, log=look.log)


def reduce_curve(
    curve: Curve, of: tuple[Points, Points | None], window: StepRange, columns: int, look: ChartOptions
) -> DrawnCurve:
    """Return the curve reduced to `columns` dot columns."""
    raw = envelope(of[0], window=window, columns=columns)
    if of[1] is not None:
        smooth = envelope(of[1], window=window, columns=columns)
        return DrawnCurve(curve, raw, replace(smooth, broken=raw.broken))
    many = curve.band is not None and len(of[0].x) > columns
    return DrawnCurve(curve, raw, trend(raw) if many and look.smoothing == "auto" else None)


def y_range(envelopes: Sequence[Envelope], *, from_zero: bool, whole: bool) -> Range:
    """Return the lowest and highest value of the axis.

    It leaves out a few outliers if the rest can then be drawn much larger, unless it must be `whole`.
    """
    drawn = [e for e in envelopes if len(e.columns)]
    if not drawn:
        return 0.0, 1.0
    low, high = min(float(e.low.min()) for e in drawn), max(float(e.high.max()) for e in drawn)
    if not whole:
        cores = [_core(e) for e in drawn]
        core_low, core_high = min(core[0] for core in cores), max(core[1] for core in cores)
        room = ROOM * (core_high - core_low)
        if high - low > GAIN * (core_high - core_low) > 0:
            low, high = max(low, core_low - room), min(high, core_high + room)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    around = abs(low) * 0.1 or 1.0
    return low - around, low + around


def _core(of: Envelope) -> Range:
    """Return the range of the values without the outermost columns, or with all if they are few."""
    left_out = int(OUTLIERS * len(of.columns)) if len(of.columns) >= ENOUGH else 0
    return float(np.sort(of.low)[left_out]), float(np.sort(of.high)[-1 - left_out])


def trend(of: Envelope) -> Envelope:
    """A smooth line through the means of the columns: local linear regression over a few of them.

    Unlike a moving average it is not drawn inwards at the ends, where a loss falls steeply (Cleveland 1979).
    """
    columns = len(of.count)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = of.total / of.count
        mean = np.log10(mean) if of.log else mean
    there = np.isfinite(mean)
    count, total = np.where(there, of.count, 0.0), np.where(there, of.count * mean, 0.0)
    reach = max(1, round(columns * REACH))
    offset = np.arange(-3 * reach, 3 * reach + 1)
    weight = np.exp(-0.5 * (offset / reach) ** 2)

    def around(values: Floats, power: int) -> Floats:
        padded = np.zeros(columns + 6 * reach)
        padded[3 * reach : -3 * reach] = values
        return np.asarray(np.correlate(padded, weight * offset**power, "valid")[there], dtype=np.float64)

    n0, n1, n2 = (around(count, power) for power in (0, 1, 2))
    t0, t1 = around(total, 0), around(total, 1)
    spread = n0 * n2 - n1**2
    flat = spread <= 1e-9 * n0**2
    smooth = np.where(flat, t0 / n0, (n2 * t0 - n1 * t1) / np.where(flat, 1, spread))
    return replace(of, columns=np.flatnonzero(there), low=smooth, high=smooth, first=smooth, last=smooth)


def moving_average(series: Series, decay: float, *, exact: Series | None = None, log: bool = False) -> Points:
    """The exponential moving average over the finite points, without the pull towards zero of its beginning (Kingma and
    Ba, "Adam", ICLR 2015, section 3). A bucket counts as so many points of its mean.

    From the first step of `exact` on, its points are taken instead of the buckets.
    """
    parts = [_means(series)] if exact is None else [_means(series, before=exact.steps[0]), _means(exact)]
    x, mean, count = (np.concatenate([part[n] for part in parts]) for n in range(3))
    kept = decay**count
    value, past = (1 - kept) * mean, kept.copy()
    # each pass joins runs of buckets twice as long: all of them after log2(n) passes
    reach = 1
    while reach < len(x) and past[reach:].any():
        value[reach:] += past[reach:] * value[:-reach]
        past[reach:] *= past[:-reach]
        reach *= 2
    y = value / (1 - past)
    good = drawable(y, log)
    none = np.empty(0)
    return Points(x[good], y[good], none, none, none, none, log)


def _means(series: Series, *, before: float = np.inf) -> tuple[Floats, Floats, Floats]:
    """(last step, mean, number of points) of the buckets with finite points that end before a step."""
    steps, values = np.frombuffer(series.steps), np.frombuffer(series.values)
    if series.stride == 1:
        there = np.isfinite(values) & (steps < before)
        return steps[there], values[there], np.ones(int(there.sum()))
    count = np.frombuffer(series.counts)
    there = (count > 0) & (steps < before)
    return steps[there], np.frombuffer(series.totals)[there] / count[there], count[there]
