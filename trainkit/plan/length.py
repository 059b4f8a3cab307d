"""The length of a run in steps, from the recipe and the size of its data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import is_padded
from trainkit.recipe.spec import MOST
from trainkit.text import plural


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """One epoch of the training data, from the cache's ledger.

    `batches` is set if no batch spans two epochs; `tokens_per_batch`, the mean without padding, if there is padding.
    """

    examples: int
    batches: int | None = None
    tokens: int
    documents: int
    bytes: int
    tokens_per_batch: float | None = None


def steps_need_data(recipe: Recipe) -> bool:
    """Return whether the number of steps is unknown until the data is counted."""
    train = recipe.train
    return train.epochs is not None or (train.tokens is not None and is_padded(recipe.data.encoding))


def count_steps(recipe: Recipe, data: DataSize | None, tokens_per_step: float) -> int:
    """Return the steps of a run, however the recipe gives its length.

    Raises TrainkitError if no batch can be made of the data, if it has to be counted first, or if it is too long.
    """
    steps = _count_steps(recipe, data, tokens_per_step)
    if steps > MOST:
        unit = "epochs" if recipe.train.epochs is not None else "tokens"
        raise TrainkitError(
            f"{unit} = {getattr(recipe.train, unit):,} are {steps:,} steps, and a run has {MOST:,} at most",
            where=f"train.{unit}",
            hint="give fewer, or larger batches",
        )
    return steps


def _count_steps(recipe: Recipe, data: DataSize | None, tokens_per_step: float) -> int:
    train = recipe.train
    if data is not None and data.examples == 0:
        raise TrainkitError(
            f"the training data ({data.tokens:,} tokens) does not fill one example of {recipe.data.positions} tokens",
            where="data.train",
            hint="give more text or a smaller data.sequence_length",
        )
    if train.steps is not None:
        return train.steps
    unit = "epochs" if train.epochs is not None else "tokens"
    if data is None and steps_need_data(recipe):
        raise TrainkitError(
            f"{unit} = {getattr(train, unit)} cannot be converted to steps before the data is counted",
            where=f"train.{unit}",
            hint="count it first: trainkit cache-data RECIPE; or give train.steps",
        )
    sizes = recipe.batch_sizes
    if train.tokens is not None and len(sizes.values) > 1:
        return sizes.steps_for(math.ceil(train.tokens / (tokens_per_step / train.batch_size) - 1e-6))
    if train.tokens is not None:
        # a little less, because a mean times its count need not give back the exact sum
        steps = train.tokens / tokens_per_step
        return math.ceil(steps - steps * 1e-14)
    assert train.epochs is not None and data is not None
    if len(sizes.values) > 1:
        return sizes.steps_for(math.ceil(train.epochs * data.examples - 1e-6))
    return math.ceil(train.epochs * (data.batches or data.examples / train.batch_size))


def check_average(recipe: Recipe, steps: int) -> None:
    """Raise TrainkitError if averaging would begin after the last of so many steps."""
    if recipe.average is not None and recipe.average.first_step(steps) > steps:
        raise TrainkitError(
            f"start = {recipe.average.start} is beyond the run, which has {plural(steps, 'step')}",
            where="average.start",
            hint=f"a step up to {steps}, or a fraction of the run such as 0.75",
        )
