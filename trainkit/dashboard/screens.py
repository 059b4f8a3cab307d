"""What lies over the dashboard: the question before a stop, and the help."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from trainkit.dashboard import theme


class ConfirmStop(ModalScreen[bool]):
    """Stop the run? Enter alone is no: nobody stops a run by leaning on the keyboard."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n,escape,q,enter", "answer(False)"),
    ]

    def compose(self) -> ComposeResult:
        yield Static(
            Content.assemble(
                ("Stop this run?\n\n", f"bold {theme.BRIGHT}"),
                ("It finishes its step, writes a checkpoint\nand ends. ", theme.TEXT),
                ("trainkit resume", theme.TRAIN),
                (" goes on from there.\n\n", theme.TEXT),
                ("y", f"bold {theme.WARN}"),
                (" stop      ", theme.DIM),
                ("n", f"bold {theme.BRIGHT}"),
                (" go on", theme.DIM),
            ),
            classes="dialog",
        )

    def action_answer(self, stop: bool) -> None:
        self.dismiss(stop)


class GoTo(ModalScreen[int | None]):
    """Which step? What is no number is no answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave")]

    def compose(self) -> ComposeResult:
        yield Input(placeholder="go to step", type="integer", classes="goto")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(int(event.value) if event.value.isdecimal() else None)

    def action_leave(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    """The keys and what the chart's signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "leave")]

    KEYS = (
        ("q", "detach: the run goes on without this window"),
        ("S", "stop the run after a checkpoint (asks first)"),
        ("c", "write a checkpoint now"),
        ("p", "pause, or go on"),
        ("e", "evaluate now"),
        ("l", "loss on a logarithmic scale, or back"),
        ("1 …", "the pages, as they are numbered at the top"),
        ("space , . ← → G", "in a replay: halt, slower, faster, back, on, go to a step"),
        ("tab", "next panel, where there is room for one only"),
        ("?", "this"),
    )
    SIGNS = (
        ("━", theme.TRAIN, "trend of the training loss; around it, all of it"),
        ("━", theme.VALIDATION[0], "validation loss"),
        ("◆", theme.BUSY, "checkpoint"),
        ("▲", theme.WARN, "resumed here"),
        ("!", theme.BAD, "alert"),
        ("×", theme.BAD, "not a number"),
    )

    def compose(self) -> ComposeResult:
        keys = [Content.assemble((f"{key:<17}", f"bold {theme.BRIGHT}"), (told, theme.TEXT)) for key, told in self.KEYS]
        signs = [Content.assemble((f"{sign:<17}", color), (told, theme.TEXT)) for sign, color, told in self.SIGNS]
        yield Static(Content("\n").join([*keys, Content(""), *signs]), classes="dialog")

    def action_leave(self) -> None:
        self.dismiss()
