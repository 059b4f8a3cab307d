"""`trainkit track`: a run's log to its trackers, or as a table, also long after."""

from __future__ import annotations

from pathlib import Path

from trainkit.cli.where import run_directory
from trainkit.rundir.directory import as_typed, recipe_of
from trainkit.text import neutralise
from trainkit.track.projections import Name, asked, require


def track(run: str, *, to: Name | None, table: Path | None) -> str:
    """Bring trackers up to date with a run, or write its numbers to `table`; what was done, a line each.

    Without `to`, the trackers that the run's recipe asks for; Aim where it asks for none. Doing it again changes
    nothing: each goes on as the same run there.

    Raises:
        TrainkitError: there is no such run, the tracker is not installed or cannot be written, or the table cannot.
    """
    directory = run_directory(run)
    if table is not None:
        from trainkit.track.table import write

        return f"{write(directory, table):,} steps in {table}"
    spec = recipe_of(directory).recipe.track
    names: list[Name] = [to] if to else asked(spec) or ["aim"]
    for name in names:
        require(name)
    from trainkit.track.tail import follow

    told = []
    for name in names:
        done = follow(directory.resolve(), name, spec)
        told.append(f"{_where(name, done.run, done.repository, directory)} has steps up to {done.last_step:,}")
    return neutralise("\n".join(told))


def _where(name: Name, run: str, repository: str, directory: Path) -> str:
    match name:
        case "aim":
            return f"Aim run {run} in {repository}/.aim"
        case "tensorboard":
            runs = as_typed(directory.parent)
            return f"TensorBoard's {as_typed(directory / 'tensorboard')} (tensorboard --logdir {runs})"
        case "wandb":
            sync = (
                f" (wandb sync {as_typed(directory / 'wandb')}/offline-run-*)"
                if repository.startswith("offline")
                else ""
            )
            return f"W&B run {run}{sync}"
