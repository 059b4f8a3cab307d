"""`trainkit compare`: what differs between runs, in their recipes and in their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.text import align, neutralise

if TYPE_CHECKING:
    from trainkit.recipe import Recipe


def compare(runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Two or more runs.")]) -> str:
    """Show how the recipes and the results of runs differ."""
    from trainkit.cli.arguments import run_directory
    from trainkit.events.reducer import view_of
    from trainkit.rundir.compare import results
    from trainkit.rundir.directory import recipe_of
    from trainkit.rundir.recipes import differing

    if len(runs) < 2:
        raise TrainkitError(
            "compare needs at least two runs, found one", hint=f"name another: trainkit compare {runs[0]} RUN"
        )
    directories = [run_directory(run) for run in runs]
    recipes = [_values(recipe_of(directory).recipe) for directory in directories]
    views = [view_of(directory) for directory in directories]
    head = ("", *(neutralise(directory.name) for directory in directories))
    lines = align([head, *([neutralise(cell) for cell in row] for row in results(views))])
    keys = differing(recipes)
    if not keys:
        return "\n".join([*lines, "", "their recipes are the same, except for their names"])
    rows = [(key, *(neutralise(recipe.get(key, "–")) for recipe in recipes)) for key in keys]
    return "\n".join([*lines, "", *align([("RECIPE", *head[1:]), *rows])])


def _values(recipe: Recipe) -> dict[str, str]:
    from trainkit.recipe.toml.positions import dotted
    from trainkit.recipe.toml.values import flat, toml_value

    return {dotted(key): toml_value(value) for key, value in flat(recipe).items() if value is not None}
