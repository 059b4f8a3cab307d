"""Arguments and options that several commands share, and the runs that an argument names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.rundir.find import RUNS, find_run, runs_in

if TYPE_CHECKING:
    from trainkit.recipe.toml.load import Loaded

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file.", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name in runs/.")]
RunOrStep = Annotated[
    str, typer.Argument(metavar="RUN[/STEP]", help="A run, or one of its checkpoints; RUN/best is the best.")
]
Average = Annotated[
    bool | None,
    typer.Option(
        "--average/--no-average",
        help="Use the average of the parameters, or the parameters; by default, what the run's evaluations use.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value of the recipe; may be repeated.", show_default=False
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Run a mode of the recipe: toy is a tenth of the run, sanity is at most 20 steps, and [mode.NAME] defines"
        " others.",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the dashboard; train in this process.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines; train in this process.")]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background; trainkit watch shows the run.")]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST:LAST",
        help="Trace these steps, such as 20:25. Writes a trace for Perfetto and XProf and a summary of the slowest"
        " operations to the run's profile/.",
        show_default=False,
    ),
]
Restarts = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=1000,
        help="Start the trainer again up to N times if it fails, from its newest checkpoint.",
        show_default=False,
    ),
]

#: Of commands that train.
EXCLUSIVE_OUTPUTS = [
    ("--plain", "--json", "each is an output format"),
    ("--plain", "--detach", "a run in the background prints nothing"),
    ("--json", "--detach", "a run in the background prints nothing"),
]


def steps_of(text: str) -> tuple[int, int]:
    """Return the first and the last step to trace from text such as `20:25`. Raises TrainkitError for other text."""
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text.strip(), re.ASCII)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last:
        why = f": {first} comes after {last}" if first > last else ": steps are counted from 1" if match else ""
        raise TrainkitError(
            f"{text!r} is not a range of steps{why}",
            where="--profile",
            hint="write FIRST:LAST, such as --profile 20:25; both steps are traced",
        )
    return first, last


def memory_of_machine() -> int | None:
    """Return the bytes of memory of this machine; None if they are unknown."""
    from trainkit.parallel.hardware import whole_memory  # few recipes ask for it

    return whole_memory()


def check_machine(loaded: Loaded, *, hosts: int | None = None) -> None:
    """Raise TrainkitError if a recipe needs far more memory than this machine has.

    Args:
        hosts: how many machines like this one are about to train it; None if it is only checked.
    """
    from trainkit.plan.size import BEYOND, BEYOND_RUN, check_size
    from trainkit.recipe.toml.load import locate_error

    tokenizer = loaded.recipe.tokenizer
    trained = tokenizer.train if tokenizer else None
    try:
        beyond = BEYOND if hosts is None else BEYOND_RUN * hosts
        check_size(
            loaded.recipe, vocab_size=trained.vocab_size if trained else 1, memory=memory_of_machine, beyond=beyond
        )
    except TrainkitError as error:
        raise locate_error(error, loaded) from None


def run_directory(text: str) -> Path:
    """Return the directory of a RUN, which must not name a step. Raises TrainkitError."""
    directory, step = find_run(text)
    if step is not None:
        raise TrainkitError(f"'{text}' is a checkpoint, but this command takes a run", hint=f"write {directory}")
    return directory


def directory_of_runs(text: str | None) -> Path | None:
    """Return the directory of runs that `text` names, by default `runs/`; None where it names a run.

    Raises:
        TrainkitError: `text` is None, and there is no `runs/`.
    """
    from trainkit.rundir.summary import is_run

    path = RUNS if text is None else Path(text)
    if text is None and not path.is_dir():
        raise TrainkitError(
            f"there is no directory {RUNS}/ in {Path.cwd()}",
            hint="start a run: trainkit run RECIPE   or name a directory of runs",
        )
    if is_run(path) or (text is not None and (is_run(RUNS / text) or not runs_in(path))):
        return None
    return path
