"""One metric as a small chart of the grid."""

from __future__ import annotations

from typing import NamedTuple

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.keys import SELECTED
from trainkit.dashboard.charts.titles import Part
from trainkit.events.view import View
from trainkit.text import one_line

#: The group's colours: the line's and that of the band around it.
COLORS = {
    "train": (theme.TRAIN, theme.TRAIN_BAND),
    "optimizer": (theme.RATE, None),
    **dict.fromkeys(("gradients", "parameters", "updates"), (theme.NORM, theme.NORM_BAND)),
    "throughput": (theme.SPEED, theme.SPEED_BAND),
}


class GridCell(NamedTuple):
    """How a metric stands in the grid."""

    pinned: bool
    selected: bool
    alone: bool


class MetricCell(Chart):
    """One metric of the grid."""

    def show_metric(self, metric: str, view: View, place: GridCell) -> None:
        """Show the view's series of this metric."""
        self.key = metric
        self.set_class(place.selected, SELECTED)
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
