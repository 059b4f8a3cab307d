"""Many runs on one screen: find, open, compare and delete runs, and rank their recipes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.containers import Vertical
from textual.events import Click
from textual.widgets import Input, OptionList, Static

from trainkit.dashboard import preferences, theme
from trainkit.dashboard.keys import Footer
from trainkit.dashboard.pages.page import begin_typing, is_typing
from trainkit.dashboard.panels.rows import MOVES, RowTable, TableRow, cell
from trainkit.dashboard.runs import words
from trainkit.dashboard.runs.leaderboard import LISTED, Arrangement, LeaderboardRow, SortOrder, metrics, table
from trainkit.dashboard.themed import Themed
from trainkit.errors import TrainkitError
from trainkit.rundir.listing import RunList
from trainkit.rundir.summary import SummaryReader

#: Seconds between two looks at the logs, and between two at what they have given while they are read the first time.
READ, DRAW = 1.0, 0.25


class RunSelection(NamedTuple):
    """The run to open, and those to compare it with."""

    run: Path
    others: tuple[Path, ...] = ()


class RunsApp(Themed[RunSelection]):
    """The runs of a directory. Ends with the run to open, or None."""

    BINDING_GROUP_TITLE = "runs"
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
        Binding("S", "sort(-1)", "sort by the previous column", key_display="S", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("L", "leaderboard", "leaderboard", key_display="L"),
        Binding("m", "metric(1)", "metric"),
        Binding("M", "metric(-1)", "the previous metric", key_display="M", show=False),
        Binding("x,delete", "delete", "delete", key_display="x"),
        Binding("escape", "all", "clear the filter, then the marks", show=False),
        Binding("q", "leave", "quit"),
        *MOVES,
    ]

    def __init__(
        self,
        runs: RunList,
        arrangement: Arrangement,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        remembered: Path | None = None,
    ) -> None:
        """`remembered` is the file with the person's preferences; without one nothing is remembered."""
        super().__init__(
            preferences.read(remembered) if remembered else preferences.Preferences(), ascii_only=ascii_only
        )
        self._runs, self._arranged = runs, arrangement
        self._readonly, self._remembered = readonly, remembered
        self._leaving = threading.Event()
        self._reader = threading.Thread(target=self._read, name="read runs", daemon=True)
        self._wanted = arrangement.chosen
        self._title, self._about = (Static("", id=id, markup=False) for id in ("title", "about"))
        self._search = Input(placeholder="part of a name, a state or a recipe; escape shows all")
        self._frame, self._rows = Vertical(classes="framed", id="list"), RowTable()
        self._lines: list[LeaderboardRow] = []
        #: What the list was made of when it was drawn last by itself, its rows, and what stands around them.
        self._seen: object = None
        self._drawn: object = None
        self._around: object = None

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
        self.end_by_signals()
        self._reader.start()
        self._look_on()
        self.call_after_refresh(self._first)

    def _first(self) -> None:
        """Choose the run that was open before."""
        self.show()
        if self._wanted is not None:
            self._rows.choose(self._wanted)

    def on_unmount(self) -> None:
        self._leaving.set()
        self._reader.join()

    def _read(self) -> None:
        while not self._leaving.is_set():
            self._runs.read(stop=self._leaving.is_set)
            self._runs.measure(stop=self._leaving.is_set)
            self._leaving.wait(READ)

    def _look_on(self) -> None:
        """Draw what has been read since the last look, at intervals."""
        if (known := self._known()) != self._seen:
            self._seen = known
            self.show()
        self.set_timer(READ if self._runs.passes else DRAW, self._look_on)

    def _known(self) -> object:
        """Return what the list shows; ages are in minutes."""
        summaries = self._runs.summaries
        content = [
            (name, summary.facts, summary.size, summary.kept, summary.recipe) for name, summary in summaries.items()
        ]
        return content, self._runs.passes > 0, int(time.time() // 60)

    def show(self) -> None:
        """Draw what has changed."""
        if not self._rows.is_attached:
            return  # the last tick of the clock while the app closes
        arranged = self._arranged
        by, columns, self._lines = table(list(self._runs.summaries.values()), arranged, now=time.time())
        empty = words.why_empty(self._runs, arranged)
        if (content := (columns, self._lines, empty)) != self._drawn:
            self._drawn = content
            rows = [TableRow(line.name, [cell(text, style) for text, style in line.cells]) for line in self._lines]
            self._rows.show(columns, rows, empty=empty)
            self._show_chosen()
        which = f"{len(self._lines):,} with “{arranged.filter}”, escape: all" if arranged.filter else ""
        called = f"leaderboard by {by.name}" if arranged.leaderboard else "runs"
        heading = words.list_title(self._runs, arranged)
        if (around := (heading.plain, which, called)) != self._around:
            self._around = around
            self._title.update(heading)
            self._frame.border_title, self._frame.border_subtitle = cell(called, theme.DIM), cell(which, theme.WARN)

    def _show_chosen(self) -> None:
        self._arranged.chosen = self._rows.chosen
        summary = self._summary(self._rows.chosen)
        self._about.update(words.about(summary) if summary else "")

    def _summary(self, name: str | None) -> SummaryReader | None:
        return self._runs.summaries.get(name) if name is not None else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._show_chosen()

    def on_click(self, event: Click) -> None:
        if event.chain == 2 and isinstance(event.widget, OptionList):
            self.action_open()

    def action_move(self, how: str) -> None:
        self._rows.move(how)

    def action_open(self) -> None:
        if (run := self._openable(self._rows.chosen)) is not None:
            self.exit(RunSelection(run))

    def action_mark(self) -> None:
        """Mark the chosen run, or no longer, and go to the next."""
        if (name := self._rows.chosen) is not None:
            self._arranged.marked ^= {name}
            self.show()
            self.action_move("cursor_down")

    def action_compare(self) -> None:
        """Open the first marked run of the list, compared with the others."""
        marked = [line.name for line in self._lines if line.name in self._arranged.marked]
        if len(marked) < 2:
            self.notify("mark at least two runs first, with the space bar", severity="warning", markup=False)
            return
        runs = [run for name in marked if (run := self._openable(name)) is not None]
        if len(runs) == len(marked):
            self.exit(RunSelection(runs[0], tuple(runs[1:])))

    def _openable(self, name: str | None) -> Path | None:
        """Return the directory of a run; if it cannot be opened, say why."""
        if (summary := self._summary(name)) is None:
            return None
        if problem := words.unopenable(summary):
            self.notify(f"{cell(summary.directory.name).plain}: {problem}", severity="warning", markup=False)
            return None
        return summary.directory

    def action_sort(self, by: int) -> None:
        """Sort by the next column, best or newest first."""
        place = LISTED.index(self._arranged.order.column)
        self._arranged.order = SortOrder(LISTED[(place + by) % len(LISTED)])
        self.show()

    def action_reverse(self) -> None:
        order = self._arranged.order
        self._arranged.order = SortOrder(order.column, not order.reverse)
        self.show()

    def action_leaderboard(self) -> None:
        self._arranged.leaderboard = not self._arranged.leaderboard
        self.refresh_bindings()
        self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "filter":  # its key goes before all others
            return isinstance(self.screen, CommandPalette) or (
                len(self.screen_stack) == 1 and not is_typing(self.screen)
            )
        # the leaderboard has an order of its own
        return action not in ("sort", "reverse") or not self._arranged.leaderboard

    def action_metric(self, by: int) -> None:
        """Rank by another metric."""
        names = [metric.name for metric in metrics(self._runs.summaries.values())]
        place = names.index(self._arranged.metric) if self._arranged.metric in names else 0
        self._arranged.metric = names[(place + by) % len(names)]
        self.show()

    def action_filter(self) -> None:
        begin_typing(self._search)

    def action_all(self) -> None:
        """Clear the filter; without one, the marks."""
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

    def offers(self, action: str) -> bool:
        return action != "delete" or not self._readonly

    def action_delete(self) -> None:
        """Ask whether to delete the chosen run."""
        if self._readonly:
            self.notify("this viewer is read-only", severity="warning", markup=False)
            return
        if (summary := self._summary(self._rows.chosen)) is None:
            return
        if isinstance(asked := words.deletion(summary), str):
            self.notify(asked, severity="warning", markup=False)
            return

        def answered(delete: bool | None) -> None:
            if delete:
                self.run_worker(self._delete(summary.directory.name))

        self.push_screen(asked, answered)

    async def _delete(self, name: str) -> None:
        """Delete in a thread that the application waits for, so that no deletion is left half done."""
        try:
            await asyncio.to_thread(self._runs.delete, name)
        except TrainkitError as error:
            message = f"{error.problem}\n{error.hint}".strip()
            self.notify(message, title=cell(name).plain, severity="error", markup=False)
            return
        self._arranged.marked.discard(name)
        self.notify(f"{cell(name).plain} was deleted", markup=False)

    def remember(self) -> None:
        if self._remembered:
            preferences.write(self.preferences, self._remembered)
