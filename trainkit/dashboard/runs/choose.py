"""The question for another run of the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import Column, RowTable, TableRow, cell
from trainkit.rundir.listing import neighbours


class ChooseRun(ModalScreen[Path | None]):
    """Type a part of a name; arrows choose, enter takes, escape is no answer."""

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
        empty = "no run has that in its name" if self._runs else "there is no other run in this directory"
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
