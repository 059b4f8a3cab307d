"""A table with a head and rows, one of them chosen. Its text is neutralised and never read as markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from trainkit.dashboard import theme
from trainkit.text import one_line

GAP = 2
#: The keys of a table, for whoever has `action_move`.
MOVES: tuple[Binding, ...] = (
    Binding("j,down", "move('cursor_down')", "next", show=False),
    Binding("k,up", "move('cursor_up')", "previous", show=False),
    Binding("pagedown,ctrl+d", "move('page_down')", "a page down", show=False),
    Binding("pageup,ctrl+u", "move('page_up')", "a page up", show=False),
    Binding("g,home", "move('first')", "first", show=False),
    Binding("G,end", "move('last')", "last", show=False),
)


class Column(NamedTuple):
    """A column, and how it gives way if the columns do not all fit.

    Columns with the highest `drop` are left out first, those with 0 never; then the widest are cut to no less than
    `least` cells, at the end, or at the beginning if it is a `path`.
    """

    title: str
    drop: int = 0
    least: int = 1_000
    right: bool = False
    path: bool = False


class TableRow(NamedTuple):
    """`id` identifies the row when the rows are replaced."""

    id: str
    cells: Sequence[Content]


class RowTable(Vertical):
    """A table. Its page has the keys and calls `move`; `OptionList.OptionHighlighted` reports the choice."""

    DEFAULT_CSS = """
    RowTable { height: 1fr; width: 1fr; background: $ground; }
    RowTable > Static { height: auto; color: $dim; }
    RowTable > OptionList, RowTable > OptionList:focus {
        height: 1fr; border: none; padding: 0; color: $ink; background: $ground; background-tint: $ground 0%;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
        scrollbar-color: $edge; scrollbar-color-hover: $dim; scrollbar-background: $ground;
    }
    RowTable > OptionList > .option-list--option { padding: 0; }
    RowTable > OptionList > .option-list--option-highlighted { color: $ink; background: $chosen; text-style: none; }
    RowTable > OptionList > .option-list--option-hover { background: $raised; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._head, self._list = Static("", markup=False), OptionList(markup=False)
        self._list.can_focus = False
        self._columns: Sequence[Column] = ()
        self._rows: Sequence[TableRow] = ()
        self._empty = ""
        self._width = 0
        #: The titles of the columns that did not fit.
        self.left_out: list[str] = []

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._list

    @property
    def chosen(self) -> str | None:
        """The id of the chosen row; None if there are no rows."""
        at = self._list.highlighted
        return None if at is None else self._list.get_option_at_index(at).id

    def show(self, columns: Sequence[Column], rows: Sequence[TableRow], *, empty: str) -> None:
        """Show these rows, or `empty` if there are none. The chosen row stays so; a chosen first stays first."""
        self._columns, self._rows, self._empty = columns, rows, empty
        self._draw()

    def choose(self, id: str) -> None:
        """Choose the row with this id, if there is one."""
        place = next((place for place, row in enumerate(self._rows) if row.id == id), None)
        if place is not None and self._list.option_count:
            self._list.highlighted = place

    def move(self, how: str) -> None:
        """Choose another row: `how` is "cursor_down", "cursor_up", "page_down", "page_up", "first" or "last"."""
        moves = {
            "cursor_down": self._list.action_cursor_down,
            "cursor_up": self._list.action_cursor_up,
            "page_down": self._list.action_page_down,
            "page_up": self._list.action_page_up,
            "first": self._list.action_first,
            "last": self._list.action_last,
        }
        moves[how]()

    def on_resize(self) -> None:
        if self.size.width != self._width:
            self._draw()

    def _draw(self) -> None:
        self._width = self.size.width
        if self._width <= 0:
            return  # not shown yet: a resize follows
        was, at = self.chosen, self._list.highlighted
        kept = _fit_columns(self._columns, [row.cells for row in self._rows], self._width - 1)
        shown = {place for place, _ in kept}
        self.left_out = [column.title for place, column in enumerate(self._columns) if place not in shown]
        head = [Content.styled(column.title, theme.DIM) for column in self._columns]
        with self.app.batch_update():
            self._head.update(_line(head, self._columns, kept) if self._rows else cell(self._empty, theme.DIM))
            self._list.display = bool(self._rows)
            self._list.clear_options()
            self._list.add_options(Option(_line(row.cells, self._columns, kept), id=row.id) for row in self._rows)
            places = {row.id: place for place, row in enumerate(self._rows)}
            if places:
                self._list.highlighted = places.get(was or "", 0) if at else 0


def cell(text: str, style: str = theme.TEXT) -> Content:
    """Return any text as one line without control characters."""
    return Content.styled(one_line(text), style)


def coarse(seconds: float) -> str:
    """Return an age in its largest unit, minutes at least, so that a table is redrawn at most once a minute."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"


def _fit_columns(columns: Sequence[Column], cells: Sequence[Sequence[Content]], room: int) -> list[tuple[int, int]]:
    """Return (index, width) of the columns that are shown, in order."""
    natural = [
        max([cell_len(column.title), *(row[place].cell_length for row in cells)])
        for place, column in enumerate(columns)
    ]
    least = [min(width, column.least) for width, column in zip(natural, columns, strict=True)]
    kept = list(range(len(columns)))

    def wanted(widths: Sequence[int]) -> int:
        return sum(widths[place] for place in kept) + GAP * (len(kept) - 1)

    while wanted(least) > room and any(columns[place].drop for place in kept):
        kept.remove(max(kept, key=lambda place: columns[place].drop))
    widths = list(natural)
    while wanted(widths) > room:
        loose = [place for place in kept if widths[place] > least[place]]
        if not loose:
            break
        widest = max(loose, key=lambda place: widths[place])
        others = [widths[place] for place in loose if place != widest]
        next_widest = max([least[widest], *(width for width in others if width < widths[widest])])
        widths[widest] -= max(1, min(wanted(widths) - room, widths[widest] - next_widest))
    return [(place, widths[place]) for place in kept]


def _line(cells: Sequence[Content], columns: Sequence[Column], kept: Sequence[tuple[int, int]]) -> Content:
    parts = []
    for place, width in kept:
        part = _cut(cells[place], width, columns[place])
        missing = max(0, width - part.cell_length)
        parts.append(part.pad_left(missing) if columns[place].right else part.pad_right(missing))
    return Content(" " * GAP).join(parts)


def _cut(content: Content, width: int, column: Column) -> Content:
    if not column.path or content.cell_length <= width:
        return content.truncate(width, ellipsis=True)
    while content and content.cell_length >= width:
        content = content[1:]
    return Content.assemble(("…", theme.DIM), content)
