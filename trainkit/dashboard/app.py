"""The dashboard: one screen that follows a run's log and passes orders on. Quitting it leaves the run alone."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.notifications import SeverityLevel
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Footer

from trainkit.dashboard import theme
from trainkit.dashboard.pages import PAGES, Page
from trainkit.dashboard.panels.charts import LossChart, MetricChart
from trainkit.dashboard.panels.header import Header
from trainkit.dashboard.panels.lines import LogLines, SampleLines
from trainkit.dashboard.panels.machine import Machine
from trainkit.dashboard.panels.tabs import Tabs
from trainkit.dashboard.picture import export_svg, once
from trainkit.dashboard.replay import Replay
from trainkit.dashboard.screens import ConfirmStop, GoTo, Help
from trainkit.dashboard.source import Source
from trainkit.errors import TrainkitError
from trainkit.events.control import Name, Reply, send
from trainkit.events.view import State

__all__ = ["Dashboard", "export_svg", "once", "watch"]

#: Seconds between two looks at the log, between two drawings of the charts, and of reading at a time.
POLL, DRAW, READ = 0.25, 1.0, 0.03
#: The viewer steps back for the trainer, which may want every core.
NICENESS = 10
#: The pages in the order of their keys.
NAMES = ("overview", *(page.NAME for page in PAGES))
#: The panels of text, side by side on a screen of at least so many cells, else one at a time.
PANELS, WIDE = ("machine", "log", "samples"), 110


class Dashboard(App[None]):
    """One run on one screen."""

    TITLE = "trainkit"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS_PATH = "dashboard.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (78, "-medium"), (WIDE, "-wide")]  # noqa: RUF012 (as textual declares it)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (23, "-middle"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "detach", "detach"),
        Binding("ctrl+c,ctrl+q", "detach", show=False, priority=True),
        Binding("S", "stop", "stop", key_display="S"),
        Binding("c", "order('save')", "save"),
        Binding("p", "pause", "pause"),
        Binding("e", "order('evaluate')", "evaluate"),
        Binding("l", "log_scale", show=False),
        Binding("tab", "next_panel", show=False, priority=True),
        *(Binding(str(number), f"page({number})", show=False) for number in range(1, 10)),
        Binding("space", "play", show=False),
        Binding("full_stop,greater_than_sign", "speed(1)", show=False),
        Binding("comma,less_than_sign", "speed(-1)", show=False),
        Binding("left,h", "seek(-1)", show=False),
        Binding("right", "seek(1)", show=False),
        Binding("G", "go_to_step", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, run_directory: Path, *, replay: Replay | None = None, readonly: bool = False) -> None:
        """With `replay` the run is shown as it went; with it, or `readonly`, nothing can be ordered."""
        super().__init__()
        theme.install(self)
        self._directory = run_directory
        self._source = replay or Source(run_directory)
        self._replay, self._readonly = replay, readonly or replay is not None
        self._replies: queue.SimpleQueue[tuple[Name, Reply | TrainkitError]] = queue.SimpleQueue()
        self._log_scale = False
        self._drawn = 0.0
        self._more: Timer | None = None
        #: The signal that ended the dashboard, if one did.
        self.signal: int | None = None

    def compose(self) -> ComposeResult:
        yield Header()
        yield Tabs(NAMES)
        with ContentSwitcher(initial=NAMES[0], id="pages"):
            with Container(id=NAMES[0]):
                with Container(id="charts"):
                    yield LossChart(id="loss")
                    with Container(id="small"):
                        rate = "optimizer/learning_rate"
                        yield MetricChart("learning rate", rate, theme.RATE, id="rate")
                        yield MetricChart("gradient norm", "gradients/norm", theme.NORM, theme.NORM_BAND, id="norm")
                        speed = "throughput/tokens_per_second"
                        yield MetricChart("tokens/s", speed, theme.SPEED, theme.SPEED_BAND, from_zero=True, id="speed")
                with Container(id="texts", classes="log"):
                    yield Machine(id="machine")
                    yield LogLines(id="log")
                    yield SampleLines(id="newest-samples")
            for page in PAGES:
                yield page(self._directory)
        yield Footer()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._end_by_signal, number)
        self.set_interval(POLL, self.poll)
        self.poll()

    def on_resize(self, event: Resize) -> None:
        """Where there is room for one panel of text only, each says how to get to the next."""
        for name, panel in zip(PANELS, self.screen_stack[0].query_one("#texts").children, strict=True):
            following = PANELS[(PANELS.index(name) + 1) % len(PANELS)]
            panel.border_subtitle = "" if event.size.width >= WIDE else f"tab: {following}"

    @property
    def state(self) -> State:
        """What the run is doing, as far as the log has been read."""
        return self._source.state(self._source.now())

    def poll(self) -> None:
        """Read what is new, show it, and tell what became of orders."""
        loading = self._source.advance(seconds=READ)
        if loading and self._more is None:
            self._more = self.set_timer(0.01, self._read_on)
        self.show(loading=loading)
        self._tell_replies()

    def _read_on(self) -> None:
        """Read a long log slice after slice; keys and timers have their turn between."""
        self._more = None
        if self._source.advance(seconds=READ):
            self._more = self.set_timer(0.01, self._read_on)

    def show(self, *, loading: bool = False, everything: bool = False) -> None:
        """Draw the view; the charts only so often, unless `everything` is to be drawn."""
        view, now = self._source.view, self._source.now()
        screen = self.screen_stack[0]
        if not screen.query(Header):
            return  # the last tick of the clock while the app closes: its widgets have gone before it
        screen.query_one(Header).show(view, state=self._source.state(now), now=now, loading=loading)
        if self._replay:
            screen.query_one(Tabs).tell(_told(self._replay))
        if not everything and time.monotonic() - self._drawn < DRAW:
            return
        self._drawn = time.monotonic()
        if (shown := screen.query_one(ContentSwitcher).current) != NAMES[0]:
            screen.query_one(f"#{shown}", Page).show_view(view, now=now)
            return
        screen.query_one(LossChart).show_view(view, log=self._log_scale)
        for chart in screen.query(MetricChart):
            chart.show_view(view)
        screen.query_one(Machine).show_view(view, now=now)
        screen.query_one(LogLines).show_view(view)
        screen.query_one(SampleLines).show_view(view)

    def load(self) -> None:
        """Read the whole log and show it."""
        while self._source.advance(seconds=60):
            pass
        self.show(everything=True)

    def farewell(self) -> str:
        """What to tell when the dashboard has gone: how the run stands and how to come back."""
        run, state = self._directory, self.state
        if self._replay:
            return f"left the replay of {run}\n  see it again:  trainkit watch {run} --replay"
        if state == "finished":
            return f"the run is finished: {run}"
        if state in _ENDED:
            return f"the run {_ENDED[state]}; go on with it:  trainkit resume {run}"
        return f"detached; the run goes on\n  come back:  trainkit watch {run}\n  stop it:    trainkit send {run} stop"

    def action_detach(self) -> None:
        self.exit()

    def action_stop(self) -> None:
        if self._readonly:
            self._refuse()
            return

        def answered(stop: bool | None) -> None:
            if stop:
                self.action_order("stop")

        self.push_screen(ConfirmStop(), answered)

    def action_pause(self) -> None:
        self.action_order("continue" if self._source.view.paused else "pause")

    def action_order(self, command: Name) -> None:
        """Send an order from a thread of its own: the answer may take a while, and the screen must not."""
        if self._readonly:
            self._refuse()
            return
        threading.Thread(target=self._send, args=(command,), name=f"send {command}", daemon=True).start()

    def _refuse(self) -> None:
        why = "this is a replay of what has been" if self._replay else "this viewer may only look"
        self.notify(why, severity="warning", markup=False)

    def action_play(self) -> None:
        """Let a replay go on, or halt it."""
        if self._replay:
            self._replay.playing = not self._replay.playing

    def action_speed(self, by: int) -> None:
        if self._replay:
            self._replay.faster(by)

    def action_seek(self, steps: int) -> None:
        """Go so many hundredths of the run on, or back."""
        if self._replay:
            view = self._source.view
            hundredth = max(1, (view.total_steps or 100) // 100)
            self._replay.seek(max(1, view.step + steps * hundredth))
            self.show(everything=True)

    def action_go_to_step(self) -> None:
        def answered(step: int | None) -> None:
            if self._replay and step is not None:
                self._replay.seek(step)
                self.show(everything=True)

        if self._replay:
            self.push_screen(GoTo(), answered)

    def action_log_scale(self) -> None:
        self._log_scale = not self._log_scale
        self.show(everything=True)

    def action_next_panel(self) -> None:
        texts = self.screen_stack[0].query_one("#texts")
        shown = next(name for name in PANELS if texts.has_class(name))
        texts.remove_class(shown).add_class(PANELS[(PANELS.index(shown) + 1) % len(PANELS)])

    def action_page(self, number: int) -> None:
        """Show the page behind a number key."""
        if number <= len(NAMES):
            self._turn_to(NAMES[number - 1])

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self._turn_to(event.name)

    def _turn_to(self, name: str) -> None:
        screen = self.screen_stack[0]
        screen.query_one(ContentSwitcher).current = name
        screen.query_one(Tabs).choose(name)
        screen.set_focus(screen.query_one(f"#{name}", Page) if name != NAMES[0] else None)
        self.show(everything=True)

    def action_help(self) -> None:
        self.push_screen(Help())

    def _send(self, command: Name) -> None:
        try:
            self._replies.put((command, send(self._directory, command)))
        except TrainkitError as error:
            self._replies.put((command, error))

    def _tell_replies(self) -> None:
        while not self._replies.empty():
            command, reply = self._replies.get()
            if isinstance(reply, TrainkitError):
                self.notify(reply.problem, title=command, severity="error", markup=False)
            else:
                severity: SeverityLevel = "information" if reply.ok else "error"
                self.notify(reply.detail, title=command, severity=severity, markup=False)

    def _end_by_signal(self, number: int) -> None:
        self.signal = number
        self.exit()


_ENDED = {"stopped": "has stopped", "interrupted": "was interrupted", "failed": "failed", "crashed": "crashed"}


def _told(replay: Replay) -> str:
    """How a replay stands."""
    how = "over" if replay.over else f"x{replay.speed:g}" if replay.playing else "halted"
    return f"replay {how}   space , . ← → G"


def watch(run_directory: Path, *, replay: bool = False, readonly: bool = False) -> None:
    """Show a run until the viewer is told to leave; afterwards says on stderr how to come back.

    With `replay` it is shown as it went, from its beginning; with `readonly` nothing can be ordered.

    Raises:
        TrainkitError: this is no terminal, or there is no such run.
        SystemExit: a SIGTERM or SIGHUP came; the terminal has been restored.
    """
    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    _require_terminal(run_directory)
    os.nice(NICENESS)
    dashboard = Dashboard(run_directory, replay=Replay(run_directory) if replay else None, readonly=readonly)
    dashboard.run()
    if dashboard.signal is not None:
        raise SystemExit(128 + dashboard.signal)
    print(dashboard.farewell(), file=sys.stderr)


def _require_terminal(run_directory: Path) -> None:
    """Textual draws on stderr and reads stdin; where either is a file or a pipe it would fill it with escapes."""
    streams = {"stdin": sys.__stdin__, "stdout": sys.__stdout__, "stderr": sys.__stderr__}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            found = f"{name} is not a terminal"
            break
    else:
        if os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
            return
        found = f"TERM is {os.environ.get('TERM', '')!r}, which cannot move its cursor"
    raise TrainkitError(
        f"the dashboard needs a terminal, and {found}",
        hint=f"one picture of it as text: trainkit watch {run_directory} --once",
    )
