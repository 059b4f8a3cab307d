"""The recipe as it was resolved for this run: every value, and where it was written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.rows import Column, Row, Rows, cell
from trainkit.errors import TrainkitError
from trainkit.events.view import View

FILE, DEFAULT = "recipe.toml", "default"


class Entry(NamedTuple):
    """One key: its value as TOML, where that was written (`recipes/x.toml:14`, `--set` or `default`), what it means."""

    key: str
    value: str
    origin: str
    meaning: str


class Change(NamedTuple):
    """One key that two recipes differ in: its entry before and after, None where a recipe has no such key."""

    key: str
    old: Entry | None
    new: Entry | None


@dataclass(frozen=True)
class Found:
    """What a run's directory says of its recipes; `changes` are (attempt, what differs after it), the newest first."""

    entries: tuple[Entry, ...] = ()
    changes: tuple[tuple[int, tuple[Change, ...]], ...] = ()
    problem: str = ""


class Recipe(Page):
    """The resolved recipe: `/` filters, `o` leaves the defaults out, `d` shows what changed between attempts."""

    NAME = "recipe"
    DEFAULT_CSS = """
    #recipe-detail {
        height: 7; max-height: 40%; scrollbar-size-vertical: 1;
        scrollbar-color: $edge; scrollbar-color-hover: $dim; scrollbar-background: $ground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("o", "written", "only what was written"),
        Binding("d", "differences", "differences"),
        Binding("j,down", "move('cursor_down')", "next", show=False),
        Binding("k,up", "move('cursor_up')", "previous", show=False),
        Binding("pagedown,ctrl+d", "move('page_down')", "a page down", show=False),
        Binding("pageup,ctrl+u", "move('page_up')", "a page up", show=False),
        Binding("g,home", "move('first')", "first", show=False),
        Binding("G,end", "move('last')", "last", show=False),
        Binding("J", "scroll_detail(1)", "scroll what is below down", show=False),
        Binding("K", "scroll_detail(-1)", "scroll what is below up", show=False),
        Binding("escape", "all", "all", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._found: Found | None = None
        self._read_for: object = None
        self._written = False
        #: Which of the changes is shown, counted from 1; 0 is the recipe itself.
        self._change = 0
        #: What is told below the table of each row, by its key.
        self._details: dict[str, Content] = {}

    def compose(self) -> ComposeResult:
        wanted = Input(placeholder="part of a key, a value or an origin; escape shows all", id="recipe-filter")
        wanted.display = False
        yield wanted
        with Vertical(id="recipe-frame", classes="framed"):
            yield Rows()
        with VerticalScroll(id="recipe-detail", classes="framed", can_focus=False):
            yield Static("", markup=False)

    def show_view(self, view: View, *, now: float) -> None:
        # a run's recipe is replaced only before an attempt begins
        if (wanted := (view.attempt, view.started)) != self._read_for:
            self._read_for = wanted
            self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        self._found = await asyncio.to_thread(read, self.run_directory)
        self._change = min(self._change, len(self._found.changes))
        self._show()

    def _show(self) -> None:
        if (found := self._found) is None:
            return
        if self._change:
            attempt, changes = found.changes[self._change - 1]
            columns, lines = _CHANGE, [_change_line(change) for change in changes]
            title, empty = f"recipe: {_differences(len(lines))} after attempt {attempt}", "nothing differs"
        else:
            entries = [entry for entry in found.entries if not self._written or entry.origin != DEFAULT]
            columns, lines = _ENTRY, [_entry_line(entry) for entry in entries]
            title = f"recipe: {len(lines):,} of {len(found.entries):,} keys{', no defaults' * self._written}"
            empty = found.problem or "no keys"
        if wanted := self.query_one(Input).value.casefold():
            lines = [line for line in lines if any(wanted in part.plain.casefold() for part in line.cells)]
            title, empty = f"{title}, {len(lines):,} of them with “{wanted}”", f"nothing with “{wanted}” in it"
        self._details = {line.key: line.detail for line in lines}
        frame = self.query_one("#recipe-frame", Vertical)
        frame.border_title = cell(title, theme.DIM)
        frame.border_subtitle = cell(_kept(found), theme.DIM)
        self.query_one(Rows).show(columns, [Row(line.key, line.cells) for line in lines], empty=empty)
        if not lines:
            self.query_one("#recipe-detail Static", Static).update("")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id in self._details:
            self.query_one("#recipe-detail", VerticalScroll).scroll_home(animate=False)
            self.query_one("#recipe-detail Static", Static).update(self._details[event.option_id])

    def action_filter(self) -> None:
        wanted = self.query_one(Input)
        wanted.display = True
        wanted.focus()

    def action_written(self) -> None:
        self._written, self._change = not self._written, 0
        self._show()

    def action_differences(self) -> None:
        """Go back through the changes, one attempt at a time, and then to the recipe again."""
        changes = self._found.changes if self._found else ()
        if not changes:
            self.notify("no earlier recipe is kept: it has not changed since the run began", markup=False)
            return
        self._change = (self._change + 1) % (len(changes) + 1)
        self._show()

    def action_move(self, how: str) -> None:
        self.query_one(Rows).move(how)

    def action_scroll_detail(self, cells: int) -> None:
        self.query_one("#recipe-detail", VerticalScroll).scroll_relative(y=cells, animate=False)

    def action_all(self) -> None:
        wanted = self.query_one(Input)
        wanted.value, wanted.display = "", False
        self._written, self._change = False, 0
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


def read(run_directory: Path) -> Found:
    """The run's recipe and how it changed, as its files say, whether or not they are valid recipes (any more)."""
    try:
        newer = _entries(run_directory / FILE)
    except TrainkitError as error:
        return Found(problem=f"{error.where}: {error.problem}")
    entries, changes = tuple(newer.values()), []
    for attempt in sorted(_attempts(run_directory), reverse=True):
        try:
            older = _entries(run_directory / f"recipe.before-{attempt}.toml")
        except TrainkitError:
            continue  # one that cannot be read is one that was not kept
        keys = [*newer, *(key for key in older if key not in newer)]
        found = [Change(key, older.get(key), newer.get(key)) for key in keys]
        differ = [c for c in found if c.old is None or c.new is None or c.old.value != c.new.value]
        changes.append((attempt, tuple(differ)))
        newer = older
    return Found(entries, tuple(changes))


