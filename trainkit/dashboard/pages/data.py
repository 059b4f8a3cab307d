"""The training data: the mixture so far, and the decoded batch of any step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Unmount
from textual.message import Message
from textual.widgets import Input, Static

from trainkit.dashboard import theme
from trainkit.dashboard.batches import Batch, BatchReader, DisplayedRow
from trainkit.dashboard.pages.page import Page
from trainkit.events.view import View
from trainkit.text import one_line

EPOCHS = "data/epochs/"
#: Sources that are listed, and the steps over which the wait for data is averaged.
MOST_SOURCES, WAIT_STEPS = 16, 50
#: Characters of a batch that are laid out: the rest is what `trainkit inspect` is for.
MOST_CHARACTERS = 30_000
#: Seconds between two readings of the newest batch: each is a process of its own, beside the training.
FOLLOW_EVERY = 5.0
#: One a source, in the order of their names.
COLORS = (theme.TRAIN, theme.VALIDATION[0], theme.NORM, theme.SPEED, *theme.VALIDATION[1:], theme.RATE)
BAR = 8
NO_STEP = "no batch yet: the texts of the last update and their sources appear here (g: go to any step)"
NO_MIXTURE = "how often each source has been seen appears here; the trainer logs it every few seconds"


class DataPage(Page):
    """The batch of a step: at first that of the last update."""

    NAME = "data"
    DEFAULT_CSS = """
    DataPage #mixture { height: auto; max-height: 40%; }
    DataPage #batch { height: 1fr; }
    DataPage #batch {
        scrollbar-size-vertical: 1; scrollbar-color: $edge; scrollbar-color-hover: $dim; scrollbar-background: $ground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,left_square_bracket", "move(-1)", "previous step", key_display="←"),
        Binding("right,right_square_bracket", "move(1)", "next step", key_display="→"),
        Binding("pageup", "move(-100)", "-100 steps", show=False),
        Binding("pagedown", "move(100)", "+100 steps", key_display="pgdn"),
        Binding("g", "ask", "go to"),
        Binding("t", "follow", "follow"),
        Binding("j,down", "scroll(3)", "text down", show=False),
        Binding("k,up", "scroll(-3)", "text up", show=False),
        Binding("escape", "no_question", "cancel", show=False),
    ]

    class Read(Message):
        """A batch has been read, or could not be."""

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._reader = BatchReader(run_directory, lambda: self.post_message(self.Read()))
        self._step: int | None = None
        #: Whether a person asked for this step; then the page shows it again when it is opened again.
        self._asked = False
        self._follow = False
        self._newest, self._last, self._attempt = -1, math.inf, 0
        self._followed = -math.inf
        self._mixture: dict[str, float] = {}
        #: What the mixture and the batch were last drawn from.
        self._drawn: object = None
        self._laid_out: object = None

    def compose(self) -> ComposeResult:
        question = Input(placeholder="the batch of which step?", type="integer", id="batch-step")
        question.display = False
        yield question
        yield Static("", markup=False, id="mixture", classes="framed")
        with VerticalScroll(id="batch", classes="framed", can_focus=False):
            yield Static("", markup=False, id="batch-text")

    def show_view(self, view: View, *, now: float) -> None:
        if view.attempt != self._attempt:  # an attempt may have another recipe
            self._attempt = view.attempt
            self._reader.forget()
        self._newest, self._last = view.step - 1, math.inf if view.total_steps is None else view.total_steps - 1
        if self.size:  # without a size nothing fits
            self._show_mixture(view)
        if self._step is None and self._newest >= 0 and not self.reading:
            self._step = self._newest
        elif self._follow and self._step != self._newest and time.monotonic() - self._followed >= FOLLOW_EVERY:
            self._step, self._followed = self._newest, time.monotonic()
        self._show_batch()

    def preferences(self) -> dict[str, Any]:
        return {"follow": self._follow}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        self._follow = preferences.get("follow") is True

    def copy_text(self) -> str | None:
        """Return the first visible row of the batch: its source and its texts."""
        batch = None if self._step is None else self._reader.get(self._step)
        if batch is None or not batch.rows:
            return None
        box = self.query_one("#batch")
        width, shown, begin = max(8, box.scrollable_content_region.width), batch.rows[0], 0
        for row in batch.rows:
            if begin <= box.scroll_offset.y:
                shown = row
            begin += sum(1 for _ in batch_lines([row], width, self._colors()))
        head = f"step {self._step} row {shown.row} · {shown.source} · example {shown.example}"
        texts = [f"{piece.where}\n{''.join(text for text, _ in piece.runs)}" for piece in shown.pieces]
        return "\n\n".join([head, *texts])

    @property
    def settled(self) -> bool:
        return self._step is None or self._reader.get(self._step) is not None

    def _show_mixture(self, view: View) -> None:
        box = self.query_one("#mixture", Static)
        self._mixture = epochs_of(view)
        waited = wait_share(view)
        color = theme.WARN if waited is not None and waited > 0.1 else theme.TEXT
        wait = (
            ("data wait is not known yet", theme.DIM)
            if waited is None
            else (f"data wait {waited:.1%} of the step time", color)
        )
        title = Content.assemble(("mixture · ", theme.DIM), wait)
        if (content := (tuple(self._mixture.items()), title.plain, box.size.width)) == self._drawn:
            return
        self._drawn = content
        box.border_title = title
        box.update(mixture_table(self._mixture, box.size.width, self._colors()))

    def _show_batch(self) -> None:
        """Show the batch of the step, or start reading it and say so."""
        step = self._step
        if step is None:
            self._tell("batch", Content.styled(NO_STEP, theme.DIM))
            return
        found = self._reader.get(step)
        following = " · following" if self._follow else ""
        if found is None and self._follow and (before := self._reader.newest_before(step)):
            step, found = before
            following += ", reading the newest"
        title = f"batch of step {step:,}{following}"
        if found is None:
            self._tell(title, Content.styled(f"reading the batch of step {step:,} …", theme.DIM))
        elif found.error:
            problem = Content.styled(f"the batch of step {step:,} cannot be shown\n\n", theme.WARN)
            self._tell(title, Content.assemble(problem, (found.error, theme.TEXT)))
        else:
            self._show_rows(f"{title} · update {step:,} → {step + 1:,}", found)

    def _show_rows(self, title: str, batch: Batch) -> None:
        box = self.query_one("#batch")
        if (content := (title, batch, box.scrollable_content_region.width)) == self._laid_out:
            return
        self._laid_out = content
        box.border_title = Content.styled(title, theme.DIM)
        lines = batch_lines(batch.rows, max(8, box.scrollable_content_region.width), self._colors())
        self.query_one("#batch-text", Static).update(Content("\n").join(lines))

    def _tell(self, title: str, text: Content) -> None:
        if (content := (title, text.plain)) == self._laid_out:
            return
        self._laid_out = content
        self.query_one("#batch").border_title = Content.styled(title, theme.DIM)
        self.query_one("#batch-text", Static).update(text)

    def _colors(self) -> dict[str, str]:
        return {name: COLORS[i % len(COLORS)] for i, name in enumerate(sorted(self._mixture))}

    def on_data_page_read(self, event: Read) -> None:
        self._show_batch()

    def on_hide(self) -> None:
        if not self._asked:
            self._step = None

    def on_unmount(self, event: Unmount) -> None:
        self._reader.close()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "no_question" or self.query_one(Input).display  # otherwise escape is not this page's

    def action_move(self, steps: int) -> None:
        """Show the batch so many steps later, or earlier where negative."""
        self.show_step((self._newest if self._step is None else self._step) + steps)

    def action_follow(self) -> None:
        """Follow the newest batch, or stay at this one."""
        self._follow, self._asked = not self._follow, False
        if self._follow and self._newest >= 0:
            self._step, self._followed = self._newest, time.monotonic()
        self._show_batch()

    def action_ask(self) -> None:
        """Ask for a step."""
        question = self.query_one(Input)
        question.value, question.display = "", True
        question.focus()

    def action_no_question(self) -> None:
        """Close the question."""
        self.query_one(Input).display = False
        self.focus()

    def action_scroll(self, lines: int) -> None:
        """Scroll the batch."""
        self.query_one("#batch").scroll_relative(y=lines, animate=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_no_question()
        with contextlib.suppress(ValueError):  # a sign alone, or too many digits
            self.show_step(int(event.value))

    def show_step(self, step: int) -> None:
        """Show the batch of a step, or of the nearest step that exists, and stay there."""
        self._follow, self._asked = False, True
        self._step = int(max(0, min(step, self._last)))
        self._reader.retry(self._step)
        self.query_one("#batch").scroll_home(animate=False)
        self._show_batch()


def epochs_of(view: View) -> dict[str, float]:
    """Return how many times each source has been seen, by its (inert) name, in the order of the log."""
    found = {name.removeprefix(EPOCHS): view.last(name) for name in view.series if name.startswith(EPOCHS)}
    return {one_line(name): epochs for name, epochs in found.items() if epochs is not None}


def wait_share(view: View) -> float | None:
    """Return the share of the last steps' time that the trainer waited for data; None if unknown."""
    seconds, waited = view.series.get("time/step"), view.series.get("time/data_wait")
    if not seconds or not waited:
        return None
    steps = min(WAIT_STEPS, len(seconds), len(waited))
    whole = sum(seconds.values[-steps:])
    share = sum(waited.values[-steps:]) / whole if whole > 0 else math.nan
    return min(1.0, share) if math.isfinite(share) else None


def mixture_table(epochs: dict[str, float], width: int, colors: dict[str, str]) -> Content:
    """Return name, epochs and progress of the current epoch of each source, in as many columns as fit `width` cells."""
    if not epochs:
        return Content.styled(NO_MIXTURE, theme.DIM)
    pad = min(24, max(map(len, epochs)))
    cells = []
    for name, seen in list(epochs.items())[:MOST_SOURCES]:
        full = int(BAR * (seen % 1)) if math.isfinite(seen) else 0
        label = Content.styled(name, colors[name]).truncate(pad, ellipsis=True, pad=True)
        number = f" {seen:8.2f} epochs  "
        bar = (("━" * full, colors[name]), ("─" * (BAR - full), theme.FAINT))
        cells.append(Content.assemble(label, (number, theme.TEXT), *bar, "    "))
    columns = max(1, width // (cells[0].cell_length or 1))
    lines = [Content("").join(cells[i : i + columns]) for i in range(0, len(cells), columns)]
    lines = [line.truncate(max(1, width)) for line in lines]
    if more := len(epochs) - len(cells):
        lines.append(Content.styled(f"and {more} more", theme.DIM))
    return Content("\n").join(lines)


def batch_lines(rows: Sequence[DisplayedRow], width: int, colors: dict[str, str]) -> Iterator[Content]:
    """Yield the rows as lines of at most `width` cells, each with a bar in the colour of its source. Tokens that are
    learned are bright, the others dim."""
    left = MOST_CHARACTERS
    for row in rows:
        color = colors.get(row.source, COLORS[0])
        label = "" if row.label is None else f" · label {row.label}"
        head = Content.assemble((f"row {row.row}", f"bold {theme.TEXT}"), (f" · {row.source}", color))
        facts = Content.styled(f" · example {row.example:,}{label}", theme.DIM)
        yield from Content.assemble(head, facts).wrap(width)
        for piece in row.pieces:
            tokens = f"  tokens {piece.first:,}–{piece.end - 1:,}" if piece.end else ""
            yield from Content.assemble(("┏ ", color), (piece.where, color), (tokens, theme.DIM)).wrap(width)
            if left <= 0:
                continue
            text = Content.assemble(*((text, theme.BRIGHT if learned else theme.DIM) for text, learned in piece.runs))
            for line in text[:left].wrap(width - 2):
                yield Content.assemble(("┃ ", color), line)
            left -= len(text)
        yield Content("")
    if left < 0:
        yield Content.styled(f"{-left:,} more characters are not shown; trainkit inspect shows all of them", theme.DIM)
