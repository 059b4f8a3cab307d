"""One metric as a small chart, with its last and best value and its change on the border."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from textual.content import Content

from trainkit.dashboard import theme, ticks
from trainkit.dashboard.chart import Chart, Curve, Mark
from trainkit.dashboard.panels.charts import MARKS
from trainkit.events import plain
from trainkit.events.series import Series
from trainkit.events.view import View

Goal = Literal["min", "max"] | None
Part = tuple[str, str]

#: The last words of a metric of which less, or more, is better.
LESS = re.compile(r"loss|perplexity|bits_per_byte|error|data_wait")
MORE = re.compile(r"accuracy|reward|score|margin|f1$|mfu$")
#: A chart is drawn anew when it has grown by this share, which is less than a dot, or after so many seconds.
GROWN, LATE = 1e-3, 10.0
#: The group's colours: the line's and that of the band around it.
COLORS = {
    "train": (theme.TRAIN, theme.TRAIN_BAND),
    "optimizer": (theme.RATE, None),
    **dict.fromkeys(("gradients", "parameters", "updates"), (theme.NORM, theme.NORM_BAND)),
    "throughput": (theme.SPEED, theme.SPEED_BAND),
}


class Summary(NamedTuple):
    """What a title tells of a series; `change` is the last tenth's mean and the mean of the tenth before it."""

    low: float
    low_at: float
    high: float
    high_at: float
    change: tuple[float, float] | None


class Look(NamedTuple):
    """How a cell is shown; `width` is what its borders have for text, in cells."""

    width: int
    log: bool
    pinned: bool
    selected: bool
    whole: bool


def goal(metric: str) -> Goal:
    """Whether the lowest or the highest value is the best one; None where neither is."""
    last = metric.rpartition("/")[2]
    if LESS.search(last) or metric == "time/step":
        return "min"
    return "max" if MORE.search(last) or metric.startswith("throughput/") else None


def summary(series: Series) -> Summary | None:
    """The extremes and the change of the finite values; None where there are none. A few passes over the data."""
    if not len(series):
        return None
    steps, values = np.frombuffer(series.steps), np.frombuffer(series.values)
    if not (finite := np.isfinite(values)).all():
        steps, values = steps[finite], values[finite]
    if not len(values):
        return None
    low, high = int(values.argmin()), int(values.argmax())
    extremes = float(values[low]), float(steps[low]), float(values[high]), float(steps[high])
    return Summary(*extremes, _change(steps, values))


class MetricCell(Chart):
    """One metric of the grid. What it shows is drawn anew only when that can be seen; the last value is always told."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = ""
        self._of: object = None
        self._drawn = self._length = -1
        self._drawn_at = 0.0
        self._summary: Summary | None = None

    def show_metric(self, metric: str, view: View, look: Look, *, now: float) -> None:
        """Show the view's series of this metric as of `now` (Unix seconds)."""
        series = view.series[metric]
        other = self._of != (metric, id(series), look)
        if series.version == self._drawn and not other:
            return
        self.metric, self._of = metric, (metric, id(series), look)
        grown = series.version - self._drawn >= GROWN * len(series) or len(series) < self._length
        if other or grown or now - self._drawn_at >= LATE:
            self._drawn, self._length, self._drawn_at = series.version, len(series), now
            self._summary = summary(series)
            marks = [Mark(m.step, *MARKS[m.kind]) for m in view.markers if m.kind in MARKS] if look.whole else []
            self.show([_curve(metric, view)], marks=marks, log=look.log)
        self._entitle(metric, series, look)

    def _entitle(self, metric: str, series: Series, look: Look) -> None:
        last = f"  {told_value(metric, series.values[-1])}" if len(series) else ""
        star = "★ " if look.pinned else ""
        name = _fit(one_line(metric), look.width - cell_len(star + last))
        color = theme.BRIGHT if look.selected else theme.DIM
        self.border_title = Content.assemble((star, theme.WARN), (name, color), (last, theme.TEXT))
        told = _told(metric, self._summary, look) if self._summary else []
        self.border_subtitle = Content.assemble(*([("log  ", theme.WARN)] if look.log else []), *told)
        self.set_class(look.selected, "-selected")


def one_line(text: str) -> str:
    """`text` inert and without line feeds."""
    return plain.inert(text).replace("\n", "␊")


def told_value(metric: str, value: float) -> str:
    """A value in few characters; memory in bytes."""
    if metric.startswith("memory/") and math.isfinite(value):
        return plain.bytes_(value)
    if 1e-3 <= abs(value) < 1e4:
        return plain.quantity(value)
    return plain.count(value) if 1e4 <= abs(value) < 1e15 else ticks.short(value)


def _curve(metric: str, view: View) -> Curve:
    group, _, rest = metric.partition("/")
    if group == "validation":
        sets = view.validation_sets()
        index = next((i for i, name in enumerate(sets) if rest.startswith(f"{name}/")), len(sets))
        return Curve(view.series[metric], theme.VALIDATION[index % len(theme.VALIDATION)])
    color, band = COLORS.get(group, (theme.TEXT, theme.FAINT))
    return Curve(view.series[metric], color, band)


def _told(metric: str, found: Summary, look: Look) -> list[Part]:
    """The best value and where it was, and the change: as much of it as there is room for."""
    which, low, high = goal(metric), told_value(metric, found.low), told_value(metric, found.high)
    if which is None:
        best = [f"min {low}  max {high}"]
    else:
        value, at = (low, found.low_at) if which == "min" else (high, found.high_at)
        best = [f"best ({which}) {value} at step {at:,.0f}", f"{which} {value} at {at:,.0f}", f"{which} {value}"]
    change, color = _told_change(metric, found, which)
    room = look.width - 5 * look.log - len(change) - 2
    text = next((text for text in best if len(text) <= room), "")
    return [(text, theme.DIM), ("  " if text and change else "", theme.DIM), (change, color)]


def _told_change(metric: str, found: Summary, which: Goal) -> Part:
    if found.change is None:
        return "", theme.DIM
    now, before = found.change
    share = (now - before) / abs(before) if before else math.nan
    amount = f"{abs(share):.1%}" if abs(share) < 10 else told_value(metric, abs(now - before))
    if now == before or amount == "0.0%":
        return "→ 0.0%", theme.DIM
    color = theme.DIM if which is None else theme.GOOD if (now < before) == (which == "min") else theme.WARN
    return f"{'↑' if now > before else '↓'} {amount}", color


def _change(steps: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    tenth = (steps[-1] - steps[0]) / 10
    before, now = np.searchsorted(steps, [steps[-1] - 2 * tenth, steps[-1] - tenth], side="right")
    if before == now or now == len(values):
        return None
    with np.errstate(over="ignore"):
        means = float(values[now:].mean()), float(values[before:now].mean())
    return means if all(map(math.isfinite, means)) else None


def _fit(text: str, width: int) -> str:
    """The end of `text`, which tells more than its beginning, in at most `width` cells."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) + 1 > width:
        text = text[1:]
    text = text[max(0, text.find("/", 0, 4)) :]
    return f"…{text}" if width > 0 else ""
