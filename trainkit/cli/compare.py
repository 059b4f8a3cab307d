"""`trainkit compare`: what differs between runs, in their recipes and in their results."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.printer import quote
from trainkit.text import align, format_quantity, neutralise

if TYPE_CHECKING:
    from pathlib import Path

    from trainkit.events.view import View
    from trainkit.recipe import Recipe
    from trainkit.rundir.seeds import SeedGroup


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Two or more runs.")],
    metric: Annotated[
        str | None,
        typer.Option(
            help="Compare runs that differ in their seed by this metric; by default, the first validation loss."
        ),
    ] = None,
) -> str:
    """Show how the recipes and the results of runs differ.

    Runs that differ in run.seed only are a group: its mean and spread show whether groups differ by more than noise.
    """
    from trainkit.cli.arguments import run_directory
    from trainkit.events.reducer import view_of
    from trainkit.rundir.compare import results
    from trainkit.rundir.directory import recipe_of
    from trainkit.rundir.recipes import differing_keys

    if len(runs) < 2:
        raise TrainkitError(
            "compare needs at least two runs, found one", hint=f"name another: trainkit compare {quote(runs[0])} RUN"
        )
    directories = [run_directory(run) for run in runs]
    recipes = [_values(recipe_of(directory).recipe) for directory in directories]
    views = [view_of(directory) for directory in directories]
    head = ("", *(neutralise(directory.name) for directory in directories))
    lines = align([head, *([neutralise(cell) for cell in row] for row in results(views))])
    lines += _seeds(directories, recipes, views, metric)
    keys = differing_keys(recipes)
    if not keys:
        return "\n".join([*lines, "", "their recipes are the same, except for their names"])
    rows = [(key, *(neutralise(recipe.get(key, "–")) for recipe in recipes)) for key in keys]
    return "\n".join([*lines, "", *align([("RECIPE", *head[1:]), *rows])])


def _seeds(directories: list[Path], recipes: list[dict[str, str]], views: list[View], metric: str | None) -> list[str]:
    """Return the groups of runs that differ in their seed only, and what their differences say; empty without any."""
    from trainkit.rundir.seeds import LOSS, final_value, groups_of

    known = list(dict.fromkeys(name for view in views for name in view.series))
    if metric is not None and metric not in known:
        near = ", ".join(difflib.get_close_matches(metric, known, n=5, cutoff=0.0))
        raise TrainkitError(f"no run has the metric '{metric}'", where="--metric", hint=f"metrics are {near}")
    sets = [name for view in views for name in view.validation_sets()]
    chosen = metric or (f"validation/{sets[0]}/loss" if sets else LOSS)
    groups = groups_of(recipes, [final_value(directory, chosen) for directory in directories])
    if metric is None and all(len(group.places) < 2 for group in groups):
        return []
    named = [neutralise(directories[group.places[0]].name) for group in groups]
    rows: list[tuple[str, ...]] = [("SEEDS", "RUNS", f"{chosen}, MEAN", "DEVIATION", "95 % BAND OF THE MEAN")]
    for name, group in zip(named, groups, strict=True):
        more = f" and {len(group.places) - 1} more" if len(group.places) > 1 else ""
        low, high = (format_quantity(group.mean + sign * group.band) for sign in (-1, 1))
        spread = ("–", "–") if len(group.values) < 2 else (format_quantity(group.deviation), f"{low} to {high}")
        rows.append((name + more, str(len(group.values)), format_quantity(group.mean), *spread))
    return ["", *align(rows), *_differences(groups, named)]


def _differences(groups: list[SeedGroup], named: list[str]) -> list[str]:
    """Return for each group but the first whether its mean differs from that of the first by more than noise."""
    from trainkit.rundir.seeds import LEVEL, welch

    lines, level = [], LEVEL / max(1, len(groups) - 1)  # several tests at once find something by chance (Bonferroni)
    for group, name in zip(groups[1:], named[1:], strict=True):
        between = f"{name} and {named[0]} differ by {group.mean - groups[0].mean:+.4g}"
        if (test := welch(group, groups[0])) is None:
            lines.append(f"{between}; whether that is noise needs two seeds or more of each, with different values")
            continue
        verdict = "more than noise" if test.probability < level else "not more than noise"
        said = f"Welch's t = {test.t:.2f}, {test.freedom:.1f} degrees of freedom, p = {test.probability:.2g}"
        lines.append(f"{between}: {verdict} ({said}; more than noise is p < {level:.2g})")
    return lines


def _values(recipe: Recipe) -> dict[str, str]:
    from trainkit.recipe.toml.positions import dotted_key
    from trainkit.recipe.toml.values import flat, toml_value

    return {dotted_key(key): toml_value(value) for key, value in flat(recipe).items() if value is not None}
