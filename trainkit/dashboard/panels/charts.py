"""The charts of the overview: which series of the view each shows."""

from __future__ import annotations

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.plot import MARKS
from trainkit.events.view import View

__all__ = ["MARKS", "LossChart", "MetricChart"]

LOSS = "train/loss"


class LossChart(Chart):
    """Training loss as a band with its trend, validation losses as lines on it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(key=LOSS, id=id)

    def show_view(self, view: View) -> None:
        """Show the view's losses."""
        curves = []
        if train := view.series.get(LOSS):
            curves.append(Curve(train, theme.TRAIN, theme.TRAIN_BAND, metric=LOSS, label="train"))
        for index, name in enumerate(view.validation_sets()):
            color, metric = theme.VALIDATION[index % len(theme.VALIDATION)], f"validation/{name}/loss"
            curves.append(Curve(view.series[metric], color, metric=metric, label=name))
        self.show(curves, marks=view.markers, title="loss")


class MetricChart(Chart):
    """One metric."""

    def __init__(
        self, title: str, metric: str, color: str, band: str | None = None, *, from_zero: bool = False, id: str
    ) -> None:
        super().__init__(key=metric, id=id, from_zero=from_zero)
        self._name, self._color, self._band = title, color, band

    def show_view(self, view: View) -> None:
        """Show the view's series of this metric."""
        series = view.series.get(self.key)
        curves = [Curve(series, self._color, self._band, metric=self.key)] if series else []
        self.show(curves, title=self._name)
