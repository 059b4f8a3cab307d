"""`trainkit inspect`: the exact batch of any step, past or future, decoded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainkit.cli.arguments import Mode, Overrides
from trainkit.cli.batch_rows import masks_legend, row_lines
from trainkit.cli.cache_data import show_progress
from trainkit.errors import TrainkitError
from trainkit.printer import printable_json, quote
from trainkit.text import neutralise

if TYPE_CHECKING:
    from trainkit.data.batches.layout import Batch
    from trainkit.data.cache.token_cache import Cache
    from trainkit.data.jobs import Tell
    from trainkit.data.show import Hide, ShownRow
    from trainkit.recipe import Recipe
    from trainkit.recipe.toml.load import Loaded

EXCLUSIVE = [
    ("--step", "--first", "one names a step, the other the first N"),
    ("--blackbox", "--first", "a black box is of one step"),
]

#: Rows of a batch that are printed by default.
ROWS = 4


def inspect(
    what: Annotated[str, typer.Argument(metavar="RUN|RECIPE", help="A run, or a recipe file.")],
    overrides: Overrides = None,
    mode: Mode = "full",
    step: Annotated[int | None, typer.Option(min=0, help="Show the batch of this step.", show_default=False)] = None,
    first: Annotated[int, typer.Option(metavar="N", min=1, help="Show the batches of the first N steps.")] = 1,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of each batch to show; by default 4, with --json all.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    blackbox: Annotated[
        bool,
        typer.Option(
            "--blackbox",
            help="Compute the step of the run's newest black box again, or that of --step, and show what broke in it.",
        ),
    ] = False,
) -> Iterator[str]:
    """Print the exact batch of any step, past or future.

    Shows the text of each row, which of it is learned, and where it comes from.
    """
    if blackbox:
        yield from _examine(what, overrides or [], mode, step, rows, json)
        return
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.show import show
    from trainkit.recipe.toml.load import locate_error

    loaded, run = _load(what, overrides or [], mode)
    recipe = loaded.recipe
    steps = range(first) if step is None else range(step, step + 1)
    try:
        # what is not cached yet is tokenised: all of it, or, unless the whole is shuffled, what these batches need
        with show_progress() as progress:
            cache = _cache(recipe, run, progress)
        data = TrainSet(cache, recipe)
        hide = _hide(recipe, cache) if recipe.task.masks else None
        for number in steps:
            yield from _lines(list(show(cache, data, number, hide)), recipe, rows, json)
        cache.close()
    except TrainkitError as error:
        raise locate_error(error, loaded) from error


def _examine(
    what: str, overrides: Sequence[str], mode: str, step: int | None, rows: int | None, as_json: bool
) -> Iterator[str]:
    """Yield what a black box holds, how its step breaks when it is computed again, and its batch."""
    from trainkit.data.show import show
    from trainkit.run.examine import examine, read_box
    from trainkit.run.recorded_inputs import recipe_with

    loaded, run = _load(what, overrides, mode)
    if run is None:
        raise TrainkitError("a recipe has no black box: name a run", where=what)
    box = read_box(run, step)
    loaded, known = (loaded, True) if overrides else recipe_with(run, str(box["recipe"]), loaded)
    recipe = loaded.recipe
    with show_progress() as progress:
        found = examine(run, recipe, box, progress=progress)
    hide = _hide(recipe, found.cache) if recipe.task.masks else None
    shown = list(show(found.cache, found.data, int(box["step"]) - 1, hide))
    if as_json:
        origins = [origin.in_words() for origin in found.origins]
        facts = {**box, "replayed_from": found.first, "differences": found.differences, "origins": origins}
        yield printable_json(facts)
    else:
        yield f"step {box['step']} ({box['action']}): {neutralise(str(box['problem']))}"
        same = "as in the run, bit for bit" if not found.differences else "; ".join(found.differences)
        yield f"computed again from step {found.first}: {same}"
        if not known:
            yield "the recipe that it was trained with is unknown: that of the run was used"
        yield from (origin.in_words() for origin in found.origins)
        if not found.origins:
            yield "no operation of this step makes an infinity or NaN of finite numbers"
        yield ""
    yield from _lines(shown, recipe, rows, as_json)
    found.cache.close()


def _hide(recipe: Recipe, cache: Cache) -> Hide:
    """Return what hides tokens of a batch as the steps of the recipe's run do."""
    import jax
    import numpy as np

    from trainkit.data.show import HiddenTokens
    from trainkit.tasks import build
    from trainkit.train.state import LOSS, key_of_step

    task: Any = build(recipe.task, cache.tokenizer)
    key = jax.random.key(recipe.run.seed)

    def hide(batch: Batch, step: int) -> HiddenTokens:
        arrays = {name: jax.numpy.asarray(batch[name]) for name in ("tokens", "weights", "example")}
        inputs_BT, weights_BT = task.hide(arrays, key_of_step(key, LOSS, step))
        return HiddenTokens(np.asarray(inputs_BT), np.asarray(weights_BT), task.mask)

    return hide


