"""The dashboard: one screen that follows a run's log and sends commands. Quitting it does not stop the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Event, Key, Resize
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Static

from trainkit.dashboard import preferences, replay_keys
from trainkit.dashboard.charts.keys import ChartKeys
from trainkit.dashboard.control_keys import ControlKeys
from trainkit.dashboard.keys import Footer
from trainkit.dashboard.pages import NAMES, PAGES, Page
from trainkit.dashboard.pages.data import DataPage
from trainkit.dashboard.panels.header import KEYED, Header, Tabs
from trainkit.dashboard.panels.overview import WIDE, Overview, TextPanels
from trainkit.dashboard.replay_keys import ReplayKeys
from trainkit.events.series import Series
from trainkit.events.view import State, View
from trainkit.rundir.follow import LogFollower, Replay

#: Seconds between two looks at the log, during the run and after it; between two drawings of the charts, each 20 ms
#: of a core; and of one slice of reading.
POLL, REST, DRAW, READ = 0.2, 0.5, 1.0, 0.03
LEAVE = "close this window: the run continues"
PANEL = "the next panel, where there is room for one"
#: Actions of the overview alone.
OVERVIEW = ("next_panel", "scroll_text")


class Dashboard(ChartKeys, ReplayKeys, ControlKeys):
    """One run on one screen."""

    BINDING_GROUP_TITLE = "everywhere"
    # the first class of each is for a terminal that is too small
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (24, "-narrow"), (78, "-medium"), (WIDE, "-wide")]  # noqa: RUF012 (the same)
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (8, "-low"), (23, "-middle"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *ChartKeys.BINDINGS,  # these share keys with the next
        *ReplayKeys.BINDINGS,
        Binding("q", "detach", "detach", tooltip=LEAVE),
        Binding("y", "copy", "copy", show=False, tooltip="copy what this page shows to the clipboard"),
        Binding("tab", "next_panel", "next panel", show=False, priority=True, tooltip=PANEL),
        Binding("j,down", "scroll_text(1)", "text down", show=False),
        Binding("k,up", "scroll_text(-1)", "text up", show=False),
        Binding("pagedown", "scroll_text(10)", "text page down", show=False),
        Binding("pageup", "scroll_text(-10)", "text page up", show=False),
        *(Binding(str(n), f"page('{name}')", f"page {name}", show=False) for n, name in enumerate(NAMES[:KEYED], 1)),
        *(Binding(p.KEY, f"page('{p.NAME}')", f"page {p.NAME}", show=False) for p in PAGES if p.KEY),
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
        """
        Args:
            replay: show the run again; commands are forbidden.
            readonly: forbid commands.
            page: the page to show first.
            remembered: the file of the person's preferences; None: remember nothing.
        """
        forbidden = (
            "this is a replay: it takes no commands" if replay else "this viewer is read-only" if readonly else ""
        )
        kept = preferences.read(remembered) if remembered else preferences.Preferences()
        super().__init__(run_directory, kept, forbidden=forbidden, ascii_only=ascii_only)
        self._directory, self._remembered = run_directory, remembered
        self._first_page = page or kept.page
        self._source, self.replay = replay or LogFollower(run_directory), replay
        self.viewport.adopt(kept.looks)
        self._header, self._tabs = Header(), Tabs(NAMES, {page.NAME: page.KEY for page in PAGES})
        #: The events that had happened when the charts were last drawn, and when that was.
        self._drawn: object = None
        self._drawn_at = float("-inf")
        self._key_waits = False
        self._more: Timer | None = None
        #: Why no command could be sent when the footer was last drawn, and which of the page's keys it had.
        self._offered: object = None

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._tabs
        with ContentSwitcher(initial=NAMES[0], id="pages"):
            yield Overview(self.preferences.panel, id=NAMES[0])
            for page in PAGES:
                yield page(self._directory)
        yield Footer()
        yield Static(id="too-small", markup=False)

    def on_mount(self) -> None:
        self.end_by_signals()
        for page in self.query(Page):
            page.adopt(self.preferences.pages.get(page.NAME, {}))
        if self._first_page in NAMES[1:]:
            self._turn_to(self._first_page)
        self._look_on()

    def _look_on(self) -> None:
        """Poll at intervals for as long as the viewer lives."""
        self.poll()
        over = self.view.finished is not None and self.replay is None
        self.set_timer(REST if over else POLL, self._look_on)

    async def on_event(self, event: Event) -> None:
        """Handle the event, and show the newest state of the run after a key."""
        await super().on_event(event)
        if isinstance(event, Key) and not self._key_waits:
            self._key_waits = True
            self.call_later(self._look_for_key)

    def _look_for_key(self) -> None:
        self._key_waits = False
        self.poll(everything=True)

    def on_resize(self, event: Resize) -> None:
        message = f"too small: {event.size.width} x {event.size.height}"
        self.screen_stack[0].query_one("#too-small", Static).update(message)

    @property
    def view(self) -> View:
        return self._source.view

    @property
    def state(self) -> State:
        """What the run does, as far as the log has been read."""
        return self._source.state(self._source.now())

    @property
    def forbidden(self) -> str:
        if not self._forbidden and self._source.read_share is not None:
            return "the log is still being read: commands work once that is done"
        return super().forbidden

    def offers(self, action: str) -> bool:
        page = self._page()
        useless = page is not None and action in page.footer_actions() and not page.offers(action)
        return super().offers(action) and not useless

    @property
    def run_name(self) -> str:
        return self._directory.absolute().name

    def detail(self, low: float, high: float) -> dict[str, Series]:
        return self._source.detail(low, high)

    def open_batch(self, step: int) -> None:
        self._turn_to(DataPage.NAME)
        self.query_one(DataPage).show_step(step - 1)

    def poll(self, *, everything: bool = False) -> None:
        """Read what is new, show it, or `everything`, and show the answers to commands."""
        if self._source.advance(seconds=READ) and self._more is None:
            self._more = self.set_timer(0.01, self._read_on)
        self.show(everything=everything)
        self.show_answers()

    def _read_on(self) -> None:
        """Read a long log in slices, so that keys and timers are handled in between."""
        self._more = None
        if self._source.advance(seconds=READ):
            self._more = self.set_timer(0.01, self._read_on)

    def show(self, *, everything: bool = False) -> None:
        """Show the view: state, speed, log and samples at each call; charts once a second, or at once if something has
        happened or with `everything`."""
        source = self._source
        view, now, read = source.view, source.now(), source.read_share
        if not self.screen_stack or not self._header.is_attached:
            return  # the last tick while the app closes, after its screens and widgets
        self._header.show(view, state=source.state(now), now=now, read=read, problem=source.problem)
        if self.replay:
            self._tabs.show_status(replay_keys.status(self.replay))
        page = self._page()
        offered = (self.forbidden, page and [page.offers(action) for action in page.footer_actions()])
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()
        drawn, moment = _redraw_signature(view), time.monotonic()
        at_once = everything or (read is None and drawn != self._drawn)
        charts = at_once or moment - self._drawn_at >= DRAW
        if charts:
            self._drawn, self._drawn_at = drawn, moment
            self.renew(view, view.attempt)
        if page and (charts or page.WORDS):
            page.reading = read is not None
            page.show_view(view, now=now)
        elif not page:
            # by its id, which textual caches: any other query walks through all widgets of all pages
            overview = self.screen_stack[0].query_one(f"#{NAMES[0]}", Overview)
            if charts:
                overview.show_view(view, now=now)
            else:
                overview.show_panels(view, now=now)

    def load(self) -> None:
        """Read the whole log and show it."""
        while self._source.advance(seconds=60):
            pass
        self.draw_all()

    def remember(self) -> None:
        if self._remembered and self._pages():
            for page in self.screen_stack[0].query(Page):
                self.preferences.pages[page.NAME] = page.preferences()
            self.preferences.looks = self.viewport.preferences()
            preferences.write(self.preferences, self._remembered)

    def action_detach(self) -> None:
        self.remember()
        self.exit()

    def action_leave(self) -> None:
        self.action_detach()

    def draw_all(self) -> None:
        self.show(everything=True)

    def action_next_panel(self) -> None:
        texts = self.screen_stack[0].query_one(TextPanels)
        texts.turn()
        self.preferences.panel = texts.shown

    def action_scroll_text(self, lines: int) -> None:
        self.screen_stack[0].query_one(TextPanels).scroll_lines(lines)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in OVERVIEW and (len(self.screen_stack) != 1 or self._page()):
            return False
        return super().check_action(action, parameters)

    def commands_without_key(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        lettered = {page.NAME for page in PAGES if page.KEY}
        for name in (name for name in NAMES[KEYED:] if name not in lettered):
            yield f"page {name}", "everywhere", partial(self._turn_to, name)
        yield from super().commands_without_key()

    def action_page(self, name: str) -> None:
        """Show the page behind a key."""
        self._turn_to(name)

    def action_copy(self) -> None:
        """Copy the subject of the page to the terminal's clipboard by OSC 52, which works over SSH."""
        page = self._page()
        text = page.copy_text() if page else str(self._directory)
        if not text:
            self.notify("this page has nothing to copy", severity="warning", markup=False)
            return
        self.copy_to_clipboard(text)
        lines = text.splitlines()
        message = lines[0] if len(lines) == 1 else f"{len(lines):,} lines, beginning with: {lines[0]}"
        self.notify(message, title="copied", markup=False)

    def on_page_arranged(self, event: Page.Arranged) -> None:
        """Draw a page as soon as it has a size, and give it back the focus that it lost when the terminal was too
        small."""
        if len(self.screen_stack) == 1 and self.screen.focused is None and (page := self._page()):
            self.screen.set_focus(page)
        self.show(everything=True)

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self._turn_to(event.name)

    def _page(self) -> Page | None:
        """Return the current page; None for the overview."""
        pages = self._pages()
        name = pages.current if pages else None
        return None if name in (None, NAMES[0]) else self.screen_stack[0].query_one(f"#{name}", Page)

    def _pages(self) -> ContentSwitcher | None:
        """Return the switcher of all pages; None before it is mounted and after it is removed."""
        return self.screen_stack[0].query_one_optional("#pages", ContentSwitcher)

    def _turn_to(self, name: str) -> None:
        screen = self.screen_stack[0]
        screen.query_one("#pages", ContentSwitcher).current = name
        self._tabs.choose(name)
        screen.set_focus(self._page())
        self.preferences.page = name
        self.remember()
        self.poll(everything=True)


def _redraw_signature(view: View) -> object:
    """Return what redraws everything at once when it changes: attempt, pause, end, evaluations, alerts, new metrics."""
    last = view.markers[-1] if view.markers else None
    return id(view), view.attempt, view.paused, view.finished, len(view.series), len(view.markers), last
