"""The panels of the compare page: the list to choose runs from, and the table of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from trainkit.dashboard import theme
from trainkit.dashboard.charts.plot import letter
from trainkit.dashboard.panels.rows import GAP, Column, RowTable, TableRow, cell
from trainkit.events.view import View
from trainkit.rundir import recipes
from trainkit.rundir.compare import results
from trainkit.text import format_count, format_quantity

#: One for each run, this run's first. More could not be distinguished.
COLORS = (theme.TRAIN, *theme.VALIDATION[:2], theme.SPEED, theme.NORM, *theme.VALIDATION[2:], theme.RATE)
#: The least width of the labels, and of the values of a run, in cells.
LABEL, VALUE = 20, 9

Shown = Sequence[tuple[str, View]]


class ComparedRuns(Vertical):
    """The compared runs, this run first, each with the sign of its curve; below them the runs to choose from."""

    def __init__(self) -> None:
        super().__init__(classes="framed runs")

    def compose(self) -> ComposeResult:
        yield RowTable()

    def show(self, shown: Shown, rest: Sequence[str], *, metric: str, notes: Mapping[str, str], letters: bool) -> None:
        """Name and view of each run that is shown, and the names of the others. `notes` say what is wrong with a run,
        by its name; with `letters`, letters distinguish the curves and not colours."""
        rows = []
        for place, (name, view) in enumerate(shown):
            series, style = view.series.get(metric), f"bold {COLORS[place]}"
            best, note = series.lowest if series else None, notes.get(name, "")
            last = "–" if not series or series.last is None else _number(series.last)
            cells = [
                cell(letter(place) if place and letters else "━━", style), cell(name, theme.BRIGHT),
                cell(note or last, theme.WARN if note else theme.TEXT),
                cell("–" if best is None else _number(best.value), theme.DIM),
            ]  # fmt: skip
            rows.append(TableRow(name, cells))
        rows += [TableRow(name, [cell("  "), cell(name, theme.DIM), cell(""), cell("")]) for name in rest]
        columns = [Column("  "), Column("run", least=8), Column("last", right=True)]
        columns.append(Column("lowest", drop=1, right=True))
        self.query_one(RowTable).show(columns, rows, empty="")


class Results(Vertical):
    """A column for each run: its results, and its values of the keys in which the recipes differ."""

    def __init__(self) -> None:
        super().__init__(classes="framed results")
        self._shown: Shown = ()
        self._recipes: Sequence[Mapping[str, str]] = ()

    def compose(self) -> ComposeResult:
        yield RowTable()

    def show(self, shown: Shown, recipes: Sequence[Mapping[str, str]]) -> None:
        """Name and view of each run, and its recipe's values by their keys."""
        self._shown, self._recipes = shown, recipes
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def text_rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: the names of the runs, then rows of a label and a value of each run."""
        names = ("", *(name for name, _ in self._shown))
        return [names, *results([view for _, view in self._shown]), *self._differences()]

    def _differences(self) -> list[tuple[str, ...]]:
        return [(key, *(each.get(key, "–") for each in self._recipes)) for key in recipes.differing_keys(self._recipes)]

    def _draw(self) -> None:
        table = self.query_one(RowTable)
        came = results([view for _, view in self._shown])
        needed = LABEL + sum(GAP + max(VALUE, *map(len, column)) for column in list(zip(*came, strict=True))[1:])
        if needed >= table.size.width:  # leave out the step of the best value first
            came = [(label, *(value.partition(" at ")[0] for value in values)) for label, *values in came]
        columns = [Column("", least=LABEL, path=True)]
        for place, (name, _) in enumerate(self._shown):
            columns.append(Column(cell(name).plain, drop=place, least=VALUE, right=True))
        rows = []
        for number, (label, *values) in enumerate([*came, *self._differences()]):
            cells = [cell(label, theme.DIM), *(cell(value, COLORS[place]) for place, value in enumerate(values))]
            rows.append(TableRow(f"{number}", cells))
        table.show(columns, rows, empty="")
        self.border_title = cell("results, and what differs in the recipes", theme.DIM)
        lacking = f"no room for {', '.join(table.left_out)}" if table.left_out else ""
        self.border_subtitle = cell(lacking, theme.DIM)


def _number(value: float) -> str:
    return format_count(value) if abs(value) >= 1e3 else format_quantity(value)
