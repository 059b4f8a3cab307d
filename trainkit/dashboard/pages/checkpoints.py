"""The checkpoints of the run: which there are, how good they are, and how to go on from one."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList

from trainkit.dashboard import theme
from trainkit.dashboard.manifest import clock, kept, manifest_facts, present
from trainkit.dashboard.pages.table import TablePage
from trainkit.dashboard.panels.rows import Column, Row, cell
from trainkit.dashboard.verify import verified
from trainkit.events import marks, plain
from trainkit.events.view import Checkpoint, View
from trainkit.recipe.load import as_shown

#: Seconds between two looks at the disk while nothing new is saved, and before a manifest is read: who walks through
#: the table fast reads none on the way.
LOOK_EVERY, REST = 10.0, 0.05
EMPTY = (
    "no checkpoints yet: [checkpoint] in the recipe says when they are written (every_minutes, keep_every);"
    " c writes one now"
)
COMMANDS = ("resume", "verify")
KEPT = ", kept"
KINDS = {"rolling": theme.DIM, "requested": theme.TEXT, "permanent": theme.BUSY, "final": theme.GOOD}


class Checkpoints(TablePage):
    """What was saved: `y` copies the command that goes on from the chosen one, `v` verifies it, `m` has it kept, `o`
    hides those that are gone."""

    NAME = "checkpoints"
    DEFAULT_CSS = "Checkpoints > .detail { height: 15; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy('resume')", "copy resume"),
        Binding("Y", "copy('verify')", "copy verify", key_display="Y", show=False),
        Binding("v", "verify", "verify"),
        Binding("m", "mark", "keep", tooltip="keep it, whatever is saved later, or no longer"),
        Binding("o", "present", "only those there"),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._view = View()
        self._now = 0.0
        self._told: object = None
        #: Whether the manifest is there, by the step of each directory; None where that is not known (yet).
        self._disk: Mapping[int, bool] | None = None
        self._kept: frozenset[int] = frozenset()
        self._looked, self._looked_for = 0.0, object()
        self._only_present = False
        #: The chosen step, and what is known of it.
        self._chosen: int | None = None
        self._facts: list[tuple[str, str]] = []
        #: What verifying found, by step, and the step that is being verified since when (of the monotonic clock).
        self._verified: dict[int, list[Content]] = {}
        self._verifying: tuple[int, float] | None = None

    def show_view(self, view: View, *, now: float) -> None:
        self._view, self._now = view, now
        saved = (view.attempt, len(view.checkpoints), view.checkpoints[-1:])
        if saved != self._looked_for or abs(now - self._looked) >= LOOK_EVERY:
            self._looked_for, self._looked = saved, now
            self.run_worker(self._look(), group="look", exclusive=True)
        measured = [view.series[loss].version for loss in _losses(view)]
        if self._verifying:
            self._show_detail()
        told = (saved, measured, self._disk, self._kept, self._only_present, view.saving, view.finished, int(now // 60))
        if told != self._told:
            self._told = told
            self._show()

    async def _look(self) -> None:
        """See what is there, and read the chosen one's manifest again: it is written anew where its kind changes."""
        self._disk, self._kept = await asyncio.to_thread(
            lambda: (present(self.run_directory), kept(self.run_directory))
        )
        self.show_view(self._view, now=self._now)
        if self._chosen is not None:
            self._read(self._chosen)

    def _show(self) -> None:
        view, saved = self._view, _newest_first(self._view)
        there = {c.step: _whereabouts(c, self._disk) for c in saved}
        shown = [c for c in saved if not self._only_present or there[c.step] == "there"]
        losses = {loss: {c.step: _at(view, loss, c.step) for c in saved} for loss in _losses(view)}
        best = {loss: _best(values, there) for loss, values in losses.items()}
        rows = []
        for c in shown:
            gone = there[c.step] in ("replaced", "gone")
            cells = [
                cell(f"{c.step:,}", theme.DIM if gone else theme.BRIGHT),
                *(_loss(values[c.step], best=best[loss] == c.step, gone=gone) for loss, values in losses.items()),
                cell(c.kind, KINDS.get(c.kind, theme.TEXT) if not gone else theme.DIM),
                cell(plain.bytes_(c.bytes), theme.DIM if gone else theme.TEXT),
                cell(_age(self._now - c.t), theme.DIM),
                cell(clock(c.t), theme.DIM),
                cell(there[c.step] + KEPT * (c.step in self._kept), _WHEREABOUTS[there[c.step]]),
            ]
            rows.append(Row(str(c.step), cells))
        number = sum(where == "there" for where in there.values())
        self.entitle(f"checkpoints: {number:,} there of {len(saved):,} written", _below(view, there))
        empty = "none of those that were written is there any more; o shows them" if saved else EMPTY
        self.rows.show(_columns(losses), rows, empty=empty)
        if not rows:
            self._chosen = None
        self._show_detail()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        assert event.option_id is not None
        if (step := int(event.option_id)) != self._chosen:
            self._chosen, self._facts = step, []
            self._read(step)
            self._show_detail(from_top=True)

    def _read(self, step: int) -> None:
        self.run_worker(self._read_manifest(step), group="manifest", exclusive=True)

    async def _read_manifest(self, step: int) -> None:
        await asyncio.sleep(REST)
        facts = await asyncio.to_thread(manifest_facts, self.run_directory / "checkpoints" / str(step))
        if step == self._chosen and facts != self._facts:
            self._facts = facts
            self._show_detail()

    def _show_detail(self, *, from_top: bool = False) -> None:
        chosen = next((c for c in self._view.checkpoints[::-1] if c.step == self._chosen), None)
        title = "" if chosen is None else f"step {chosen.step:,}"
        lines = [] if chosen is None else self._detail(chosen)
        self.show_detail(Content("\n").join(lines), title=title, from_top=from_top)

    def _detail(self, chosen: Checkpoint) -> list[Content]:
        where = _whereabouts(chosen, self._disk)
        if where == "replaced":
            return [cell("A rolling checkpoint: a newer one has replaced it.", theme.DIM)]
        if where in ("gone", "no manifest"):
            lack = "Its directory is gone." if where == "gone" else "There is no manifest.json in it: it is not whole."
            return [cell(lack, theme.WARN)]
        key_of = {"resume": "y", "verify": "v"}
        lines = [
            Content.assemble(cell(f"{key_of[name]}  ", f"bold {theme.WARN}"), cell(self._command(name), theme.BRIGHT))
            for name in COMMANDS
        ]
        lines[1:1] = [cell(f"   {note}", theme.DIM) for note in self._notes(chosen)]
        lines += self._verdict(chosen.step)
        facts = self._facts or [("manifest", "…")]
        pad = max(len(label) for label, _ in facts) + 2
        return [*lines, Content(""), *(Content.assemble(cell(f"{a:<{pad}}", theme.DIM), cell(b)) for a, b in facts)]

    def _notes(self, chosen: Checkpoint) -> Iterator[str]:
        if chosen.step in self._kept:
            yield "kept: it is never removed to make room for another; m takes the mark away"
        elif chosen.kind == "rolling":
            yield "the next rolling checkpoint replaces it; m keeps it"
        if chosen.kind == "final":
            yield "the run is finished: resume needs --set train.steps=… to make it longer"
        elif chosen.step != max(c.step for c in self._view.checkpoints):
            yield "from here, later checkpoints are set aside, not deleted"
        if self._view.finished is None:
            yield "resume works once nobody trains this run"

    def _verdict(self, step: int) -> list[Content]:
        if self._verifying and self._verifying[0] == step:
            since = int(time.monotonic() - self._verifying[1])
            return [cell(f"   reading every byte of it and comparing checksums … {since} s", theme.BUSY)]
        return self._verified.get(step, [])

    def _command(self, name: str) -> str:
        return f"trainkit {name} {shlex.quote(f'{as_shown(self.run_directory)}/{self._chosen}')}"

    def action_copy(self, name: str) -> None:
        if not self._is_there():
            return
        # what is pasted into a shell is inert too; a directory whose name is not cannot be named this way
        command = cell(self._command(name)).plain
        self.app.copy_to_clipboard(command)
        self.notify(command, title="copied", markup=False)

    def habits(self) -> dict[str, Any]:
        return {"present": self._only_present}

    def adopt(self, habits: Mapping[str, Any]) -> None:
        self._only_present = habits.get("present") is True

    def action_present(self) -> None:
        self._only_present = not self._only_present
        self.show_view(self._view, now=self._now)

    def action_mark(self) -> None:
        """Keep the chosen one, or no longer."""
        if self._is_there() and (step := self._chosen) is not None:
            checkpoint = self.run_directory / "checkpoints" / str(step)
            self.post_message(self.Act(lambda: self.run_worker(self._mark(checkpoint), group="mark")))

    async def _mark(self, checkpoint: Path) -> None:
        try:
            await asyncio.to_thread(marks.mark, checkpoint, keep=not marks.is_marked(checkpoint))
        except OSError as error:
            told = f"{checkpoint.name} cannot be marked: {error.strerror}"
            self.notify(told, severity="error", markup=False)
        await self._look()

    def action_verify(self) -> None:
        """Verify the chosen one in a process of its own, one at a time."""
        if self._verifying:
            self.notify(f"step {self._verifying[0]:,} is still being verified", severity="warning", markup=False)
        elif self._is_there() and (step := self._chosen) is not None:
            self._verifying = step, time.monotonic()
            self.run_worker(self._verify(step), group="verify")
            self._show_detail()

    async def _verify(self, step: int) -> None:
        try:
            self._verified[step] = await verified(self.run_directory.absolute() / "checkpoints" / str(step))
        finally:
            self._verifying = None
        self._show_detail()

    def _is_there(self) -> bool:
        """Whether the chosen one is on the disk; says so where it is not."""
        chosen = next((c for c in self._view.checkpoints if c.step == self._chosen), None)
        if chosen is not None and _whereabouts(chosen, self._disk) not in ("replaced", "gone", "no manifest"):
            return True
        self.notify("this checkpoint is not there", severity="warning", markup=False)
        return False


