"""What a person means by RUN and RUN/STEP."""

from __future__ import annotations

import difflib
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.rundir.summary import is_run

RUNS = Path("runs")


def find_run(text: str) -> tuple[Path, int | None]:
    """(directory of the run, step) of RUN, RUN/STEP or RUN/checkpoints/STEP; the step is None where none is named.

    RUN is a path or a name below `runs/`. Whether there is a checkpoint of that step is not looked at. A run that has
    a number for a name comes first.

    Raises:
        TrainkitError: there is no such run; names the nearest that there are.
    """
    for path in (Path(text), RUNS / text):
        if is_run(path):
            return path, None
        run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        if path.name.isdecimal() and is_run(run):
            return run, int(path.name)
    raise TrainkitError(f"there is no run '{text}'", hint=_nearest(text))


def run_directory(text: str) -> Path:
    """The directory of a RUN that must not name a step. Raises TrainkitError."""
    directory, step = find_run(text)
    if step is not None:
        raise TrainkitError(f"'{text}' is a checkpoint, where a run is asked for", hint=f"say {directory}")
    return directory


def directory_of_runs(text: str | None) -> Path | None:
    """The directory of many runs that is meant, `runs/` where none is named; None where a run is.

    Raises:
        TrainkitError: none is named, and there is no `runs/`.
    """
    path = RUNS if text is None else Path(text)
    if text is None and not path.is_dir():
        raise TrainkitError(
            f"there is no directory {RUNS}/ here", hint="begin a run: trainkit run RECIPE   or name a directory of runs"
        )
    if is_run(path) or (text is not None and (is_run(RUNS / text) or not runs_in(path))):
        return None
    return path


def runs_in(directory: Path) -> list[Path]:
    """The runs directly below a directory, by name; drafts, whose names begin with a dot, are none."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith(".") and is_run(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _nearest(text: str) -> str:
    names = [path.name for path in runs_in(RUNS)]
    wanted = [part for part in Path(text).parts if part not in ("checkpoints", RUNS.name) and not part.isdecimal()]
    near = difflib.get_close_matches(wanted[-1] if wanted else text, names, n=3, cutoff=0.4)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if names:
        return f"runs here: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
    return f"no runs in {RUNS.absolute()}; begin one: trainkit run RECIPE"
