"""`trainkit compare`: what differs between runs, in their recipes and in what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.cli.where import run_directory
from trainkit.events.reducer import view_of
from trainkit.recipe import Recipe
from trainkit.recipe.toml.positions import dotted
from trainkit.recipe.toml.values import flat, toml_value
from trainkit.rundir.compare import results
from trainkit.rundir.directory import recipe_of
from trainkit.rundir.recipes import differing
from trainkit.text import align, neutralise


def compare(runs: Sequence[str]) -> str:
    """Two tables with a column a run: the keys of the recipe that differ, and the losses and pace.

    Raises:
        TrainkitError: there is no such run, or its recipe cannot be read.
    """
    directories = [run_directory(run) for run in runs]
    recipes = [_values(recipe_of(directory).recipe) for directory in directories]
    views = [view_of(directory) for directory in directories]
    head = ("", *(neutralise(directory.name) for directory in directories))
    lines = align([head, *([neutralise(cell) for cell in row] for row in results(views))])
    keys = differing(recipes)
    if not keys:
        return "\n".join([*lines, "", "their recipes are equal but for their names"])
    rows = [(key, *(neutralise(recipe.get(key, "–")) for recipe in recipes)) for key in keys]
    return "\n".join([*lines, "", *align([("RECIPE", *head[1:]), *rows])])


def _values(recipe: Recipe) -> dict[str, str]:
    return {dotted(key): toml_value(value) for key, value in flat(recipe).items() if value is not None}