_WHEREABOUTS = {
    "there": theme.GOOD,
    "replaced": theme.DIM,
    "gone": theme.WARN,
    "no manifest": theme.BAD,
    "…": theme.DIM,
}


def _newest_first(view: View) -> list[Checkpoint]:
    """One for each step: a rolling one that somebody asked to keep was told of twice."""
    return sorted({c.step: c for c in view.checkpoints}.values(), key=lambda c: c.step, reverse=True)


def _whereabouts(checkpoint: Checkpoint, disk: Mapping[int, bool] | None) -> str:
    if disk is None:
        return "…"
    if checkpoint.step in disk:
        return "there" if disk[checkpoint.step] else "no manifest"
    return "replaced" if checkpoint.kind == "rolling" else "gone"


def _losses(view: View) -> list[str]:
    return [f"validation/{name}/loss" for name in view.validation_sets()]


def _at(view: View, loss: str, step: int) -> float | None:
    """The loss that was measured at exactly this step."""
    series = view.series[loss]
    place = bisect_left(series.steps, step)
    return series.values[place] if place < len(series) and series.steps[place] == step else None


def _best(values: Mapping[int, float | None], there: Mapping[int, str]) -> int | None:
    """The step with the lowest loss among those that can be used."""
    usable = [(v, step) for step, v in values.items() if v is not None and math.isfinite(v) and there[step] == "there"]
    return min(usable)[1] if usable else None


def _loss(value: float | None, *, best: bool, gone: bool) -> Content:
    if value is None:
        return cell("–  ", theme.FAINT)
    told = plain.quantity(value)
    return (
        cell(f"{told} ★", f"bold {theme.VALIDATION[0]}")
        if best
        else cell(f"{told}  ", theme.DIM if gone else theme.TEXT)
    )


def _columns(losses: Mapping[str, object]) -> list[Column]:
    names = [plain.inert(loss[len("validation/") : -len("/loss")]) for loss in losses]
    return [
        Column("step", right=True),
        *(Column(f"{name}  ", drop=6 + place if place else 0, right=True) for place, name in enumerate(names)),
        Column("kind", drop=2),
        Column("size", drop=4, right=True),
        Column("age", drop=3, right=True),
        Column("written", drop=1_000),
        Column("on disk", drop=1),
    ]


def _below(view: View, there: Mapping[int, str]) -> str:
    if view.saving is not None:
        return f"saving step {view.saving:,} …"
    return "★ lowest loss of those there" if there and _losses(view) else ""


def _age(seconds: float) -> str:
    """The largest unit alone: it is drawn anew once a minute."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"
