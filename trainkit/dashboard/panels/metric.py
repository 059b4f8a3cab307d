"""One metric as a small chart of the grid."""

from __future__ import annotations

from typing import NamedTuple

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.keys import SELECTED
from trainkit.dashboard.charts.titles import Part
from trainkit.events.plain import one_line
from trainkit.events.view import View

#: A chart is drawn anew when it has grown by this share, which is less than a dot, or after so many seconds. Charts
#: that were drawn at once wait longer the first time, each by another share of these seconds, so that they are not due
#: at once again: multiples of the golden ratio conjugate are spread evenly, however many there are.
GROWN, LATE, APART = 1e-3, 10.0, 0.618034
#: The group's colours: the line's and that of the band around it.
COLORS = {
    "train": (theme.TRAIN, theme.TRAIN_BAND),
    "optimizer": (theme.RATE, None),
    **dict.fromkeys(("gradients", "parameters", "updates"), (theme.NORM, theme.NORM_BAND)),
    "throughput": (theme.SPEED, theme.SPEED_BAND),
}


class Place(NamedTuple):
    """How a metric stands in the grid."""

    pinned: bool
    selected: bool
    alone: bool


class MetricCell(Chart):
    """One metric of the grid. What it shows is drawn anew only when that can be seen; the last value is always told."""

    def __init__(self, number: int) -> None:
        """`number`: how many others there were before."""
        super().__init__()
        self._of: object = None
        self._version, self._length = -1, -1
        self._wait, self._drawn_at = LATE * (number * APART % 1), 0.0

    def show_metric(self, metric: str, view: View, place: Place, *, now: float) -> None:
        """Show the view's series of this metric as of `now` (Unix seconds)."""
        series = view.series[metric]
        self.key = metric
        self.set_class(place.selected, SELECTED)
        of = (metric, id(series), place, self.viewport.version)
        if series.version == self._version and of == self._of:
            return
        grown = series.version - self._version >= GROWN * len(series) * series.stride or len(series) < self._length
        if of == self._of and not grown and now - self._drawn_at < LATE:
            self.entitle()
            return
        self._drawn_at = now if of == self._of else now + self._wait
        self._of, self._version, self._length = of, series.version, len(series)
        star: list[Part] = [("★ ", theme.WARN)] if place.pinned else []
        title = [*star, (one_line(metric), theme.BRIGHT if place.selected else theme.DIM)]
        self.show([_curve(metric, view)], marks=view.markers if place.alone else (), title=title)


def _curve(metric: str, view: View) -> Curve:
    group, _, rest = metric.partition("/")
    series = view.series[metric]
    if group == "validation":
        sets = view.validation_sets()
        index = next((i for i, name in enumerate(sets) if rest.startswith(f"{name}/")), len(sets))
        return Curve(series, theme.VALIDATION[index % len(theme.VALIDATION)], metric=metric)
    color, band = COLORS.get(group, (theme.TEXT, theme.FAINT))
    return Curve(series, color, band, metric=metric)
