"""The four charts: which series of the view each shows, and what its title says."""

from __future__ import annotations

import math

from textual.content import Content

from trainkit.dashboard import theme, ticks
from trainkit.dashboard.chart import Chart, Curve, Mark
from trainkit.events import plain
from trainkit.events.series import Series
from trainkit.events.view import View

MARKS = {"checkpoint": ("◆", theme.BUSY), "resume": ("▲", theme.WARN), "alert": ("!", theme.BAD)}

Part = tuple[str, str]


class LossChart(Chart):
    """Training loss as a band with its trend, validation losses as lines on it."""

    BORDER_TITLE = "loss"

    def show_view(self, view: View, *, log: bool) -> None:
        """Show the view's losses, on a logarithmic axis if `log`."""
        curves, legend = [], []
        if train := view.series.get("train/loss"):
            curves.append(Curve(train, theme.TRAIN, theme.TRAIN_BAND))
            legend.append([("━ ", theme.TRAIN), ("train ", theme.DIM), (plain.quantity(train.values[-1]), theme.TEXT)])
        for index, name in enumerate(view.validation_sets()):
            series = view.series[f"validation/{name}/loss"]
            color = theme.VALIDATION[index % len(theme.VALIDATION)]
            curves.append(Curve(series, color))
            newest = (plain.quantity(series.values[-1]), theme.TEXT)
            legend.append([("━ ", color), (f"{plain.inert(name)} ", theme.DIM), newest, *_best(series)])
        self.border_subtitle = "log scale" if log else ""
        _entitle(self, "loss", legend)
        marks = [Mark(m.step, *MARKS[m.kind]) for m in view.markers if m.kind in MARKS]
        self.show(curves, marks=marks, log=log)


class MetricChart(Chart):
    """One metric."""

    def __init__(
        self, title: str, metric: str, color: str, band: str | None = None, *, from_zero: bool = False, id: str
    ) -> None:
        super().__init__(id=id, from_zero=from_zero)
        self._title, self._metric, self._color, self._band = title, metric, color, band
        self.border_title = Content(title)

    def show_view(self, view: View) -> None:
        """Show the view's series of this metric."""
        series = view.series.get(self._metric)
        if not series:
            self.show([])
            return
        _entitle(self, self._title, [[(ticks.short(series.values[-1]), theme.TEXT)]])
        self.show([Curve(series, self._color, self._band)])


def _best(series: Series) -> list[Part]:
    """The lowest value and its step, where it is not the last."""
    steps, values = series.steps, series.values
    best = min((i for i, value in enumerate(values) if math.isfinite(value)), key=values.__getitem__, default=None)
    if best is None or best == len(values) - 1:
        return []
    return [(f" (best {plain.quantity(values[best])} at {steps[best]:,.0f})", theme.DIM)]


def _entitle(chart: Chart, title: str, legend: list[list[Part]]) -> None:
    parts: list[Part] = [part for entry in legend for part in [("  ", theme.DIM), *entry]]
    content = Content.assemble((title, theme.DIM), *parts)
    if content.markup != chart.border_title:
        chart.border_title = content