def _cache(recipe: Recipe, run: Path | None, progress: Tell) -> Cache:
    """Return the recipe's data; for a run, exactly the data that it was trained on. Raises TrainkitError."""
    from trainkit.data.cache.build import begin, build, may_start_early
    from trainkit.data.recorded import check_same_data, format_of, open_again, read, with_own_tokenizer

    make = begin if may_start_early(recipe) else build
    if run is None:
        return make(recipe, progress=progress)
    in_checkpoint, recorded = _fingerprint_in_checkpoint(run), read(run)
    known = recorded.fingerprint if recorded else in_checkpoint
    if in_checkpoint:
        recipe = with_own_tokenizer(recipe, run)
    try:
        if recorded:
            # as `resume` does, accept a fingerprint of an earlier format if it stands for the same tokens in order
            cache = open_again(
                recipe, run, recorded, accept=lambda now: format_of(now, recorded.fingerprint) is not None,
                progress=progress,
            )  # fmt: skip
        else:
            cache = make(recipe, progress=progress)
    except TrainkitError as error:
        raise error if error.where == str(run) else _unreadable_source(error, run, recorded is None) from error
    if known:
        check_same_data(cache, recipe, known, where=run)
    return cache


def _unreadable_source(error: TrainkitError, run: Path, unrecorded: bool) -> TrainkitError:
    """Return the error about an unreadable source of a run: why it must be read again, and how to continue."""
    why = (
        "an earlier version of trainkit began this run and did not record its data"
        if unrecorded
        else "the cache does not hold all tokens of this run as this version of trainkit stores them"
    )
    return TrainkitError(
        error.problem,
        where=error.where,
        hint=f"{why}, so inspect needs its sources: restore them; or, if they have moved, say where they are now:"
        f" trainkit inspect {quote(run)} --set data.train.0.path=PATH",
        exit_code=error.exit_code,
    )


def _fingerprint_in_checkpoint(run: Path) -> str | None:
    """Return the data fingerprint in a run's checkpoints; None without a readable checkpoint."""
    from trainkit.checkpoint import manifest

    for path in sorted((run / "checkpoints").glob("[0-9]*")):
        with contextlib.suppress(TrainkitError):
            return manifest.read(path).data
    return None


def _load(what: str, overrides: Sequence[str], mode: str) -> tuple[Loaded, Path | None]:
    """Return the recipe at a path, or a run's recipe and the run's directory."""
    if Path(what).is_file() or what.endswith(".toml"):
        from trainkit.hub.recipe import load

        return load(Path(what), overrides, mode=mode), None
    from trainkit.cli.arguments import run_directory
    from trainkit.rundir.directory import recipe_of

    directory = run_directory(what)
    if mode != "full":
        raise TrainkitError("--mode is for recipes, and this is a run", where=what, hint="leave it out")
    return recipe_of(directory, overrides), directory


def _lines(batch: list[ShownRow], recipe: Recipe, rows: int | None, as_json: bool) -> Iterator[str]:
    if as_json:
        from trainkit.data.show import as_shared

        yield from (printable_json(as_shared(row)) for row in batch[:rows])
        return
    of = f" of {recipe.data.sequence_length} positions" if recipe.data.sequence_length else ""
    step, most = batch[0].step, rows or ROWS
    yield f"step {step} -> {step + 1}: {len(batch)} rows{of}"
    colour = sys.stdout.isatty()
    if recipe.task.masks:
        yield from masks_legend(colour=colour)
    for row in batch[:most]:
        yield ""
        yield from row_lines(row, colour=colour, masks=recipe.task.masks)
    if len(batch) > most:
        yield f"\n{len(batch) - most} more rows; to show all: --rows {len(batch)}"
