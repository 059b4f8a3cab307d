"""The dashboard: one screen that follows a run's log and passes orders on. Quitting it leaves the run alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Static

from trainkit.dashboard import habits, replaying
from trainkit.dashboard.acting import Acting
from trainkit.dashboard.charts.keys import ChartKeys
from trainkit.dashboard.crowding import Crowding, Turn
from trainkit.dashboard.pages import PAGES, Page
from trainkit.dashboard.pages.data import Data
from trainkit.dashboard.panels.footer import Footer
from trainkit.dashboard.panels.header import Header
from trainkit.dashboard.panels.overview import Overview
from trainkit.dashboard.panels.tabs import Tabs
from trainkit.dashboard.panels.texts import WIDE, Texts
from trainkit.dashboard.replay import Replay
from trainkit.dashboard.replaying import Replaying
from trainkit.dashboard.source import Source
from trainkit.errors import TrainkitError
from trainkit.events.series import Series
from trainkit.events.view import State, View

#: Seconds between two looks at the log, between two drawings of the charts, and of reading at a time.
POLL, DRAW, READ = 0.2, 1.0, 0.03
#: On a crowded machine: seconds between two looks, which are those of a run that has ended as well; and the fewest and
#: the most between two drawings of the header, of words, and of the charts.
REST, CLOCK, WORDS, CHARTS = 1.0, (3.0, 10.0), (1.0, 5.0), (15.0, 60.0)
#: The pages in the order of their keys.
NAMES = ("overview", *(page.NAME for page in PAGES))

LEAVE = "leave: the run goes on without this window"
PANEL = "the next panel of text, where only one has room"
#: What is about the overview alone.
OVERVIEW = ("next_panel", "scroll_text")


class Dashboard(ChartKeys, Replaying, Acting):
    """One run on one screen."""

    BINDING_GROUP_TITLE = "everywhere"
    # the lowest class of each is a terminal that is too small for anything
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (24, "-narrow"), (78, "-medium"), (WIDE, "-wide")]  # noqa: RUF012 (the same)
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (8, "-low"), (23, "-middle"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *ChartKeys.BINDINGS,  # these and the next have keys in common
        *Replaying.BINDINGS,
        Binding("q", "detach", "detach", tooltip=LEAVE),
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
        self._header, self._tabs = Header(), Tabs(NAMES)
        self._clock, self._words = Turn(0, crowded=CLOCK), Turn(0, crowded=WORDS)
        self._charts = Turn(DRAW, crowded=CHARTS)
        #: How many lines and samples, and how many metrics, the view had when they were drawn last.
        self._told, self._metrics = 0, 0
        self._crowding = Crowding()
        self._more: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._tabs
        with ContentSwitcher(initial=NAMES[0], id="pages"):
            yield Overview(self.habits.panel, id=NAMES[0])
            for page in PAGES:
                yield page(self._directory)
        yield Footer()
        yield Static(id="too-small", markup=False)

    def on_mount(self) -> None:
        self.end_by_signals()
        for page in self.query(Page):
            page.adopt(self.habits.pages.get(page.NAME, {}))
        if self._first_page in NAMES[1:]:
            self._turn_to(self._first_page)
        self._look_on()

    def _look_on(self) -> None:
        """Poll now, and again as soon as it may matter: every waking costs."""
        self.poll()
        if self._crowded() or (self.view.finished is not None and self.replay is None):
            self._rest()
        else:
            self.set_timer(POLL, self._look_on)

    def _rest(self) -> None:
        """Poll after a while, but see before, once a second, whether there is a word to be read: not by a timer of
        textual's, which costs more than the look."""

        def look() -> None:
            words = self._words.has_come(crowded=True) and self._source.says_more()
            if words or self._clock.has_come(crowded=True) or self.has_answers():
                self.call_later(self._look_on)
            else:
                self._rest()

        asyncio.get_running_loop().call_later(REST, look)

    def _crowded(self) -> bool:
        """Whether to draw less often: for a trainer, which a replay does not follow."""
        return self.replay is None and self._crowding.crowded()

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
        """Draw what is due of the view, or `everything`. Where there is a word to be read, all of it is due, but on a
        crowded machine the word alone."""
        view, now, crowded = self._source.view, self._source.now(), self._crowded()
        if not self.screen_stack or not self._header.is_attached:
            return  # the last tick of the clock while the app closes: its screens and widgets have gone before it
        words = view.told != self._told and self._words.has_come(crowded=crowded)
        first = len(view.series) > self._metrics  # a run that has just begun shows that it has
        charts = everything or first or (words and not crowded) or self._charts.has_come(crowded=crowded)
        if charts or words or self._clock.has_come(crowded=crowded):
            self._clock.take()
            doing, problem = self._source.state(now), self._source.problem
            self._header.show(view, state=doing, now=now, loading=loading, problem=problem)
            if self.replay:
                self._tabs.tell(replaying.told(self.replay))
        if charts or words:
            self._words.take()
            self._told = view.told
        if charts:
            self._charts.take()
            self._metrics = len(view.series)
            self.renew(view, view.attempt)
        page = self._page()
        if page and (charts or (words and page.WORDS)):
            page.show_view(view, now=now)
        elif not page and (charts or words):
            # by its id, which textual remembers: any other query walks through all widgets of all pages
            overview = self.screen_stack[0].query_one(f"#{NAMES[0]}", Overview)
            if charts:
                overview.show_view(view, now=now)
            else:
                overview.show_words(view)

    def draw_all(self) -> None:
        self.show(everything=True)

    def load(self) -> None:
        """Read the whole log and show it."""
        while self._source.advance(seconds=60):
            pass
        self.show(everything=True)

    def remember(self) -> None:
        if self._remembered and self._pages():
            for page in self.screen_stack[0].query(Page):
                self.habits.pages[page.NAME] = page.habits()
            self.habits.looks = self.viewport.habits()
            habits.write(self.habits, self._remembered)

    def action_detach(self) -> None:
        self.remember()
        self.exit()

    def action_leave(self) -> None:
        self.action_detach()

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
        pages = self._pages()
        name = pages.current if pages else None
        return None if name in (None, NAMES[0]) else self.screen_stack[0].query_one(f"#{name}", Page)

    def _pages(self) -> ContentSwitcher | None:
        """All of them; None before they are there, and after."""
        return self.screen_stack[0].query_one_optional("#pages", ContentSwitcher)

    def _turn_to(self, name: str) -> None:
        screen = self.screen_stack[0]
        screen.query_one("#pages", ContentSwitcher).current = name
        self._tabs.choose(name)
        screen.set_focus(self._page())
        self.habits.page = name
        self.remember()
        self.show(everything=True)


def require_page(name: str) -> None:
    """Raises:
    TrainkitError: there is no page of this name; none at all (an empty name) is right.
    """
    if name and name not in NAMES:
        raise TrainkitError(f"there is no page {name!r}; there are {', '.join(NAMES)}")
