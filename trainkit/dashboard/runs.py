"""Many runs on one screen: find one, open it, compare some, delete what is not wanted, see which recipe does best."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.widgets import Input, OptionList, Static

from trainkit.dashboard import habits, theme
from trainkit.dashboard.commands import Commands, keys_in_force
from trainkit.dashboard.glance import ENDED
from trainkit.dashboard.leaderboard import (
    LISTED,
    Arrangement,
    Line,
    Metric,
    Order,
    fits,
    lines,
    metrics,
    ranked,
    titles,
)
from trainkit.dashboard.pages.table import MOVES
from trainkit.dashboard.panels.footer import Footer
from trainkit.dashboard.panels.rows import Row, Rows, cell
from trainkit.dashboard.screens import Confirm, Help
from trainkit.dashboard.shelf import Shelf
from trainkit.dashboard.themed import Themed
from trainkit.errors import TrainkitError
from trainkit.events import plain

#: Seconds between two looks at the logs, and between two drawings.
READ, DRAW = 1.0, 0.25
HELP = "question_mark"


class Choice(NamedTuple):
    """The run that is to be opened, and those to compare it with."""

    run: Path
    others: tuple[Path, ...] = ()


class Runs(Themed[Choice]):
    """The runs of a directory. Ends with the one to open, or with None."""

    TITLE = "trainkit"
    BINDING_GROUP_TITLE = "runs"
    COMMANDS = {Commands}  # noqa: RUF012 (as textual declares it)
    COMMAND_PALETTE_BINDING = HELP  # the key that the footer has at its right end, however narrow it is
    AUTO_FOCUS = None
    CSS_PATH = "dashboard.tcss"
    CSS = """
    #title { height: 1; padding: 0 1; }
    #list { height: 1fr; }
    #about { height: 2; padding: 0 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("space", "mark", "mark"),
        Binding("c", "compare", "compare"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort by the column before", key_display="S", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("L", "leaderboard", "leaderboard", key_display="L"),
        Binding("m", "metric(1)", "metric"),
        Binding("M", "metric(-1)", "the metric before", key_display="M", show=False),
        Binding("x,delete", "delete", "delete", key_display="x"),
        Binding("escape", "all", "no filter, no marks", show=False),
        Binding("q", "leave", "quit"),
        Binding(HELP, "help", "help", show=False, key_display="?", tooltip="this"),
        Binding("ctrl+p", "command_palette", "commands", show=False, priority=True),
        Binding("colon", "command_palette", "commands", show=False, tooltip="whatever a key does, by its name"),
        Binding("ctrl+c,ctrl+q", "leave", "quit", show=False, priority=True),
        *MOVES,
    ]

    def __init__(
        self,
        shelf: Shelf,
        arrangement: Arrangement,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        remembered: Path | None = None,
    ) -> None:
        """`remembered` is the file with the person's habits; without one nothing is remembered."""
        super().__init__(habits.read(remembered) if remembered else habits.Habits(), ascii_only=ascii_only)
        self._shelf, self._arranged = shelf, arrangement
        self._readonly, self._remembered = readonly, remembered
        self._leaving = threading.Event()
        self._reader = threading.Thread(target=self._read, name="read runs", daemon=True)
        self._wanted = arrangement.chosen
        self._title, self._about = (Static("", id=id, markup=False) for id in ("title", "about"))
        self._search = Input(placeholder="part of a name, a state or a recipe; escape shows all")
        self._frame, self._rows = Vertical(classes="framed", id="list"), Rows()
        self._lines: list[Line] = []
        self._told: object = None
        #: The signal that ended the browser, if one did.
        self.signal: int | None = None

    def compose(self) -> ComposeResult:
        yield self._title
        self._search.value = self._arranged.filter  # not before: a value needs an application that runs
        self._search.display = bool(self._arranged.filter)
        yield self._search
        with self._frame:
            yield self._rows
        yield self._about
        yield Footer()

    def on_mount(self) -> None:
        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._end_by_signal, number)
        self._reader.start()
        self.set_interval(DRAW, self.show)
        self.call_after_refresh(self._first)

    def _first(self) -> None:
        """The run that was looked at is the chosen one again."""
        self.show()
        if self._wanted is not None:
            self._rows.choose(self._wanted)

    def on_unmount(self) -> None:
        self._leaving.set()
        self._reader.join()

    def _read(self) -> None:
        while not self._leaving.is_set():
            self._shelf.read(stop=self._leaving.is_set)
            self._leaving.wait(READ)

    def show(self) -> None:
        """Draw what is known, where that has changed."""
        if not self._rows.is_attached:
            return  # the last tick of the clock while the app closes
        arranged = self._arranged
        found = metrics(self._shelf.glances.values())
        metric = next((metric for metric in found if metric.name == arranged.metric), found[0])
        glances = [glance for glance in self._shelf.glances.values() if fits(glance, arranged.filter)]
        if arranged.leaderboard:
            columns, self._lines = ranked(glances, metric, marked=arranged.marked)
        else:
            columns = titles(arranged.order, metric)
            self._lines = lines(glances, arranged.order, metric, now=time.time(), marked=arranged.marked)
        if (told := (columns, self._lines, arranged.filter)) != self._told:
            self._told = told
            rows = [Row(line.name, [cell(text, style) for text, style in line.cells]) for line in self._lines]
            self._rows.show(columns, rows, empty=self._empty())
            self._tell_chosen()
        self._entitle(metric)

    def _entitle(self, metric: Metric) -> None:
        glances, arranged = self._shelf.glances.values(), self._arranged
        unread = sum(glance.facts is None for glance in glances)
        at_work = sum(glance.facts is not None and glance.facts.state not in (None, *ENDED) for glance in glances)
        parts = [(f"{cell(str(self._shelf.directory)).plain}  ", f"bold {theme.BRIGHT}")]
        parts += [(f"{len(self._shelf.glances):,} runs", theme.TEXT), (f"  {at_work:,} at work", theme.DIM)]
        parts += [(f"  reading {unread:,} logs …", theme.DIM)] if unread else []
        parts += [(f"  {len(arranged.marked):,} marked", theme.WARN)] if arranged.marked else []
        self._title.update(Content.assemble(*parts))
        which = f"{len(self._lines):,} with “{arranged.filter}”, escape: all" if arranged.filter else ""
        title = f"leaderboard by {metric.name}" if arranged.leaderboard else "runs"
        self._frame.border_title = cell(title, theme.DIM)
        self._frame.border_subtitle = cell(which, theme.WARN)

    def _empty(self) -> str:
        if self._arranged.filter:
            return f"no run has “{self._arranged.filter}” in it; escape shows all"
        return f"no runs in {self._shelf.directory} yet; begin one: trainkit run RECIPE"

    def _tell_chosen(self) -> None:
        """Two lines on the chosen run: where it is, and what is wrong with it or how it ended."""
        name = self._rows.chosen
        self._arranged.chosen = name
        glance = self._shelf.glances.get(name) if name is not None else None
        if glance is None:
            self._about.update("")
            return
        facts, style = glance.facts, theme.DIM
        second = "its log is being read …"
        if facts is not None:
            attempts = f"attempt {facts.attempt}  " if facts.attempt > 1 else ""
            kept = f"kept: {', '.join(f'{step:,}' for step in glance.kept)}  " if glance.kept else ""
            second = facts.problem or f"{attempts}{kept}{facts.message}"
            style = theme.WARN if facts.problem else theme.BAD if facts.state == "failed" else theme.DIM
        self._about.update(Content("\n").join([cell(str(glance.directory), theme.TEXT), cell(second, style)]))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._tell_chosen()

    def on_click(self, event: Click) -> None:
        if event.chain == 2 and isinstance(event.widget, OptionList):
            self.action_open()

    def action_move(self, how: str) -> None:
        self._rows.move(how)

    def action_open(self) -> None:
        if (run := self._openable(self._rows.chosen)) is not None:
            self.exit(Choice(run))

    def action_mark(self) -> None:
        """Mark the chosen run, or no longer, and go to the next."""
        if (name := self._rows.chosen) is not None:
            self._arranged.marked ^= {name}
            self.show()
            self.action_move("cursor_down")

    def action_compare(self) -> None:
        """Open the first of the marked ones, as they are sorted, compared with the others."""
        marked = [line.name for line in self._lines if line.name in self._arranged.marked]
        if len(marked) < 2:
            self.notify("mark two runs or more first: space", severity="warning", markup=False)
            return
        runs = [run for name in marked if (run := self._openable(name)) is not None]
        if len(runs) == len(marked):
            self.exit(Choice(runs[0], tuple(runs[1:])))

    def _openable(self, name: str | None) -> Path | None:
        """Its directory; where it cannot be opened, says why."""
        glance = self._shelf.glances.get(name) if name is not None else None
        if glance is None:
            return None
        if glance.facts is not None and not glance.facts.broken:
            return glance.directory
        problem = glance.facts.problem if glance.facts else "its log is still being read"
        self.notify(f"{cell(glance.directory.name).plain}: {problem}", severity="warning", markup=False)
        return None

    def action_sort(self, by: int) -> None:
        """Sort by the next column, best or newest first."""
        if not self._arranged.leaderboard:
            place = LISTED.index(self._arranged.order.column)
            self._arranged.order = Order(LISTED[(place + by) % len(LISTED)])
            self.show()

    def action_reverse(self) -> None:
        order = self._arranged.order
        self._arranged.order = Order(order.column, not order.reverse)
        self.show()

    def action_leaderboard(self) -> None:
        self._arranged.leaderboard = not self._arranged.leaderboard
        self.show()

    def action_metric(self, by: int) -> None:
        """Show another metric as the one that counts."""
        names = [metric.name for metric in metrics(self._shelf.glances.values())]
        place = names.index(self._arranged.metric) if self._arranged.metric in names else 0
        self._arranged.metric = names[(place + by) % len(names)]
        self.show()

    def action_filter(self) -> None:
        self._search.display = True
        self._search.focus()

    def action_all(self) -> None:
        """Away with the filter; without one, with the marks."""
        if not self._search.value and not self._search.display:
            self._arranged.marked.clear()
        self._search.value, self._search.display, self._arranged.filter = "", False, ""
        self.screen.set_focus(None)
        self.show()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._arranged.filter = event.value.casefold()
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = bool(event.value)
        self.screen.set_focus(None)

    def action_delete(self) -> None:
        """Ask whether the chosen run is to be deleted."""
        if self._readonly:
            self.notify("this viewer may only look", severity="warning", markup=False)
            return
        glance = self._shelf.glances.get(self._rows.chosen or "")
        if glance is None:
            return
        name, facts = glance.directory.name, glance.facts
        if facts is not None and facts.state is not None and facts.state not in ENDED:
            self.notify(f"{cell(name).plain} is {facts.state}: stop it first", severity="warning", markup=False)
            return
        size = "" if glance.size is None else f", {plain.bytes_(glance.size)}"
        told = "It is a link: what it leads to stays."
        if not glance.directory.is_symlink():
            steps = facts.step if facts else 0
            told = f"Its {steps:,} steps, its checkpoints and its log go{size}.\nNothing brings them back."

        def answered(delete: bool | None) -> None:
            if delete:
                threading.Thread(target=self._delete, args=(name,), name="delete run", daemon=True).start()

        self.push_screen(Confirm(f"Delete the run {cell(name).plain}?", told, yes="delete for good"), answered)

    def _delete(self, name: str) -> None:
        try:
            self._shelf.delete(name)
        except TrainkitError as error:
            told = f"{error.problem}\n{error.hint or ''}".strip()
            self.call_from_thread(self.notify, told, title=cell(name).plain, severity="error", markup=False)
            return
        self._arranged.marked.discard(name)
        self.call_from_thread(self.notify, f"{cell(name).plain} is deleted", markup=False)

    def action_help(self) -> None:
        self.push_screen(Help(keys_in_force(self.screen)))

    def action_leave(self) -> None:
        self.exit()

    def remember(self) -> None:
        if self._remembered:
            habits.write(self.habits, self._remembered)

    def _end_by_signal(self, number: int) -> None:
        self.signal = number
        self.exit()
