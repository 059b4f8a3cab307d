"""`trainkit sweep`: try values of keys of a recipe, and rank the runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.errors import DONE
from trainkit.text import align, format_quantity, neutralise, one_line, plural, shorten

if TYPE_CHECKING:
    from trainkit.search.trials import Study, Trial, TrialEnd

EXCLUSIVE = [("--dry-run", "--leaderboard", "each only prints something else")]


def sweep(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    name: Annotated[str | None, typer.Option(help="Name of the sweep's runs; by default the recipe's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the trials, and train nothing.")] = False,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Print the leaderboard, and train nothing.")
    ] = False,
) -> tuple[str, int]:
    """Train a recipe with each of the values in its [sweep], and rank the runs.

    The same command continues a sweep that was stopped or killed.
    """
    from trainkit.recipe.toml.values import toml_value
    from trainkit.search.trials import study_of, title_of

    settings = [*(overrides or []), *([f"run.name={toml_value(name)}"] if name is not None else [])]
    study = study_of(recipe, settings, mode=mode)
    if dry_run:
        lines = [f"{trial.directory.name}  {trial.in_words}" for trial in study.trials]
        count = plural(len(study.trials), "trial")
        return neutralise("\n".join([f"{count} in {title_of(study)}, ranked by {study.metric}", *lines])), DONE
    code = DONE
    if leaderboard:
        study.read()
    else:
        from trainkit.search.sweep import run

        print(f"to watch the trials: trainkit watch {title_of(study)}", file=sys.stderr)
        code = run(study, lambda line: print(neutralise(line), file=sys.stderr, flush=True))
    return "\n".join(leaderboard_lines(study)), code


def leaderboard_lines(study: Study) -> list[str]:
    """Return the trials as aligned lines, the best first."""
    from trainkit.recipe.toml.values import toml_value

    keys = list(study.spec.parameters)
    rows: list[tuple[str, ...]] = [("RUN", "STATE", study.metric, *keys)]
    for trial, end in study.ranked():
        values = [neutralise(toml_value(trial.settings[key])) for key in keys]
        rows.append((trial.directory.name, _state(trial, end), _value(end), *values))
    failed = [(trial, end) for trial, end in study.ranked() if end and end.status == "failed"]
    reasons = [f"{trial.directory.name} failed: {shorten(one_line(end.message), 100)}" for trial, end in failed]
    return [*align(rows), *reasons]


def _state(trial: Trial, end: TrialEnd | None) -> str:
    from trainkit.rundir.directory import is_training

    if end is not None:
        return end.status
    return "running" if is_training(trial.directory) else "unfinished" if trial.directory.exists() else "waiting"


def _value(end: TrialEnd | None) -> str:
    return format_quantity(end.value) if end is not None and end.status == "finished" else "–"
