"""What most people want to see of a run: its loss, how it is trained and how fast, the machine, and what was said."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container

from trainkit.dashboard import theme
from trainkit.dashboard.panels.charts import LossChart, MetricChart
from trainkit.dashboard.panels.lines import LogPanel, SamplePanel
from trainkit.dashboard.panels.machine import SystemPanel
from trainkit.dashboard.panels.texts import TextPanels
from trainkit.events.view import View


class Overview(Container):
    """Its children are asked for by their ids, which textual remembers: any other query walks through all of them."""

    def __init__(self, panel: str, *, id: str) -> None:
        """`panel` of text is shown where there is room for one."""
        super().__init__(id=id)
        self._panel = panel

    def compose(self) -> ComposeResult:
        with Container(id="charts"):
            yield LossChart(id="loss")
            with Container(id="small"):
                yield MetricChart("learning rate", "optimizer/learning_rate", theme.RATE, id="rate")
                yield MetricChart("gradient norm", "gradients/norm", theme.NORM, theme.NORM_BAND, id="norm")
                speed = "throughput/tokens_per_second"
                yield MetricChart("tokens/s", speed, theme.SPEED, theme.SPEED_BAND, from_zero=True, id="speed")
        yield TextPanels(self._panel)

    def show_view(self, view: View, *, now: float) -> None:
        """Show the run as of `now` (Unix seconds)."""
        self.query_one("#loss", LossChart).show_view(view)
        for name in ("#rate", "#norm", "#speed"):
            self.query_one(name, MetricChart).show_view(view)
        self.query_one("#machine", SystemPanel).show_view(view, now=now)
        self.show_words(view)

    def show_words(self, view: View) -> None:
        """Show what is to be read, and nothing else."""
        self.query_one("#log", LogPanel).show_view(view)
        self.query_one("#newest-samples", SamplePanel).show_view(view)
