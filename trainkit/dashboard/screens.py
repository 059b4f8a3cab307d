"""The dialogs: a question with yes or no, one for a line of text, and the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from trainkit.dashboard import theme
from trainkit.dashboard.charts.plot import MARKS
from trainkit.dashboard.keys import Key
from trainkit.errors import TrainkitError

#: What the signs on a chart mean; the first two are drawn for every loss.
LINES = (
    ("━", theme.TRAIN, "trend of the training loss, on the band of all values"),
    ("━", theme.VALIDATION[0], "validation loss"),
    ("▲▼", theme.TRAIN, "off the scale; o shows the whole range"),
    ("×", theme.BAD, "not a number"),
    ("1.5", theme.TEXT, "after a title: the last value"),
    ("best", theme.DIM, "the lowest loss or error, the highest accuracy, of the steps that are shown"),
    ("Δ", theme.DIM, "change: the mean of the last tenth of these steps against that of the first tenth"),
)


class Confirm(ModalScreen[bool]):
    """A question with yes or no. Enter alone means no, so that a key held down confirms nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str, told: str, *, yes: str) -> None:
        """`told` says what will happen, `yes` in a word what `y` does."""
        super().__init__()
        self._question, self._told, self._yes = question, told, yes

    def compose(self) -> ComposeResult:
        yield Static(
            Content.assemble(
                (f"{self._question}\n\n", f"bold {theme.BRIGHT}"),
                (f"{self._told}\n\n", theme.TEXT),
                _answers(("y", self._yes), ("n", "cancel")),
            ),
            classes="dialog",
        )

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """A question for a line of text; the result is None after escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]

    def __init__(self, question: str, told: str, *, value: str = "", check: Callable[[str], object]) -> None:
        """`value` is the initial text. `check` raises a TrainkitError for a wrong answer; its message is shown."""
        super().__init__()
        self._question, self._told, self._value, self._check = question, told, value, check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question"):
            yield Static(Content.styled(self._question, f"bold {theme.BRIGHT}"))
            yield Static(Content.styled(self._told, theme.TEXT), id="told")
            yield Input(self._value, select_on_focus=True)
            yield Static(_answers(("enter", "accept"), ("escape", "cancel")), classes="keys")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._check(event.value)
        except TrainkitError as error:
            self.query_one("#told", Static).update(Content.styled(error.problem, theme.WARN))
        else:
            self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    """The keys in force, and what the chart's signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "leave", "leave"),
        Binding("j,down", "scroll(1)", "down"),
        Binding("k,up", "scroll(-1)", "up"),
        Binding("pagedown,space", "scroll(10)", "a page down"),
        Binding("pageup", "scroll(-10)", "a page up"),
        Binding("g,home", "scroll(-10000)", "first"),
        Binding("G,end", "scroll(10000)", "last"),
    ]

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help", can_focus=False):
            yield Static(self._text())

    def _text(self) -> Content:
        signs = [*LINES, *((sign, color, kind) for kind, (sign, color) in MARKS.items())]
        pad = max((len(key.keys) for key in self._keys), default=0) + 3
        parts: list[Content] = []
        for group, keys in groupby(self._keys, key=lambda key: key.group):
            parts.append(Content.styled(group, theme.DIM))
            parts += [_line(f"{key.keys:<{pad}}", f"bold {theme.BRIGHT}", key.meaning) for key in keys]
            parts.append(Content(""))
        parts.append(Content.styled("signs on a chart", theme.DIM))
        parts += [_line(f"{sign:<{pad}}", color, told) for sign, color, told in signs]
        return Content("\n").join(parts)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_leave(self) -> None:
        self.dismiss()


def _answers(yes: tuple[str, str], no: tuple[str, str]) -> Content:
    """The two keys that answer, each with what it does."""
    parts = [(yes[0], f"bold {theme.WARN}"), (f" {yes[1]}      ", theme.DIM)]
    return Content.assemble(*parts, (no[0], f"bold {theme.BRIGHT}"), (f" {no[1]}", theme.DIM))


def _line(head: str, style: str, told: str) -> Content:
    return Content.assemble((f"  {head}", style), (told, theme.TEXT))
