"""`trainkit sweep`: try values of keys of a recipe, and rank the runs."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.errors import DONE, TrainkitError
from trainkit.printer import complain, harmless
from trainkit.text import align, format_duration, format_quantity, neutralise, one_line, plural, shorten

if TYPE_CHECKING:
    from rich.console import Console

    from trainkit.search.study import Study
    from trainkit.search.trials import Trial, TrialEnd

EXCLUSIVE = [
    ("--dry-run", "--leaderboard", "each only prints something else"),
    ("--dry-run", "--plot", "only trials that have ended are drawn"),
]
#: The picture of `--plot`, in the directory of the sweep; seconds between two looks of the live leaderboard.
PICTURE, EVERY = "parallel.svg", 1.0


def sweep(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    name: Annotated[str | None, typer.Option(help="Name of the sweep's runs; by default the recipe's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the trials, and train nothing.")] = False,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Print the leaderboard, and train nothing.")
    ] = False,
    plot: Annotated[
        bool,
        typer.Option("--plot", help="Print the leaderboard and draw parallel coordinates, also as SVG; train nothing."),
    ] = False,
) -> tuple[str, int]:
    """Train a recipe with each of the values in its [sweep], and rank the runs.

    The same command continues a sweep that was stopped or killed.
    """
    from trainkit.recipe.toml.values import toml_value
    from trainkit.search.study import study_of, title_of

    settings = [*(overrides or []), *([f"run.name={toml_value(name)}"] if name is not None else [])]
    study = study_of(recipe, settings, mode=mode)
    if dry_run:
        lines = [_plan_line(study, trial) for trial in study.preview()]
        if later := study.total - len(lines):
            lines.append(f"the settings of {plural(later, 'later trial')} depend on the results of these")
        count = plural(study.total, "trial")
        return neutralise("\n".join([f"{count} in {title_of(study)}, ranked by {study.metric}", *lines])), DONE
    code = DONE
    if leaderboard or plot:
        study.read()
    else:
        complain(f"to watch the trials: trainkit watch {title_of(study)}")
        code = _run(study)
    return "\n".join([*leaderboard_lines(study), *(_plot(study) if plot else [])]), code


def _run(study: Study) -> int:
    """Run the trials and return the exit code; show the leaderboard while they run, if standard error is a terminal."""
    from trainkit.search.sweep import run

    if not sys.stderr.isatty():
        return run(study, complain)
    from rich.console import Console

    with live_leaderboard(study, Console(stderr=True)) as (report, look):
        return run(study, report, look=look)


@contextmanager
def live_leaderboard(study: Study, console: Console) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Show the leaderboard below the lines that are reported, until the block ends; return what reports a line, and
    what brings the leaderboard up to date."""
    from rich.live import Live
    from rich.text import Text

    shown = -math.inf
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look() -> None:
            nonlocal shown
            if time.monotonic() - shown >= EVERY:
                lines = _lines_that_fit(leaderboard_lines(study), console.height - 2)
                live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
                shown = time.monotonic()

        yield lambda line: console.print(Text(harmless(line))), look


def _lines_that_fit(lines: list[str], most: int) -> list[str]:
    """Return the lines of the leaderboard that fit: the head, the best trials, and those that run."""
    running = [line for line in lines if line.split()[1:2] == ["running"]]
    others = [line for line in lines if line not in running]
    return others[: max(most - len(running), 1)] + running


def _plot(study: Study) -> list[str]:
    """Write the picture of the trials, and return how they look in the terminal, if that is wide enough."""
    from trainkit.rundir.directory import as_typed, disk_errors
    from trainkit.search.parallel_coordinates import svg, text_lines

    path = study.directory / PICTURE
    if not study.directory.exists():
        raise TrainkitError("the sweep has not begun, so there is nothing to draw", where=str(study.directory))
    with disk_errors(path, what="the picture", then="draw it again"):
        path.write_text(svg(study), encoding="utf-8")
    width = shutil.get_terminal_size().columns
    return ["", *text_lines(study, width), f"the picture of these trials: {as_typed(path)}"]


def _plan_line(study: Study, trial: Trial) -> str:
    """Return a trial on a line: its name, its settings, and which other keys change with them."""
    from trainkit.search.trials import in_words

    if trial.loaded is None:
        return f"{trial.directory.name}  {trial.in_words}; refused: {one_line(trial.problem)}"
    further = study.recipes.further_changes(trial)
    return f"{trial.directory.name}  {trial.in_words}" + (f"; so {in_words(further)}" if further else "")


def leaderboard_lines(study: Study) -> list[str]:
    """Return the trials as aligned lines, the best first."""
    from trainkit.recipe.toml.values import toml_value

    keys = list(study.spec.parameters)
    rows: list[tuple[str, ...]] = [("RUN", "STATE", study.metric, "STEPS", "TIME", *keys)]
    for trial, end in study.rank():
        values = [neutralise(toml_value(trial.settings[key])) for key in keys]
        rows.append((trial.directory.name, _state(trial, end), _value(end), *_length(study, trial, end), *values))
    wrong = [(trial, end) for trial, end in study.rank() if end and end.message]
    reasons = [f"{trial.directory.name} {end.status}: {shorten(one_line(end.message), 100)}" for trial, end in wrong]
    return [*align(rows), *reasons]


def _state(trial: Trial, end: TrialEnd | None) -> str:
    from trainkit.rundir.directory import is_training

    if end is not None:
        return end.status
    return "running" if is_training(trial.directory) else "unfinished" if trial.directory.exists() else "waiting"


def _value(end: TrialEnd | None) -> str:
    return format_quantity(end.value) if end is not None and end.status in ("finished", "pruned") else "–"


def _length(study: Study, trial: Trial, end: TrialEnd | None) -> tuple[str, str]:
    """Return the last step of a trial that counts, and how long it trained."""
    if end is None and trial.directory.exists():
        progress = study.progress(trial)
        return f"{progress.step:,}", format_duration(progress.seconds)
    steps, seconds = (end.steps, end.seconds) if end is not None else (None, None)
    return ("–" if steps is None else f"{steps:,}", "–" if seconds is None else format_duration(seconds))
