"""Curves: how a person wants them drawn, what of their points falls into a picture, and the range of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from trainkit.dashboard import theme
from trainkit.dashboard.charts.columns import Envelope, Points, StepRange, envelope, moving_average, points, trend
from trainkit.events.series import Series

#: The share of a curve's columns on either side that may be cut off, the number of columns that it takes, how much
#: larger the rest must then be drawn, and the room left around it.
OUTLIERS, ENOUGH, GAIN, ROOM = 0.02, 40, 4.0, 0.1

Smoothing = Literal["auto", "0.9", "0.99", "0.999", "off"]
SMOOTHINGS: tuple[Smoothing, ...] = ("auto", "0.9", "0.99", "0.999", "off")
Range = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One series and how it is drawn.

    Attributes:
        band: where there is one, many points are a band of this colour, and what smooths them a line on it.
        metric: its name in the log, which says how values are told and where exact points are to be looked for.
        label: what a legend calls it.
        filled: an area down to the bottom, rather than a line.
    """

    series: Series
    color: str
    band: str | None = None
    metric: str = ""
    label: str = ""
    filled: bool = False


class ChartOptions(NamedTuple):
    """How a person wants a chart: values on a logarithmic axis; what smooths; outliers drawn, whatever that costs."""

    log: bool = False
    smoothing: Smoothing = "auto"
    whole: bool = False


class DrawnCurve(NamedTuple):
    """A curve as it is drawn: what was measured, and what smooths that, where there is a band."""

    curve: Curve
    raw: Envelope
    smooth: Envelope | None


def extent(curves: Sequence[Curve], *, log: bool = False) -> StepRange | None:
    """All steps of the curves; on a logarithmic axis from 1 on."""
    there = [c.series for c in curves if len(c.series)]
    if not there:
        return None
    low = min(s.first_steps[0] if s.stride > 1 else s.steps[0] for s in there)
    high = max(s.steps[-1] for s in there)
    log = log and high >= 1
    return StepRange(max(1.0, low) if log else low, high, log)


def visible_curves(curves: Sequence[Curve], look: ChartOptions) -> list[Curve]:
    """Those that have points. One that is alone and has no band gets one, where it is to be averaged."""
    there = [curve for curve in curves if len(curve.series)]
    if len(there) == 1 and there[0].band is None and look.smoothing not in ("auto", "off"):
        return [replace(there[0], band=theme.FAINT)]
    return there


def points_to_draw(
    curve: Curve, window: StepRange, look: ChartOptions, exact: Mapping[str, Series]
) -> tuple[Points, Points | None]:
    """What is to be drawn of a curve, and its moving average where that is asked for."""
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
    """What of a curve's points falls on each of so many dot columns."""
    raw = envelope(of[0], window=window, columns=columns)
    if of[1] is not None:
        smooth = envelope(of[1], window=window, columns=columns)
        return DrawnCurve(curve, raw, replace(smooth, broken=raw.broken))
    many = curve.band is not None and len(of[0].x) > columns
    return DrawnCurve(curve, raw, trend(raw) if many and look.smoothing == "auto" else None)


def y_range(envelopes: Sequence[Envelope], *, from_zero: bool, whole: bool) -> Range:
    """What the left axis goes from and to.

    Unless it is to be the `whole`, some outliers are left out where the rest can be drawn much larger then.
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
    """The range without the outermost columns; with all of them where they are few."""
    left_out = int(OUTLIERS * len(of.columns)) if len(of.columns) >= ENOUGH else 0
    return float(np.sort(of.low)[left_out]), float(np.sort(of.high)[-1 - left_out])
