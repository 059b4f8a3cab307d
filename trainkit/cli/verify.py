"""`trainkit verify`: whether checkpoints are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainkit.cli.arguments import RunOrStep
from trainkit.errors import DONE, FAILED, TrainkitError
from trainkit.printer import show


def verify(
    run: RunOrStep,
    replay: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Also train K steps again, from STEP or from the newest checkpoint that K steps follow, and compare"
            " every bit of their metrics and of the checkpoints among them.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Compare every byte of checkpoints with their checksums.

    Without STEP, also compare the run's recipe, tokenizer and log with its newest checkpoint.
    """
    from trainkit.checkpoint import store
    from trainkit.run.recorded_inputs import find_problems
    from trainkit.rundir.find import find_run

    directory, step = find_run(run)
    found = store.step_directories(directory) if step is None else [store.directory_of(directory) / str(step)]
    if not found or not all(path.is_dir() for path in found):
        steps = ", ".join(path.name for path in store.step_directories(directory)) or "none"
        problem = "the run has no checkpoint yet" if step is None else f"there is no checkpoint of step {step}"
        raise TrainkitError(f"{problem}; there are: {steps}", where=str(directory))
    damaged = 0
    for path in found:
        problems = store.verify(path)
        if problems and step is None and not path.is_dir():
            show(f"{path}: removed by the trainer meanwhile")
            continue
        damaged += bool(problems)
        # at once: reading a large checkpoint takes minutes
        show(f"{path}: {'damaged' if problems else 'ok'}")
        for problem in problems:
            show(f"  {problem}")
    problems = find_problems(directory) if step is None else []
    for problem in problems:
        show(problem)
    wrong = bool(damaged or problems)
    if replay is not None and not wrong:
        wrong = not _replay(directory, step, replay)
    return FAILED if wrong else DONE


def _replay(directory: Path, step: int | None, count: int) -> bool:
    """Train steps again, print what differs, and return whether nothing does."""
    from trainkit.cli.cache_data import show_progress
    from trainkit.run.replay import compare_replay

    with show_progress() as progress:
        found = compare_replay(directory, step, count, progress=progress)
    which = "other bits" if found.differences else "the same bits"
    show(f"steps {found.first + 1} to {found.last}, computed again: {which}")
    if found.checkpoints and not found.differences:
        show(f"  also in checkpoint {', '.join(map(str, found.checkpoints))}")
    for line in (*found.notes, *found.differences, *(found.machine if found.differences else ())):
        show(f"  {line}")
    return not found.differences
