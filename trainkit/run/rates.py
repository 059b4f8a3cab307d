"""What a changed recipe does to the learning rates of a resumed run. Imports no jax."""

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
from trainkit.recipe.sections.lora_targets import trained_shapes
from trainkit.recipe.sections.schedule import NEVER, ScheduleSpec
from trainkit.recipe.toml.values import Difference

#: The least ratio of a new rate to the old one that counts as a rise.
RAISED = 1.01
#: What the schedule's share of the peak depends on, and what the peaks of single parameters depend on.
_SCHEDULE = ("train.steps", "train.epochs", "train.tokens", "optimizer.learning_rate", "schedule.")
_PEAKS = ("optimizer.", "adapter.learning_rate_ratio")
#: Parameters that a line names.
_NAMED = 3


def compare_rates(
    directory: Path, old: Recipe, new: Recipe, step: int, changed: Sequence[Difference], *, raise_rate: bool
) -> list[str]:
    """Return lines that show the learning rates of the update after `step`, before and after a change of the recipe.

    The first line is about `optimizer.learning_rate`. Another follows for each set of parameters whose rates a group,
    an inner optimizer or an adapter sets and the change alters. There are no lines where nothing changes the rates, or
    where they are unknown until the data is counted.

    Raises:
        TrainkitError: the new schedule raises a rate, and `raise_rate` does not allow it.
    """
    keys = [difference.key for difference in changed]
    if not step or not any(key.startswith((*_SCHEDULE, *_PEAKS)) for key in keys):
        return []
    steps_before, steps_after = _total(directory, old, old), _total(directory, new, old)
    if steps_before is None or steps_after is None:
        return []
    commands = [issued for issued in issued_commands(directory) if issued.step <= step]
    decay = min((issued.step for issued in commands if issued.order.command == "decay"), default=NEVER)
    factor = next((float(i.order.argument or 1) for i in reversed(commands) if i.order.command == "rate"), 1.0)
    before = factor * share(old.schedule, steps_before, step, decay_start=decay)
    after = factor * share(new.schedule, steps_after, step, decay_start=decay)
    peak = (old.optimizer.learning_rate, new.optimizer.learning_rate)
    others = _other_peaks(old, new, peak)
    if after > RAISED * before and not raise_rate:
        _refuse_rise(directory, step, [(before * a, after * b) for a, b in (peak, *others)], factor)
    lines = [f"learning rate after step {step}: {before * peak[0]:.3g} -> {after * peak[1]:.3g}"]
    if not any(key.startswith(_SCHEDULE) for key in keys):
        lines = []
    for (a, b), names in others.items():
        if not math.isclose(before * a, after * b):
            lines.append(f"learning rate after step {step} of {_listed(names)}: {before * a:.3g} -> {after * b:.3g}")
    return lines


def _other_peaks(old: Recipe, new: Recipe, peak: tuple[float, float]) -> dict[tuple[float, float], list[str]]:
    """Return the parameters that have other peaks than `optimizer.learning_rate`, by (peak before, peak after)."""
    found: dict[tuple[float, float], list[str]] = {}
    shapes = trained_shapes(new.model, new.adapter, vocab_size=1, sequence_length=new.data.positions)
    for name, shape in shapes.items():
        pair = (_peak_of(old, name, shape), _peak_of(new, name, shape))
        if not all(map(math.isclose, pair, peak)):
            found.setdefault(pair, []).append(name)
    return found


def _peak_of(recipe: Recipe, name: str, shape: tuple[int, ...]) -> float:
    ratio = recipe.adapter.learning_rate_ratio if recipe.adapter and name.endswith(".b") else 1.0  # as in optim.build
    return recipe.optimizer.learning_rate * recipe.optimizer.rate_factor_of(name, shape) * ratio


def _refuse_rise(directory: Path, step: int, rates: list[tuple[float, float]], factor: float) -> None:
    """Raise TrainkitError for the first pair of rates that rises; the first pair is that of the whole model."""
    for before, after in rates:
        if after > RAISED * before:
            times = f", {after / before:.3g} times as much" if before else ""
            raise TrainkitError(
                f"the changed recipe raises the learning rate after step {step}: {before:.3g} -> {after:.3g}{times}",
                where=str(directory),
                hint="to allow it: --raise-rate   or to keep the present rate: "
                f"--set 'schedule={{type=\"constant\"}}' --set optimizer.learning_rate={rates[0][0] / factor:.6g}",
            )


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


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
