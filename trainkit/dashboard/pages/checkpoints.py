"""The checkpoints of the run: which exist, their losses, and the commands that use one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import TablePage
from trainkit.dashboard.panels.checkpoints import CheckpointFiles, command, commands, facts_table, lack, losses, table
from trainkit.dashboard.panels.rows import cell
from trainkit.events.view import SavedCheckpoint, View
from trainkit.rundir import checkpoint_files
from trainkit.rundir.checkpoint_files import kept_steps, manifest_facts, present
from trainkit.text import format_duration, format_time

#: Seconds between two looks at the disk while nothing new is saved, and before a manifest is read, so that moving fast
#: through the table reads none on the way.
LOOK_EVERY, REST = 10.0, 0.05
EMPTY = "no checkpoints yet: [checkpoint] in the recipe sets when they are written (every_minutes, keep_every)"


class CheckpointsPage(TablePage):
    """The checkpoints: `y` copies the command that resumes from the chosen one, `E` the one that exports it, `v`
    verifies it, `m` marks it to be kept, `o` hides those that are not on disk."""

    NAME = "checkpoints"
    DEFAULT_CSS = "CheckpointsPage > .detail { height: 15; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy('resume')", "copy resume"),
        Binding("Y", "copy('verify')", "copy verify", key_display="Y", show=False),
        Binding(
            "E", "copy('export')", "copy export", key_display="E", show=False, tooltip="copy export, for Hugging Face"
        ),
        Binding("v", "verify", "verify"),
        Binding("m", "mark", "keep", tooltip="keep this checkpoint when older ones are deleted, or no longer"),
        Binding("o", "present", "only on disk"),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._view = View()
        self._now = 0.0
        self._drawn: object = None
        self._disk = CheckpointFiles()
        self._looked, self._looked_for = 0.0, object()
        self._only_present = False
        #: The chosen step, and the facts of its manifest.
        self._chosen: int | None = None
        self._facts: list[tuple[str, str]] = []
        #: The results of verifying by step; the step being verified, and when that started (monotonic seconds).
        self._verified: dict[int, list[Content]] = {}
        self._verifying: tuple[int, float] | None = None

    def show_view(self, view: View, *, now: float) -> None:
        self._view, self._now = view, now
        saved = (view.attempt, len(view.checkpoints), view.checkpoints[-1:])
        if saved != self._looked_for or abs(now - self._looked) >= LOOK_EVERY:
            self._looked_for, self._looked = saved, now
            self.work(self._look, group="look", only=True)
        measured = [view.series[loss].version for loss in losses(view)]
        if self._verifying:
            self._show_detail()
        content = (saved, measured, self._disk, self._only_present, view.saving, view.finished, int(now // 60))
        if content != self._drawn:
            self._drawn = content
            self._show()

    async def _look(self) -> None:
        """Look at the disk, and read the chosen manifest again, because a change of kind rewrites it."""
        self._disk = await asyncio.to_thread(
            lambda: CheckpointFiles(present(self.run_directory), kept_steps(self.run_directory))
        )
        self.show_view(self._view, now=self._now)
        if self._chosen is not None:
            self._read(self._chosen)

    def _show(self) -> None:
        view = self._view
        shown = table(view, self._disk, now=self._now, only_present=self._only_present)
        below = "★ lowest loss on disk" if shown.best else ""
        saving = None if view.saving is None else f"saving step {view.saving:,} …"
        self.entitle(f"checkpoints: {shown.on_disk:,} on disk of {shown.written:,} written", saving or below)
        empty = "no checkpoint that was written is still on disk; o lists them" if shown.written else EMPTY
        if not shown.written and self.app.offers("send('save')"):  # type: ignore[attr-defined]
            empty += "; c writes one now"
        self.rows.show(shown.columns, shown.rows, empty=empty)
        if not shown.rows:
            self._chosen = None
        self._show_detail()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        assert event.option_id is not None
        if (step := int(event.option_id)) != self._chosen:
            self._chosen, self._facts = step, []
            self._read(step)
            self._show_detail(from_top=True)

    def _read(self, step: int) -> None:
        self.work(partial(self._read_manifest, step), group="manifest", only=True)

    async def _read_manifest(self, step: int) -> None:
        await asyncio.sleep(REST)
        facts = await asyncio.to_thread(manifest_facts, self.run_directory / "checkpoints" / str(step))
        if step == self._chosen and facts != self._facts:
            self._facts = facts
            self._show_detail()

    def _show_detail(self, *, from_top: bool = False) -> None:
        chosen = self._written()
        title = "" if chosen is None else f"step {chosen.step:,}"
        lines = [] if chosen is None else self._detail(chosen)
        self.show_detail(Content("\n").join(lines), title=title, from_top=from_top)

    def _detail(self, chosen: SavedCheckpoint) -> list[Content]:
        if found := lack(self._disk.whereabouts(chosen)):
            return [found]
        lines = commands(chosen, self._view, self._disk, self.run_directory)
        return [*lines, *self._verdict(chosen.step), Content(""), *facts_table(self._facts or [("manifest", "…")])]

    def _verdict(self, step: int) -> list[Content]:
        if self._verifying and self._verifying[0] == step:
            since = int(time.monotonic() - self._verifying[1])
            return [cell(f"   reading every byte and comparing checksums … {since} s", theme.BUSY)]
        return self._verified.get(step, [])

    def offers(self, action: str) -> bool:
        match action.partition("(")[0]:
            case "copy" | "verify" | "mark":
                return self._usable()
            case "present":
                return bool(self._view.checkpoints)
        return True

    def action_copy(self, name: str) -> None:
        if not self._is_there():
            return
        # text to be pasted into a shell must be inert; a directory with another name cannot be named this way
        text = cell(command(name, self.run_directory, self._chosen)).plain
        self.app.copy_to_clipboard(text)
        self.notify(text, title="copied", markup=False)

    def preferences(self) -> dict[str, Any]:
        return {"present": self._only_present}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        self._only_present = preferences.get("present") is True

    def action_present(self) -> None:
        self._only_present = not self._only_present
        self.show_view(self._view, now=self._now)

    def action_mark(self) -> None:
        """Mark the chosen checkpoint to be kept, or remove the mark."""
        if self._is_there() and (step := self._chosen) is not None:
            checkpoint = self.run_directory / "checkpoints" / str(step)
            self.post_message(self.Act(lambda: self.work(partial(self._mark, checkpoint), group="mark")))

    async def _mark(self, checkpoint: Path) -> None:
        try:
            await asyncio.to_thread(checkpoint_files.mark, checkpoint, keep=not checkpoint_files.is_marked(checkpoint))
        except OSError as error:
            message = f"{checkpoint.name} cannot be marked: {error.strerror}"
            self.notify(message, severity="error", markup=False)
        await self._look()

    def action_verify(self) -> None:
        """Verify the chosen checkpoint in a process of its own, one at a time."""
        if self._verifying:
            self.notify(f"step {self._verifying[0]:,} is still being verified", severity="warning", markup=False)
        elif self._is_there() and (step := self._chosen) is not None:
            self._verifying = step, time.monotonic()
            self.work(partial(self._verify, step), group="verify")
            self._show_detail()

    async def _verify(self, step: int) -> None:
        try:
            self._verified[step] = await verify_checkpoint(self.run_directory.absolute() / "checkpoints" / str(step))
        finally:
            self._verifying = None
        self._show_detail()

    def _is_there(self) -> bool:
        """Return whether the chosen checkpoint is on disk; if not, say so."""
        if self._usable():
            return True
        self.notify("this checkpoint is not on disk", severity="warning", markup=False)
        return False

    def _usable(self) -> bool:
        chosen = self._written()
        return chosen is not None and lack(self._disk.whereabouts(chosen)) is None

    def _written(self) -> SavedCheckpoint | None:
        """Return the chosen checkpoint as logged; None if none is chosen."""
        return next((c for c in self._view.checkpoints[::-1] if c.step == self._chosen), None)


async def verify_checkpoint(directory: Path) -> list[Content]:
    """Return the result of `trainkit verify` as lines to show. The process is killed if the caller is cancelled."""
    pipe, started = asyncio.subprocess.PIPE, time.monotonic()
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trainkit", "verify", str(directory), stdin=asyncio.subprocess.DEVNULL, stdout=pipe,
            stderr=pipe,
        )  # fmt: skip
    except OSError as error:
        return [cell(f"   cannot be verified: {error.strerror}", theme.WARN)]
    try:
        output, problem = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    seconds = format_duration(time.monotonic() - started)
    if child.returncode == 0:
        return [cell(f"   intact: every checksum matches ({format_time(time.time())}, in {seconds})", theme.GOOD)]
    found = [line.strip() for line in output.decode(errors="replace").split("\n")[1:] if line.strip()]
    if not found:
        wrong = problem.decode(errors="replace").strip() or f"trainkit verify ended with {child.returncode}"
        return [cell(f"   cannot be verified: {line}", theme.WARN) for line in wrong.split("\n")[:3]]
    return [
        cell(f"   damaged ({format_time(time.time())}, in {seconds}):", theme.BAD),
        *(cell(f"     {x}") for x in found),
    ]
