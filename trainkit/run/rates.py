"""What a changed recipe does to the learning rate of a run that goes on. Imports no jax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainkit.errors import TrainkitError
from trainkit.events.commands import issued_commands
from trainkit.events.log import of_kinds
from trainkit.recipe import Recipe
from trainkit.recipe.sections.encoding import is_padded
from trainkit.recipe.sections.schedule import NEVER, ScheduleSpec
from trainkit.recipe.toml.values import Difference

#: A rate counts as raised from so many times the one before on.
RAISED = 1.01
_CHANGING = ("train.steps", "train.epochs", "train.tokens", "optimizer.learning_rate", "schedule.")


def told_rate(
    directory: Path, old: Recipe, new: Recipe, step: int, changed: Sequence[Difference], *, raise_rate: bool
) -> str | None:
    """A line about the learning rate of the step after `step`, before and after the change; None where nothing that
    decides about it has changed, or where that cannot be known before the data is counted.

    Raises:
        TrainkitError: the new schedule raises it, and nobody has said that it may.
    """
    if not step or not any(difference.key.startswith(_CHANGING) for difference in changed):
        return None
    steps_before, steps_after = _total(directory, old, old), _total(directory, new, old)
    if steps_before is None or steps_after is None:
        return None
    orders = [found for found in issued_commands(directory) if found.step <= step]
    decay = min((found.step for found in orders if found.order.command == "decay"), default=NEVER)
    factor = next((float(o.order.argument or 1) for o in reversed(orders) if o.order.command == "rate"), 1.0)
    before = share(old.schedule, steps_before, step, decay_start=decay)
    after = share(new.schedule, steps_after, step, decay_start=decay)
    rates = [factor * old.optimizer.learning_rate * before, factor * new.optimizer.learning_rate * after]
    told = f"{rates[0]:.3g} -> {rates[1]:.3g}"
    if after > RAISED * before and rates[1] > RAISED * rates[0] and not raise_rate:
        times = f", {rates[1] / rates[0]:.3g} times as much" if rates[0] else ""
        raise TrainkitError(
            f"the changed recipe raises the learning rate after step {step}: {told}{times}",
            where=str(directory),
            hint="if it is to rise: --raise-rate   or go on at the rate of now: "
            f"--set 'schedule={{type=\"constant\"}}' --set optimizer.learning_rate={rates[0] / factor:.6g}",
        )
    return f"learning rate after step {step}: {told}"


def share(schedule: ScheduleSpec, steps: int, step: int, *, decay_start: int = NEVER) -> float:
    """Return the share of the peak rate that a run of `steps` has in the update after `step` others."""
    return float(schedule.rate(step, peak=1.0, steps=steps, decay_start=decay_start, xp=np))


def _total(directory: Path, recipe: Recipe, old: Recipe) -> int | None:
    """Return the steps of the run by this recipe, or None where that is not known.

    Epochs, and tokens where examples are padded, are turned into steps as the `old` recipe's plan counted them.
    """
    train = recipe.train
    if train.steps is not None:
        return train.steps
    if train.tokens is not None and not is_padded(recipe.data.encoding):
        return math.ceil(train.tokens / (train.batch_size * recipe.data.positions))
    planned = [event["plan"].get("steps") for event in of_kinds(directory, "planned")]
    now, then = (train.epochs, old.train.epochs) if train.tokens is None else (train.tokens, old.train.tokens)
    if not planned or planned[-1] is None or now is None or then is None:
        return None
    return math.ceil(planned[-1] * now / then)
