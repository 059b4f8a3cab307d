"""The texts of the checkpoints page: the rows of its table, and what can be done with the chosen checkpoint."""

from __future__ import annotations

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import Column, TableRow, cell, coarse
from trainkit.events.view import SavedCheckpoint, View
from trainkit.recipe.toml.files import as_shown
from trainkit.text import format_bytes, format_quantity, format_time, one_line

#: The commands for one checkpoint, each with its key.
COMMANDS = {"resume": "y", "verify": "v", "export": "E"}
KEPT = ", kept"
KINDS = {"rolling": theme.DIM, "requested": theme.TEXT, "permanent": theme.BUSY, "final": theme.GOOD}
WHEREABOUTS = {
    "yes": theme.GOOD,
    "replaced": theme.DIM,
    "gone": theme.WARN,
    "no manifest": theme.BAD,
    "…": theme.DIM,
}


class CheckpointFiles(NamedTuple):
    """The contents of `checkpoints/`, as of the last look at the disk.

    `present`: whether there is a manifest, by the step of each directory; None before the first look.
    `kept`: the steps that a person has marked to keep.
    """

    present: Mapping[int, bool] | None = None
    kept: frozenset[int] = frozenset()

    def whereabouts(self, checkpoint: SavedCheckpoint) -> str:
        """Return one of `WHEREABOUTS`."""
        if self.present is None:
            return "…"
        if checkpoint.step in self.present:
            return "yes" if self.present[checkpoint.step] else "no manifest"
        return "replaced" if checkpoint.kind == "rolling" else "gone"


class CheckpointTable(NamedTuple):
    """`written` counts all, `on_disk` those on the disk; `best` says whether a row has the star of the best loss."""

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    written: int
    on_disk: int
    best: bool


def losses(view: View) -> list[str]:
    """Return the metrics that compare checkpoints."""
    return [f"validation/{name}/loss" for name in view.validation_sets()]


def _newest_first(view: View) -> list[SavedCheckpoint]:
    """Return one for each step: the log has a rolling one twice if somebody asked to keep it."""
    return sorted({c.step: c for c in view.checkpoints}.values(), key=lambda c: c.step, reverse=True)


def table(view: View, disk: CheckpointFiles, *, now: float, only_present: bool) -> CheckpointTable:
    """Return every checkpoint that was written, or only those on disk, as of `now` (Unix seconds)."""
    saved = _newest_first(view)
    where_is = {c.step: disk.whereabouts(c) for c in saved}
    values = {loss: {c.step: _at(view, loss, c.step) for c in saved} for loss in losses(view)}
    best = {loss: _best(measured, where_is) for loss, measured in values.items()}
    rows = []
    for c in saved:
        if only_present and where_is[c.step] != "yes":
            continue
        gone = where_is[c.step] in ("replaced", "gone")
        cells = [
            cell(f"{c.step:,}", theme.DIM if gone else theme.BRIGHT),
            *(_loss(values[loss][c.step], best=best[loss] == c.step, gone=gone) for loss in values),
            cell(c.kind, KINDS.get(c.kind, theme.TEXT) if not gone else theme.DIM),
            cell(format_bytes(c.bytes), theme.DIM if gone else theme.TEXT),
            cell(coarse(now - c.t), theme.DIM),
            cell(format_time(c.t), theme.DIM),
            cell(where_is[c.step] + KEPT * (c.step in disk.kept), WHEREABOUTS[where_is[c.step]]),
        ]
        rows.append(TableRow(str(c.step), cells))
    number = sum(where == "yes" for where in where_is.values())
    return CheckpointTable(_columns(values), rows, len(saved), number, any(step is not None for step in best.values()))


def lack(where: str) -> Content | None:
    """Return why a checkpoint cannot be used; None if it can."""
    match where:
        case "replaced":
            return cell("A rolling checkpoint, replaced by newer ones.", theme.DIM)
        case "gone":
            return cell("Its directory no longer exists.", theme.WARN)
        case "no manifest":
            return cell("It has no manifest.json: it is incomplete.", theme.WARN)
        case _:
            return None


def command(name: str, run_directory: Path, step: int | None) -> str:
    """Return the shell command that does this with a checkpoint."""
    text = f"trainkit {name} {shlex.quote(f'{as_shown(run_directory)}/{step}')}"
    return f"{text} {shlex.quote(f'{run_directory.absolute().name}-{step}')}" if name == "export" else text


def commands(chosen: SavedCheckpoint, view: View, disk: CheckpointFiles, run_directory: Path) -> list[Content]:
    """Return the keys and commands for the chosen checkpoint, and what to know before resuming from it."""
    lines = [
        Content.assemble(
            cell(f"{key}  ", f"bold {theme.WARN}"), cell(command(name, run_directory, chosen.step), theme.BRIGHT)
        )
        for name, key in COMMANDS.items()
    ]
    lines[1:1] = [cell(f"   {note}", theme.DIM) for note in _notes(chosen, view, disk)]
    return lines


def facts_table(facts: Sequence[tuple[str, str]]) -> list[Content]:
    """Return a line for each (label, text)."""
    pad = max((len(label) for label, _ in facts), default=0) + 2
    return [Content.assemble(cell(f"{label:<{pad}}", theme.DIM), cell(text)) for label, text in facts]


def _notes(chosen: SavedCheckpoint, view: View, disk: CheckpointFiles) -> Iterator[str]:
    if chosen.step in disk.kept:
        yield "kept: it is never deleted to make room; m removes the mark"
    elif chosen.kind == "rolling":
        yield "rolling: deleted once [checkpoint] keep_last newer ones exist; m keeps it"
    if chosen.kind == "final" and view.finished == "finished":
        yield "the run is finished: to train longer, add --set train.steps=… --raise-rate"
    elif chosen.step != max(c.step for c in view.checkpoints):
        yield "resuming here sets later checkpoints aside; it does not delete them"
    if view.finished is None:
        yield "resume works once the trainer of this run has ended"


def _at(view: View, loss: str, step: int) -> float | None:
    """Return the loss measured at exactly this step, or None."""
    series = view.series[loss]
    place = bisect_left(series.steps, step)
    return series.values[place] if place < len(series) and series.steps[place] == step else None


def _best(values: Mapping[int, float | None], where_is: Mapping[int, str]) -> int | None:
    """Return the step with the lowest loss of those on disk."""
    usable = [(v, step) for step, v in values.items() if v is not None and math.isfinite(v) and where_is[step] == "yes"]
    return min(usable)[1] if usable else None


def _loss(value: float | None, *, best: bool, gone: bool) -> Content:
    if value is None:
        return cell("–  ", theme.FAINT)
    text = format_quantity(value)
    return (
        cell(f"{text} ★", f"bold {theme.VALIDATION[0]}")
        if best
        else cell(f"{text}  ", theme.DIM if gone else theme.TEXT)
    )


def _columns(losses: Mapping[str, object]) -> list[Column]:
    names = [one_line(loss.removeprefix("validation/").replace("/loss", " loss")) for loss in losses]
    return [
        Column("step", right=True),
        *(Column(f"{name}  ", drop=6 + place if place else 0, right=True) for place, name in enumerate(names)),
        Column("kind", drop=2),
        Column("size", drop=4, right=True),
        Column("age", drop=3, right=True),
        Column("written", drop=1_000),
        Column("on disk", drop=1),
    ]
