"""The overview of a run: loss, learning rate, gradient norm and speed; machine, log and samples."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.panels.lines import LogPanel, SamplePanel, TextPanel
from trainkit.dashboard.panels.machine import SystemPanel
from trainkit.events.view import View

LOSS = "train/loss"
#: How fast a run is: the second where its task has no tokens.
TOKENS, SAMPLES = "throughput/tokens_per_second", "throughput/samples_per_second"
#: The panels below the charts by name, in order; the width from which they are side by side.
PANELS: dict[str, type[Any]] = {"machine": SystemPanel, "log": LogPanel, "samples": SamplePanel}
WIDE = 110


class Overview(Container):
    """The first page. It queries children by id, which textual caches; any other query walks through all of them."""

    def __init__(self, panel: str, *, id: str) -> None:
        """`panel` is the text panel that is shown if only one fits."""
        super().__init__(id=id)
        self._panel = panel

    def compose(self) -> ComposeResult:
        with Container(id="charts"):
            yield LossChart(id="loss")
            with Container(id="small"):
                yield MetricChart("learning rate", "optimizer/learning_rate", theme.RATE, id="rate")
                yield MetricChart("gradient norm", "gradients/norm", theme.NORM, theme.NORM_BAND, id="norm")
                yield MetricChart("tokens/s", TOKENS, theme.SPEED, theme.SPEED_BAND, from_zero=True, id="speed")
        yield TextPanels(self._panel)

    def show_view(self, view: View, *, now: float) -> None:
        """Show the run as of `now` (Unix seconds)."""
        self.query_one("#loss", LossChart).show_view(view)
        has_tokens = TOKENS in view.series or SAMPLES not in view.series
        self.query_one("#speed", MetricChart).follow(*(("tokens/s", TOKENS) if has_tokens else ("samples/s", SAMPLES)))
        for name in ("#rate", "#norm", "#speed"):
            self.query_one(name, MetricChart).show_view(view)
        self.show_panels(view, now=now)

    def show_panels(self, view: View, *, now: float) -> None:
        """Show the panels below the charts, and leave the charts as they are."""
        for name, panel in PANELS.items():
            self.query_one(f"#{name}-panel", panel).show_view(view, now=now)


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

    def follow(self, title: str, metric: str) -> None:
        """Show another metric from the next `show_view` on."""
        self._name, self.key = title, metric

    def show_view(self, view: View) -> None:
        """Show the view's series of the metric."""
        series = view.series.get(self.key)
        curves = [Curve(series, self._color, self._band, metric=self.key)] if series else []
        self.show(curves, title=self._name)


class TextPanels(Container):
    """Attributes:
    shown: the name of the panel that is shown if only one fits; the style sheet knows it by its class `-shown`.
    """

    def __init__(self, shown: str) -> None:
        """The log is shown if no panel has the name `shown`."""
        self.shown = shown if shown in PANELS else "log"
        super().__init__(id="texts")

    def compose(self) -> ComposeResult:
        for name, panel in PANELS.items():
            found = panel(id=f"{name}-panel")
            found.set_class(name == self.shown, "-shown")
            yield found

    def turn(self) -> None:
        """Show the next panel."""
        self.shown = _after(self.shown)
        for name in PANELS:
            self.query_one(f"#{name}-panel").set_class(name == self.shown, "-shown")

    def scroll_lines(self, lines: int) -> None:
        """Scroll the panel that is shown; the log, if all are shown or that panel does not scroll."""
        one = self.size.width < WIDE and issubclass(PANELS[self.shown], TextPanel)
        self.query_one(f"#{self.shown if one else 'log'}-panel").scroll_relative(y=lines, animate=False)

    def on_resize(self, event: Resize) -> None:
        """If only one panel fits, write on it the key that shows the next."""
        for name in PANELS:
            self.query_one(f"#{name}-panel").border_subtitle = (
                "" if event.size.width >= WIDE else f"tab: {_after(name)}"
            )


def _after(name: str) -> str:
    names = list(PANELS)
    return names[(names.index(name) + 1) % len(names)]
