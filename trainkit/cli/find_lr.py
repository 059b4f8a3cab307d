"""`trainkit find-lr`: the range test of learning rates."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.text import align, format_quantity

if TYPE_CHECKING:
    from trainkit.search.range_test import RangeTest

#: Rows of the table, and the width of its bars.
ROWS, WIDTH = 24, 40


def find_lr(
    recipe: RecipePath,
    overrides: Overrides = None,
    mode: Mode = "full",
    low: Annotated[float, typer.Option(help="First learning rate.")] = 1e-6,
    high: Annotated[float, typer.Option(help="Learning rate of the last step.")] = 1.0,
    steps: Annotated[int, typer.Option(min=10, help="Steps from the first rate to the last.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print every step as JSON.")] = False,
) -> str:
    """Suggest a learning rate: train briefly while the rate rises.

    The run is in a temporary directory and ends when the loss explodes; the recipe's own run is not touched, and its
    length, in steps or as a time, is not used.
    """
    from trainkit.parallel import hosts
    from trainkit.search.range_test import find_rate

    hosts.join()
    found = find_rate(recipe, overrides or [], mode=mode, low=low, high=high, steps=steps)
    if json:
        return json_format.dumps(found.as_json())
    return "\n".join([*table(found), "", *conclusion(found)])


def table(found: RangeTest) -> list[str]:
    """Return the rates and losses as aligned lines; longer bars are higher losses."""
    steepest, lowest = found.steepest, found.lowest
    every = -(-len(found.points) // ROWS)
    shown = [point for number, point in enumerate(found.points) if number % every == 0 or point in (steepest, lowest)]
    least, most = lowest.smoothed, max(point.smoothed for point in shown)
    rows: list[tuple[str, ...]] = [("LEARNING RATE", "LOSS", "SMOOTHED", "")]
    for point in shown:
        length = round(WIDTH * (point.smoothed - least) / (most - least)) if most > least else 0
        mark = "  falls fastest" if point is steepest else "  lowest" if point is lowest else ""
        rows.append(
            (f"{point.learning_rate:.2e}", format_quantity(point.loss), format_quantity(point.smoothed),
             "█" * length + mark)
        )  # fmt: skip
    return align(rows)


def conclusion(found: RangeTest) -> list[str]:
    """Return what the test suggests, in words."""
    last = found.points[-1]
    end = f"the loss exploded at {last.learning_rate:.2e}" if found.exploded else "the loss did not explode"
    if (steepest := found.steepest) is None:
        return [f"no suggestion: the loss never fell; {end}", "try lower rates, or more steps: --low, --steps"]
    return [
        f"suggestion: optimizer.learning_rate = {steepest.learning_rate:.1e}, where the loss falls fastest",
        f"the loss is lowest at {found.lowest.learning_rate:.1e}; {end}",
    ]
