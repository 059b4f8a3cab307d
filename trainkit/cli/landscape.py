"""`trainkit landscape`: the loss along a line through the parameters."""

from __future__ import annotations

import json as json_format
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainkit.cli.arguments import RunOrStep
from trainkit.cli.cache_data import show_progress
from trainkit.text import align, format_quantity

if TYPE_CHECKING:
    from trainkit.search.landscape import Landscape

#: Lines of a plot, dots of a character in each direction, and cells of the numbers beside it.
ROWS, DOWN, ACROSS, GUTTER = 12, 4, 2, 10


def landscape(
    run: RunOrStep,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[RUN2[/STEP]]", help="With --direction between: where the line ends."),
    ] = None,
    direction: Annotated[
        Literal["gradient", "update", "random", "between"],
        typer.Option(help="Downhill, the optimizer's next update, a random direction, or to another checkpoint."),
    ] = "gradient",
    points: Annotated[int, typer.Option(min=2, max=10_000, help="Losses to compute.")] = 41,
    begin: Annotated[
        float | None,
        typer.Option("--begin", help="First distance: norms of the parameters, updates, or the share of the way."),
    ] = None,
    end: Annotated[float | None, typer.Option("--end", help="Last distance.")] = None,
    seed: Annotated[int, typer.Option(help="With --direction random: another seed is another direction.")] = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the points to FILE.json or FILE.csv.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
) -> Iterator[str]:
    """Show the loss of a batch along a line through a run's parameters.

    The batch is the one of the step after the checkpoint, without dropout.
    """
    from trainkit.parallel.xla import use_compile_cache
    from trainkit.rundir.find import find_run
    from trainkit.search.landscape import RANGES, check_output
    from trainkit.search.landscape import landscape as compute

    if output is not None:
        check_output(output)
    directory, step = find_run(run)
    there = None if other is None else find_run(other)
    low, high = RANGES[direction]
    span = (low if begin is None else begin, high if end is None else end)
    use_compile_cache()
    with show_progress() as progress:
        found = compute(
            directory, step, direction=direction, other=there, points=points, span=span, seed=seed, progress=progress
        )
    if output is not None:
        found.write(output)
    if json:
        yield json_format.dumps(found.as_json())
        return
    yield f"{found.run} at step {found.step}, --direction {found.direction}; a distance of 1 is {found.unit}"
    yield ""
    yield from draw(found, width=shutil.get_terminal_size().columns)
    yield ""
    yield from table(found)


def draw(found: Landscape, *, width: int) -> list[str]:
    """Return lines of at most `width` cells with the losses over the distances."""
    import numpy as np

    from trainkit.dashboard.charts.columns import braille_cells

    at, losses = np.array(found.distances), np.array(found.losses)
    finite = np.isfinite(losses)
    if finite.sum() < 2:
        return ["no two losses are finite: there is nothing to draw"]
    cells = max(width - GUTTER - 2, 1)
    columns = np.interp(np.linspace(at[0], at[-1], ACROSS * cells), at[finite], losses[finite])
    low, high = float(columns.min()), float(columns.max())
    level = np.rint((high - columns) / ((high - low) or 1) * (DOWN * ROWS - 1))
    before = np.concatenate([level[:1], level[:-1]])
    rows = np.arange(DOWN * ROWS)[:, None]
    lines = braille_cells((rows >= np.minimum(level, before)) & (rows <= np.maximum(level, before)))
    labels = {0: format_quantity(high), ROWS - 1: format_quantity(low)}
    drawn = [
        f"{labels.get(row, ''):>{GUTTER}} ┤{''.join(chr(0x2800 + bits) for bits in line)}".rstrip("\u2800")
        for row, line in enumerate(lines.tolist())
    ]
    first, last = f"{at[0]:g}", f"{at[-1]:g}"
    return [*drawn, f"{'':{GUTTER + 2}}{first}{last:>{max(1, cells - len(first))}}"]


def table(found: Landscape) -> list[str]:
    """Return the points as aligned lines; the lowest loss and that of the checkpoint are marked."""
    finite = [loss for loss in found.losses if math.isfinite(loss)]
    lowest = min(finite, default=None)
    rows: list[tuple[str, ...]] = [("DISTANCE", "LOSS", "")]
    for at, loss in zip(found.distances, found.losses, strict=True):
        mark = "lowest" if loss == lowest else ""
        rows.append((f"{at:.4g}", f"{loss:.6g}", f"{mark}  the checkpoint".strip() if abs(at) < 1e-12 else mark))
    return align(rows)
