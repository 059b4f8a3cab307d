"""The resolved recipe of this run: every value and its origin, and what differs in earlier attempts or another run."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import TablePage, begin_typing
from trainkit.dashboard.panels.rows import Column, RowTable, TableRow, cell
from trainkit.errors import TrainkitError
from trainkit.events.view import View
from trainkit.rundir import recipes
from trainkit.rundir.listing import neighbours
from trainkit.rundir.recipes import RecipeChange, RecipeEntry, RecipeHistory


class RecipePage(TablePage):
    """The resolved recipe: `/` filters, `o` leaves the defaults out, `d` and `u` show what differs from others."""

    NAME = "recipe"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("o", "written", "without defaults"),
        Binding("d", "differences", "earlier attempts"),
        Binding("u", "other", "another run"),
        Binding("escape", "all", "all", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._found: RecipeHistory | None = None
        self._read_for: object = None
        self._written = False
        #: The number of the change that is shown, from 1; 0 shows the recipe.
        self._change = 0
        #: The other run that this one is compared with, and what differs.
        self._other: tuple[str, tuple[RecipeChange, ...]] | None = None
        #: The text below the table for each row, by its key.
        self._details: dict[str, Content] = {}

    def compose(self) -> ComposeResult:
        wanted = Input(placeholder="part of a key, a value or an origin; escape shows all", id="recipe-filter")
        wanted.display = False
        yield wanted
        yield from super().compose()

    def show_view(self, view: View, *, now: float) -> None:
        # a resumed run replaces its recipe before the attempt begins, and restores it if the attempt is refused
        if (wanted := (view.attempt, view.started, view.finished)) != self._read_for:
            self._read_for = wanted
            self.work(self._read, group="recipe", only=True)

    async def _read(self) -> None:
        self._found = await asyncio.to_thread(recipes.read, self.run_directory)
        self._change = min(self._change, len(self._found.changes))
        self._show()

    def _show(self) -> None:
        if (found := self._found) is None:
            return
        title, empty, columns, lines = self._lines(found)
        if wanted := self.query_one(Input).value.casefold():
            lines = [line for line in lines if any(wanted in part.plain.casefold() for part in line.cells)]
            title, empty = f"{title}, {len(lines):,} match “{wanted}”", f"nothing matches “{wanted}”"
        self._details = {line.key: line.detail for line in lines}
        self.entitle(title, f"changed {len(found.changes)} × between attempts: d" if found.changes else "")
        self.rows.show(columns, [TableRow(line.key, line.cells) for line in lines], empty=empty)
        if not lines:
            self.show_detail(Content(""))

    def _lines(self, found: RecipeHistory) -> tuple[str, str, tuple[Column, ...], list[_Line]]:
        """Return the title, the text for an empty table, columns and lines."""
        if self._other:
            name, changes = self._other
            title = f"recipe: {_differences(len(changes))} from {name}"
            return title, "nothing differs but the name", _OTHER, [_change_line(change) for change in changes]
        if self._change:
            attempt, changes = found.changes[self._change - 1]
            title = f"recipe: {_differences(len(changes))} after attempt {attempt}"
            return title, "nothing differs", _CHANGE, [_change_line(change) for change in changes]
        entries = [entry for entry in found.entries if not self._written or entry.origin != recipes.DEFAULT]
        title = f"recipe: {len(entries):,} of {len(found.entries):,} keys{', no defaults' * self._written}"
        return title, found.problem or "no keys", _ENTRY, [_entry_line(entry) for entry in entries]

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id in self._details:
            self.show_detail(self._details[event.option_id], from_top=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "all":
            return super().check_action(action, parameters)
        # otherwise escape is not this page's
        return self.query_one(Input).display or self._written or self._change > 0 or self._other is not None

    def offers(self, action: str) -> bool:
        return action != "differences" or bool(self._found and self._found.changes)

    def copy_text(self) -> str | None:
        """Return the chosen key and its value."""
        detail = self._details.get(self.rows.chosen or "")
        return None if detail is None else detail.plain.partition("\n")[0]

    def action_filter(self) -> None:
        begin_typing(self.query_one(Input))

    def action_written(self) -> None:
        self._written, self._change, self._other = not self._written, 0, None
        self._show()

    def action_differences(self) -> None:
        """Show the changes of one attempt after another, and then the recipe again."""
        changes = self._found.changes if self._found else ()
        if not changes:
            self.notify("the recipe has not changed since the run started", markup=False)
            return
        self._change, self._other = (self._change + 1) % (len(changes) + 1), None
        self._show()

    def action_other(self) -> None:
        """Ask for another run and show what differs from it."""

        def answered(run: Path | None) -> None:
            if run is not None:
                self.work(partial(self._compare, run), group="recipe", only=True)

        self.app.push_screen(ChooseRun(self.run_directory, "compare this recipe with that of …"), answered)

    async def _compare(self, run: Path) -> None:
        try:
            theirs = await asyncio.to_thread(recipes.entries, run / recipes.FILE)
        except TrainkitError as error:
            self.notify(f"{error.where}: {error.problem}", title=cell(run.name).plain, severity="error", markup=False)
            return
        ours = {entry.key: entry for entry in self._found.entries} if self._found else {}
        self._other = run.name, tuple(c for c in recipes.changed_keys(theirs, ours) if c.key != recipes.NAME)
        self._show()

    def action_all(self) -> None:
        wanted = self.query_one(Input)
        wanted.value, wanted.display = "", False
        self._written, self._change, self._other = False, 0, None
        self.focus()
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.focus()


class _Line(NamedTuple):
    key: str
    cells: tuple[Content, ...]
    detail: Content


_ORIGIN = Column("written at", drop=1, least=24)
_ENTRY: tuple[Column, ...] = (Column("key", least=34), Column("value", least=16), _ORIGIN)
_CHANGE: tuple[Column, ...] = (Column("key", least=24), Column("before", least=12), Column("now", least=12), _ORIGIN)
_OTHER: tuple[Column, ...] = (
    Column("key", least=24),
    Column("other run", least=12),
    Column("this run", least=12),
    _ORIGIN,
)


def _entry_line(entry: RecipeEntry) -> _Line:
    written = entry.origin != recipes.DEFAULT
    key = cell(entry.key, theme.BRIGHT if written else theme.TEXT)
    value = cell(entry.value, theme.TEXT if written else theme.DIM)
    head = Content.assemble(key, cell(" = ", theme.DIM), cell(entry.value, theme.TRAIN))
    return _Line(entry.key, (key, value, _origin(entry)), _detail(head, entry))


def _change_line(change: RecipeChange) -> _Line:
    key = cell(change.key, theme.BRIGHT)
    old, new = (cell(e.value if e else "not given", theme.TEXT if e else theme.DIM) for e in (change.old, change.new))
    entry = change.new or change.old
    assert entry is not None
    head = Content.assemble(key, cell(" = ", theme.DIM), old, cell("  →  ", theme.DIM), new)
    origin = _origin(change.new) if change.new else cell("")
    return _Line(change.key, (key, old, new, origin), _detail(head, entry))


def _origin(entry: RecipeEntry) -> Content:
    color = (
        theme.DIM
        if entry.origin == recipes.DEFAULT
        else theme.WARN
        if entry.origin.startswith("--set")
        else theme.SPEED
    )
    return cell(entry.origin, color)


def _detail(head: Content, entry: RecipeEntry) -> Content:
    lines = [head, Content.assemble(cell("written at  ", theme.DIM), _origin(entry))]
    return Content("\n").join([*lines, cell(entry.meaning)] if entry.meaning else lines)


def _differences(number: int) -> str:
    return f"{number:,} difference{'s' * (number != 1)}"


class ChooseRun(ModalScreen[Path | None]):
    """A dialog to choose a run by a part of its name; arrows choose, enter accepts, escape cancels."""

    DEFAULT_CSS = """
    ChooseRun > .choose {
        width: 60; max-width: 90%; height: 20; max-height: 80%; padding: 0 1;
        border: round $dim; background: $ground; border-title-color: $bright;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move('cursor_down')", priority=True),
        Binding("up", "move('cursor_up')", priority=True),
        Binding("pagedown", "move('page_down')", priority=True),
        Binding("pageup", "move('page_up')", priority=True),
        Binding("escape", "leave"),
    ]

    def __init__(self, run_directory: Path, question: str) -> None:
        super().__init__()
        self._question = question
        self._runs = {str(place): run for place, run in enumerate(neighbours(run_directory))}

    def compose(self) -> ComposeResult:
        with Vertical(classes="choose") as box:
            box.border_title = cell(self._question, theme.BRIGHT)
            yield Input(placeholder="part of a name")
            yield RowTable()

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show()

    def _show(self) -> None:
        wanted = self.query_one(Input).value.casefold()
        rows = [TableRow(id, [cell(run.name)]) for id, run in self._runs.items() if wanted in run.name.casefold()]
        empty = "no run matches" if self._runs else "there is no other run in this directory"
        self.query_one(RowTable).show([Column("run")], rows, empty=empty)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if (chosen := self.query_one(RowTable).chosen) is not None:
            self.dismiss(self._runs[chosen])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        assert event.option_id is not None
        self.dismiss(self._runs[event.option_id])

    def action_move(self, how: str) -> None:
        self.query_one(RowTable).move(how)

    def action_leave(self) -> None:
        self.dismiss(None)
