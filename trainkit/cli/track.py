"""`trainkit track`: a run's log to Aim, or as a table, also long after."""

from __future__ import annotations

from pathlib import Path

from trainkit.cli.where import run_directory
from trainkit.run.directory import recipe_of


def track(run: str, *, table: Path | None) -> str:
    """Bring Aim up to date with a run, or write its numbers to `table`; what was done.

    Doing it again changes nothing: it goes on where it was, with the same Aim run.

    Raises:
        TrainkitError: there is no such run, Aim cannot be written, or the table cannot.
    """
    directory = run_directory(run)
    if table is not None:
        from trainkit.track.table import write

        return f"{write(directory, table):,} steps in {table}"
    spec = recipe_of(directory).recipe.track
    from trainkit.track import progress
    from trainkit.track.tail import follow

    follow(directory.resolve(), repository=Path(spec.repository).resolve(), experiment=spec.experiment)
    found = progress.read(directory)
    assert found is not None
    return f"Aim run {found.run} in {found.repository}/.aim has steps up to {found.last_step:,}"
