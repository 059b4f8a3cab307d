"""`trainkit runs`: a table of the runs in a directory, and their logs made small."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.printer import quote
from trainkit.text import align, format_bytes, format_duration, format_quantity, neutralise, plural

if TYPE_CHECKING:
    from trainkit.rundir.summary import RunSummary


NEEDS = [("--yes", "--compact")]
#: A log that would keep more than this share of its bytes stays as it is.
WORTHWHILE = 0.9


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="A directory of runs.")] = Path("runs"),
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Show how small the logs of finished runs would become with fewer steps; with --yes, make them so.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Replace the logs that --compact lists.")] = False,
) -> str:
    """List runs with their state, step and last training loss."""
    from trainkit.rundir.listing import RunList
    from trainkit.rundir.summary import is_run

    if compact and is_run(directory):
        return _compact([directory], yes=yes)
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
    if compact:
        return _compact([directory / name for name, _, _ in shown], yes=yes)
    if not shown:
        if is_run(directory):
            return f"{directory} is a run itself: trainkit watch {quote(directory)}"
        return f"no runs in {directory}"
    shown.sort(key=lambda run: run[1].last_event or 0.0)
    now = time.time()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "STEP", "LOSS", "LAST EVENT", "KEPT")]
    rows += [(*_row(name, summary, now), ", ".join(map(str, kept))) for name, summary, kept in shown]
    if not any(kept for _, _, kept in shown):
        rows = [row[:-1] for row in rows]
    return "\n".join(align(rows))


def _compact(directories: list[Path], *, yes: bool) -> str:
    """Return a table of the finished runs whose logs can become smaller, after making them so if `yes`."""
    from trainkit.rundir.compact import compact, is_finished, measure
    from trainkit.track.projections import all_copied, not_copied

    rows: list[tuple[str, ...]] = [("RUN", "LOG", "SMALL LOG", "STEPS")]
    saved, waiting = 0, list[str]()
    for run in sorted(filter(is_finished, directories)):
        sizes = measure(run)
        if sizes.after > WORTHWHILE * sizes.before:
            continue
        if behind := not_copied(run, sizes.before):
            waiting.append(f"{run.name}: {' and '.join(behind)} lacks a part of its log: trainkit track {quote(run)}")
            continue
        if yes:
            sizes = compact(run, moved=partial(all_copied, run))
        steps = f"{sizes.steps_after:,} of {sizes.steps_before:,}"
        rows.append((neutralise(run.name), format_bytes(sizes.before), format_bytes(sizes.after), steps))
        saved += sizes.before - sizes.after
    if len(rows) == 1:
        return "\n".join(["no finished run has a log that can become smaller", *waiting])
    count = plural(len(rows) - 1, "finished run")
    done = f"{format_bytes(saved)} of the logs of {count} are removed"
    would = f"{format_bytes(saved)} of the logs of {count} can be removed for good; to do so: --compact --yes"
    return "\n".join([*align(rows), *waiting, done if yes else would])


def _row(name: str, summary: RunSummary, now: float) -> tuple[str, ...]:
    if summary.broken:
        return neutralise(name), f"({summary.problem})", "", "", ""
    total = "?" if summary.total is None else str(summary.total)
    age = "" if summary.last_event is None else f"{format_duration(max(0.0, now - summary.last_event))} ago"
    loss = "" if summary.loss is None else format_quantity(summary.loss)
    return neutralise(name), summary.state or "waiting", f"{summary.step}/{total}", loss, age
