"""`trainkit compare`: what differs between runs, in their recipes and in what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from trainkit.cli.look import aligned, view_of
from trainkit.cli.where import run_directory
from trainkit.events.plain import count, inert, quantity
from trainkit.events.series import Series
from trainkit.events.view import View
from trainkit.recipe import Recipe
from trainkit.recipe.locate import dotted
from trainkit.recipe.write import flat, toml_value
from trainkit.run.directory import recipe_of


def compare(runs: Sequence[str]) -> str:
    """Two tables with a column a run: the keys of the recipe that differ, and the losses and pace.

    Raises:
        TrainkitError: there is no such run, or its recipe cannot be read.
    """
    directories = [run_directory(run) for run in runs]
    recipes = [recipe_of(directory).recipe for directory in directories]
    views = [view_of(directory) for directory in directories]
    head = ("", *(inert(directory.name) for directory in directories))
    lines = aligned([head, *_results(views)])
    differing = _differing(recipes)
    if not differing:
        return "\n".join([*lines, "", "their recipes are equal but for their names"])
    return "\n".join([*lines, "", *aligned([("RECIPE", *head[1:]), *differing])])


def _results(views: Sequence[View]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("step", *(f"{view.step}/{view.total_steps or '?'}" for view in views))]
    sets = list(dict.fromkeys(name for view in views for name in view.validation_sets()))
    for metric in ("train/loss", *(f"validation/{name}/loss" for name in sets)):
        found = [view.series.get(metric) for view in views]
        rows.append(
            (
                f"{metric}, last",
                *(quantity(series.last) if series and series.last is not None else "–" for series in found),
            )
        )
        if metric != "train/loss":
            rows.append((f"{metric}, best", *(_best(series) for series in found)))
    rows.append(("tokens/s", *(count(v.tokens_per_second) if v.tokens_per_second else "–" for v in views)))
    rows.append(("trained for", *(_seconds(view) for view in views)))
    return rows


def _best(series: Series | None) -> str:
    finite = [(v, s) for v, s in zip(series.values, series.steps, strict=True) if math.isfinite(v)] if series else []
    if not finite:
        return "–"
    value, step = min(finite)
    return f"{quantity(value)} at {step:,.0f}"


def _seconds(view: View) -> str:
    times = view.series.get("time/step")
    return f"{sum(times.values):,.1f} s" if times else "–"


def _differing(recipes: Sequence[Recipe]) -> list[tuple[str, ...]]:
    all_flat = [flat(recipe) for recipe in recipes]
    keys = list(dict.fromkeys(key for values in all_flat for key in values))
    rows = []
    for key in keys:
        values = [values.get(key) for values in all_flat]
        if key != ("run", "name") and any(a != b for a, b in pairwise(values)):
            rows.append((dotted(key), *("–" if value is None else inert(toml_value(value)) for value in values)))
    return rows
