"""The run, or the checkpoint of one, that a person names."""

from __future__ import annotations

import difflib
from pathlib import Path

from trainkit.errors import TrainkitError

#: The directory of runs, where a run that is given by its name is looked for.
RUNS = Path("runs")


def find_run(text: str) -> tuple[Path, int | None]:
    """Return (the run's directory, the step) of RUN, RUN/STEP, RUN/best or RUN/checkpoints/STEP; without a step, None.

    RUN is a path or a name in `runs/`. A run whose name is a number or `best` takes precedence over a step. Does not
    check whether that step has a checkpoint.

    Raises:
        TrainkitError: there is no such run, and suggests similar names; or it has no best checkpoint.
    """
    from trainkit.rundir import checkpoint_files
    from trainkit.rundir.summary import is_run

    for path in (Path(text), RUNS / text):
        if is_run(path):
            return path, None
        run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        if path.name.isdecimal() and is_run(run):
            return run, int(path.name)
        if path.name == "best" and is_run(run):
            if (mark := checkpoint_files.best(run)) is None:
                hint = "[checkpoint] best says by which metric a checkpoint is the best"
                raise TrainkitError("the run has no best checkpoint", where=str(run), hint=hint)
            return run, mark.step
    for run in (parent for path in (Path(text), RUNS / text) for parent in path.parents):
        if run != Path() and is_run(run):
            hint = f"write {run}, or for one of its checkpoints {run}/STEP or {run}/best"
            raise TrainkitError(f"'{text}' is neither a run nor a checkpoint of one", hint=hint)
    raise TrainkitError(f"there is no run '{text}'", hint=_nearest(text))


def runs_in(directory: Path) -> list[Path]:
    """Return the runs directly in a directory, by name, without drafts, whose names begin with a dot."""
    from trainkit.rundir.summary import is_run

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
        return f"runs in {RUNS}/: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
    return f"there are no runs in {RUNS.absolute()}; start one: trainkit run RECIPE"
