"""The dashboard: one screen that follows a run's log and passes orders on. Quitting it leaves the run alone."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Static

from trainkit.dashboard import habits, replaying, theme
from trainkit.dashboard.acting import Acting
from trainkit.dashboard.charts.keys import ChartKeys
from trainkit.dashboard.commands import Commands, keys_in_force
from trainkit.dashboard.crowding import Crowding
from trainkit.dashboard.pages import PAGES, Page
from trainkit.dashboard.pages.data import Data
from trainkit.dashboard.panels.charts import LossChart, MetricChart
from trainkit.dashboard.panels.footer import Footer
from trainkit.dashboard.panels.header import Header
from trainkit.dashboard.panels.lines import LogLines, SampleLines
from trainkit.dashboard.panels.machine import Machine
from trainkit.dashboard.panels.tabs import Tabs
from trainkit.dashboard.panels.texts import WIDE, Texts
from trainkit.dashboard.replay import Replay
from trainkit.dashboard.replaying import Replaying
from trainkit.dashboard.screens import Help
from trainkit.dashboard.source import Source
from trainkit.errors import TrainkitError
from trainkit.events.series import Series
from trainkit.events.view import State, View

#: Seconds between two looks at the log, between two drawings of the charts, and of reading at a time.
POLL, DRAW, READ = 0.2, 1.0, 0.03
#: On a crowded machine: seconds between two drawings of the clocks in the header, and of the charts.
CROWDED_TICK, CROWDED_DRAW = 3.0, 15.0
#: The pages in the order of their keys.
NAMES = ("overview", *(page.NAME for page in PAGES))

LEAVE, PALETTE = "leave: the run goes on without this window", "whatever a key does, by its name"
HELP = "question_mark"
PANEL = "the next panel of text, where only one has room"
#: What is about the overview alone.
OVERVIEW = ("next_panel", "scroll_text")


class Dashboard(ChartKeys, Replaying, Acting):
    """One run on one screen."""

    TITLE = "trainkit"
    BINDING_GROUP_TITLE = "everywhere"
    COMMANDS = {Commands}  # noqa: RUF012 (as textual declares it)
    COMMAND_PALETTE_BINDING = HELP  # the key that the footer has at its right end, however narrow it is
    AUTO_FOCUS = None
    # the lowest class of each is a terminal that is too small for anything
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (24, "-narrow"), (78, "-medium"), (WIDE, "-wide")]  # noqa: RUF012 (the same)
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (8, "-low"), (23, "-middle"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *ChartKeys.BINDINGS,  # these and the next have keys in common
        *Replaying.BINDINGS,
        Binding("q", "detach", "detach", tooltip=LEAVE),
        Binding("ctrl+c,ctrl+q", "detach", "detach", show=False, priority=True, tooltip=LEAVE),
        Binding(HELP, "help", "help", show=False, key_display="?", tooltip="the keys, and the signs of a chart"),
        Binding("ctrl+p", "command_palette", "commands", show=False, priority=True, tooltip=PALETTE),
        Binding("colon", "command_palette", "commands", show=False, tooltip=PALETTE),
        Binding("y", "copy", "copy", show=False, tooltip="copy what this page is about to the clipboard"),
        Binding("tab", "next_panel", "next panel", show=False, priority=True, tooltip=PANEL),
        *(
            Binding(keys, f"scroll_text({lines})", f"text {way}", show=False)
            for keys, lines, way in (
                ("j,down", 1, "down"),
                ("k,up", -1, "up"),
                ("pagedown", 10, "page down"),
                ("pageup", -10, "page up"),
            )
        ),
        *(Binding(str(n), f"page({n})", f"page {name}", show=False) for n, name in enumerate(NAMES[:9], 1)),
    ]

    def __init__(
        self,
        run_directory: Path,
        *,
        replay: Replay | None = None,
        readonly: bool = False,
        ascii_only: bool = False,
        page: str = "",
        remembered: Path | None = None,
    ) -> None:
        """With `replay` the run is shown as it went; with it, or `readonly`, nothing can be ordered.

        `remembered` is the file with the person's habits; without one nothing is remembered. `page` is shown first.
        """
        forbidden = "this is a replay of what has been" if replay else "this viewer may only look" if readonly else ""
        kept = habits.read(remembered) if remembered else habits.Habits()
        super().__init__(run_directory, kept, forbidden=forbidden, ascii_only=ascii_only)
        self._directory, self._remembered = run_directory, remembered
        self._first_page = page or kept.page
        self._source = replay or Source(run_directory)
        self.replay = replay
        self.viewport.adopt(kept.looks)
        self._header = Header()
        self._drawn, self._ticked, self._told = 0.0, 0.0, 0
        self._crowding = Crowding()
        self._more: Timer | None = None
        #: The signal that ended the dashboard, if one did.
        self.signal: int | None = None

    def compose(self) -> ComposeResult:
        yield self._header
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
                yield Texts(self.habits.panel)
            for page in PAGES:
                yield page(self._directory)
        yield Footer()
        yield Static(id="too-small", markup=False)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._end_by_signal, number)
        for page in self.query(Page):
            page.adopt(self.habits.pages.get(page.NAME, {}))
        if self._first_page in NAMES[1:]:
            self._turn_to(self._first_page)
        self.set_interval(POLL, self.poll)
        self.poll()

    def on_resize(self, event: Resize) -> None:
        told = f"too small: {event.size.width} x {event.size.height}"
        self.screen_stack[0].query_one("#too-small", Static).update(told)

    @property
    def view(self) -> View:
        return self._source.view

    @property
    def state(self) -> State:
        """What the run is doing, as far as the log has been read."""
        return self._source.state(self._source.now())

    @property
    def run_name(self) -> str:
        return self._directory.absolute().name

    def detail(self, low: float, high: float) -> dict[str, Series]:
        return self._source.detail(low, high)

    def open_batch(self, step: int) -> None:
        self._turn_to(Data.NAME)
        self.query_one(Data).show_step(step - 1)

    def poll(self) -> None:
        """Read what is new, show it, and tell what became of orders."""
        loading = self._source.advance(seconds=READ)
        if loading and self._more is None:
            self._more = self.set_timer(0.01, self._read_on)
        self.show(loading=loading)
        self.tell_answers()

    def _read_on(self) -> None:
        """Read a long log slice after slice; keys and timers have their turn between."""
        self._more = None
        if self._source.advance(seconds=READ):
            self._more = self.set_timer(0.01, self._read_on)

    def show(self, *, loading: bool = False, everything: bool = False) -> None:
        """Draw the view; the charts only so often, unless `everything` is to be drawn or there is a word to be read."""
        view, now, crowded = self._source.view, self._source.now(), self._crowding.crowded()
        if not self.screen_stack or not self._header.is_attached:
            return  # the last tick of the clock while the app closes: its screens and widgets have gone before it
        news, self._told = view.told != self._told, view.told
        at_once = everything or news
        if crowded and not at_once and time.monotonic() - self._ticked < CROWDED_TICK:
            return
        self._ticked = time.monotonic()
        screen = self.screen_stack[0]
        doing, problem = self._source.state(now), self._source.problem
        self._header.show(view, state=doing, now=now, loading=loading, problem=problem)
        if self.replay:
            screen.query_one(Tabs).tell(replaying.told(self.replay))
        if not at_once and time.monotonic() - self._drawn < (CROWDED_DRAW if crowded else DRAW):
            return
        self._drawn = time.monotonic()
        self.renew(view, view.attempt)
        if page := self._page():
            page.show_view(view, now=now)
            return
        # by their ids, which textual remembers: any other query walks through all widgets of all pages
        screen.query_one("#loss", LossChart).show_view(view)
        for name in ("#rate", "#norm", "#speed"):
            screen.query_one(name, MetricChart).show_view(view)
        screen.query_one("#machine", Machine).show_view(view, now=now)
        screen.query_one("#log", LogLines).show_view(view)
        screen.query_one("#newest-samples", SampleLines).show_view(view)

    def draw_all(self) -> None:
        self.show(everything=True)

    def load(self) -> None:
        """Read the whole log and show it."""
        while self._source.advance(seconds=60):
            pass
        self.show(everything=True)

    def remember(self) -> None:
        if self._remembered and self.screen_stack[0].query(ContentSwitcher):
            for page in self.screen_stack[0].query(Page):
                self.habits.pages[page.NAME] = page.habits()
            self.habits.looks = self.viewport.habits()
            habits.write(self.habits, self._remembered)

    def action_detach(self) -> None:
        self.remember()
        self.exit()

    def action_help(self) -> None:
        self.push_screen(Help(keys_in_force(self.screen)))

    def action_next_panel(self) -> None:
        texts = self.screen_stack[0].query_one(Texts)
        texts.turn()
        self.habits.panel = texts.shown

    def action_scroll_text(self, lines: int) -> None:
        self.screen_stack[0].query_one(Texts).scroll_lines(lines)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in OVERVIEW and (len(self.screen_stack) != 1 or self._page()):
            return False
        return super().check_action(action, parameters)

    def action_page(self, number: int) -> None:
        """Show the page behind a number key."""
        self._turn_to(NAMES[number - 1])

    def action_copy(self) -> None:
        """Copy what the page is about, by OSC 52: the terminal's clipboard, over SSH as well."""
        page = self._page()
        text = page.copy_text() if page else str(self._directory)
        if not text:
            self.notify("there is nothing to copy on this page", severity="warning", markup=False)
            return
        self.copy_to_clipboard(text)
        lines = text.splitlines()
        told = lines[0] if len(lines) == 1 else f"{len(lines):,} lines, from: {lines[0]}"
        self.notify(told, title="copied", markup=False)

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self._turn_to(event.name)

    def _page(self) -> Page | None:
        """The page in front; None where it is the overview."""
        screen = self.screen_stack[0]
        name = next((switcher.current for switcher in screen.query(ContentSwitcher)), None)
        return None if name in (None, NAMES[0]) else screen.query_one(f"#{name}", Page)

    def _turn_to(self, name: str) -> None:
        screen = self.screen_stack[0]
        screen.query_one(ContentSwitcher).current = name
        screen.query_one(Tabs).choose(name)
        screen.set_focus(self._page())
        self.habits.page = name
        self.remember()
        self.show(everything=True)

    def _end_by_signal(self, number: int) -> None:
        self.signal = number
        self.action_detach()


def require_page(name: str) -> None:
    """Raises:
    TrainkitError: there is no page of this name; none at all (an empty name) is right.
    """
    if name and name not in NAMES:
        raise TrainkitError(f"there is no page {name!r}; there are {', '.join(NAMES)}")
