"""`trainkit track`: copy a run's log to its trackers, or write it as a table, during the run or after it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainkit.cli.arguments import RunName
from trainkit.text import neutralise

EXCLUSIVE = [("--to", "--table", "a table goes to a file, not to a tracker")]


class Tracker(StrEnum):
    """Where a run can be tracked."""

    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


def track(
    run: RunName,
    to: Annotated[
        Tracker | None,
        typer.Option(help="Copy to this tracker; by default, to those of the run's recipe.", show_default=False),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the metrics to a .csv or .parquet file instead.", show_default=False),
    ] = None,
) -> str:
    """Copy a run's log to its trackers, or to a table.

    During the run or after it. Copying again changes nothing.
    """
    from trainkit.cli.arguments import run_directory
    from trainkit.rundir.directory import recipe_of
    from trainkit.track.projections import Name, enabled_trackers, require

    directory = run_directory(run)
    if table is not None:
        from trainkit.track.tail import write_table

        return f"{write_table(directory, table):,} steps in {table}"
    spec = recipe_of(directory).recipe.track
    names: list[Name] = [to.value] if to else enabled_trackers(spec) or ["aim"]
    for name in names:
        require(name)
    from trainkit.track.tail import follow

    lines = []
    for name in names:
        progress = follow(directory.resolve(), name, spec)
        where = _where(name, progress.run, progress.repository, directory)
        lines.append(f"{where} has steps up to {progress.last_step:,}")
    return neutralise("\n".join(lines))


def _where(name: str, run: str, repository: str, directory: Path) -> str:
    from trainkit.rundir.directory import as_typed

    if name == "aim":
        return f"Aim run {run} in {repository}/.aim"
    if name == "tensorboard":
        how = f"tensorboard --logdir {as_typed(directory.parent)}"
        return f"TensorBoard's {as_typed(directory / 'tensorboard')} ({how})"
    sync = f" (wandb sync {as_typed(directory / 'wandb')}/offline-run-*)" if repository.startswith("offline") else ""
    return f"W&B run {run}{sync}"