def _attempts(run_directory: Path) -> Iterator[int]:
    for path in run_directory.glob("recipe.before-*.toml"):
        attempt = path.name.removeprefix("recipe.before-").removesuffix(".toml")
        if attempt.isdecimal():
            yield int(attempt)


def _entries(path: Path) -> dict[str, Entry]:
    """Every value of a resolved recipe by its dotted key. The origin of each is the comment on its line."""
    import tomli

    from trainkit.recipe import language
    from trainkit.recipe.locate import dotted, locate
    from trainkit.recipe.write import toml_value

    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        table = tomli.loads(text)
    except OSError as error:
        raise TrainkitError(f"it cannot be read: {error.strerror}", where=path.name) from None
    except (UnicodeDecodeError, tomli.TOMLDecodeError, RecursionError) as error:
        raise TrainkitError(f"it is not TOML: {error}", where=path.name) from None
    lines, places = text.split("\n"), locate(text)
    entries = {}
    for key, value in _leaves(table, ()):
        node, place = language.node_at(key, table), places[key]
        origin = lines[place - 1].rpartition("  # ")[2] if "  # " in lines[place - 1] else f"{path.name}:{place}"
        name = dotted(key)
        entries[name] = Entry(name, toml_value(value), origin, language.meaning(node) if node else "")
    return entries


def _leaves(value: Any, key: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Tables and lists of tables are walked into, as `recipe.write.flat` does."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key, index))
    else:
        yield key, value


def _entry_line(entry: Entry) -> _Line:
    written = entry.origin != DEFAULT
    key = cell(entry.key, theme.BRIGHT if written else theme.TEXT)
    value = cell(entry.value, theme.TEXT if written else theme.DIM)
    head = Content.assemble(key, cell(" = ", theme.DIM), cell(entry.value, theme.TRAIN))
    return _Line(entry.key, (key, value, _origin(entry)), _detail(head, entry))


def _change_line(change: Change) -> _Line:
    key = cell(change.key, theme.BRIGHT)
    old, new = (cell(e.value if e else "not given", theme.TEXT if e else theme.DIM) for e in (change.old, change.new))
    entry = change.new or change.old
    assert entry is not None
    head = Content.assemble(key, cell(" = ", theme.DIM), old, cell("  →  ", theme.DIM), new)
    origin = _origin(change.new) if change.new else cell("")
    return _Line(change.key, (key, old, new, origin), _detail(head, entry))


def _origin(entry: Entry) -> Content:
    color = theme.DIM if entry.origin == DEFAULT else theme.WARN if entry.origin.startswith("--set") else theme.SPEED
    return cell(entry.origin, color)


def _detail(head: Content, entry: Entry) -> Content:
    lines = [head, Content.assemble(cell("written at  ", theme.DIM), _origin(entry))]
    return Content("\n").join([*lines, cell(entry.meaning)] if entry.meaning else lines)


def _differences(number: int) -> str:
    return f"{number:,} difference{'s' * (number != 1)}"


def _kept(found: Found) -> str:
    return f"changed {len(found.changes)} × between attempts: d" if found.changes else ""
