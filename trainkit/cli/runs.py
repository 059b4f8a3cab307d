"""`trainkit runs`: a table of the runs in a directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.text import align, format_duration, format_quantity, neutralise

if TYPE_CHECKING:
    from trainkit.rundir.summary import RunSummary


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="A directory of runs.")] = Path("runs"),
) -> str:
    """List runs with their state, step and last training loss."""
    from trainkit.rundir.listing import RunList
    from trainkit.rundir.summary import is_run

    if not directory.is_dir():
        raise TrainkitError(
            "the directory does not exist",
            where=str(directory),
            hint="name the directory of your runs, or start one: trainkit run RECIPE makes runs/",
        )
    listing = RunList(directory)
    listing.read()
    shown = [
        (name, reader.facts, reader.kept)
        for name, reader in listing.summaries.items()
        if reader.facts is not None and is_run(reader.directory)
    ]
    if not shown:
        if is_run(directory):
            return f"{directory} is a run itself: trainkit watch {directory}"
        return f"no runs in {directory}"
    shown.sort(key=lambda run: run[1].last_event or 0.0)
    now = time.time()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "STEP", "LOSS", "LAST EVENT", "KEPT")]
    rows += [(*_row(name, summary, now), ", ".join(map(str, kept))) for name, summary, kept in shown]
    if not any(kept for _, _, kept in shown):
        rows = [row[:-1] for row in rows]
    return "\n".join(align(rows))


def _row(name: str, summary: RunSummary, now: float) -> tuple[str, ...]:
    if summary.broken:
        return neutralise(name), f"({summary.problem})", "", "", ""
    total = "?" if summary.total is None else str(summary.total)
    age = "" if summary.last_event is None else f"{format_duration(max(0.0, now - summary.last_event))} ago"
    loss = "" if summary.loss is None else format_quantity(summary.loss)
    return neutralise(name), summary.state or "waiting", f"{summary.step}/{total}", loss, age
