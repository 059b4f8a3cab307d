"""What may change in a run's recipe when it resumes, and what a change does to its learning rates. Imports no jax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.errors import TrainkitError
from trainkit.events.commands import FINISH, issued_commands
from trainkit.events.tail import of_kinds
from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.adapter import trained_shapes
from trainkit.recipe.sections.data import is_padded
from trainkit.recipe.sections.mup import rate_factor, width_ratio
from trainkit.recipe.sections.schedule_spec import NEVER, ScheduleSpec
from trainkit.recipe.toml.positions import dotted_key
from trainkit.recipe.toml.values import Difference, differences, flat

#: Keys on which the state or the data order depends. They cannot change within a run.
FIXED = (
    "schema",
    "run.*",
    "model.*",
    "adapter.[!l]*",  # all keys but the learning rate's ratio
    "tokenizer.*",
    "mup*",
    "task.*",
    "data.sequence_length",
    "data.encoding*",
    "data.train.*",
    "data.held_out",
    "data.shuffle*",
    "data.on_error",
    "train.batch_size",
    "schedules.batch_size*",
    "schedules.batch_tokens*",
    "schedules.sequence_length*",
    "schedules.mixture*",
    "precision.params",
)
#: A rate rises if it is more than so many times the old one.
RAISED = 1.01
#: Keys on which the schedule's share of the peak depends, and those on which peaks of single parameters depend.
_SCHEDULE = ("train.steps", "train.epochs", "train.tokens", "optimizer.learning_rate", "schedule.")
_PEAKS = ("optimizer.", "adapter.learning_rate_ratio")
#: A line names so many parameters.
_NAMED = 3


def check_changes(old: Recipe, new: Recipe, changed: Sequence[Difference], *, reset_optimizer: bool) -> None:
    """Raise TrainkitError if a key must not change within a run, or the saved optimizer state does not fit a change."""
    fixed = [d for d in changed if any(fnmatchcase(d.key, pattern) for pattern in FIXED)]
    wrong = [difference for difference in fixed if not difference.is_of_secrets]
    if wrong:
        raise TrainkitError(
            "these cannot change within a run:\n" + "\n".join(f"  {difference}" for difference in wrong),
            hint="begin a new run with the changed recipe: trainkit run RECIPE --name NAME",
        )
    if old.train.is_timed != new.train.is_timed:
        raise TrainkitError(
            "whether a run ends at a time (train.until or train.duration) cannot change within it",
            hint="begin a new run with the changed recipe: trainkit run RECIPE --name NAME",
        )
    if not reset_optimizer:
        _check_optimizer_state(old.optimizer, new.optimizer)


def _check_optimizer_state(before: OptimizerSpec, after: OptimizerSpec) -> None:
    old, new = before.state_key_values(), after.state_key_values()
    wrong = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if wrong:
        raise TrainkitError(
            "the saved optimizer state does not fit:\n"
            + "\n".join(f"  optimizer.{key}: {old.get(key, 'none')} -> {new.get(key, 'none')}" for key in wrong),
            hint="undo the change, or start with a new optimizer state: --reset-optimizer",
        )


def compare_rates(
    directory: Path, old: Recipe, new: Recipe, step: int, changed: Sequence[Difference], *, raise_rate: bool
) -> list[str]:
    """Return lines with the learning rates of the update after `step`, before and after a change of the recipe.

    The first line is about `optimizer.learning_rate`. Another one follows for each set of parameters whose rates change
    and come from a group, an inner optimizer or an adapter. There are no lines if no rate changes, or if `raise_rate`
    is set and the rates are unknown until the data is counted.

    Raises:
        TrainkitError: the change raises a rate, or may raise one, and `raise_rate` does not allow it.
    """
    keys = [difference.key for difference in changed]
    if not step or not any(key.startswith((*_SCHEDULE, *_PEAKS)) for key in keys):
        return []
    plan = _newest_plan(directory)
    steps_before, steps_after = _total(old, plan), _total(new, plan)
    if steps_before is None or steps_after is None:
        if not raise_rate:
            _refuse_unknown(directory, step)
        return []
    commands = [issued for issued in issued_commands(directory) if issued.step <= step]
    decay = min((issued.step for issued in commands if issued.command.name == "decay"), default=NEVER)
    factor = next((float(i.command.argument or 1) for i in reversed(commands) if i.command.name == "rate"), 1.0)
    ends = [(issued.step, int(issued.command.argument or 0)) for issued in commands if issued.command.name == FINISH]
    before = factor * share(old.schedule, steps_before, step, decay_start=decay, ends=ends)
    after = factor * share(new.schedule, steps_after, step, decay_start=decay, ends=ends)
    peak = (old.optimizer.learning_rate, new.optimizer.learning_rate)
    others = _other_peaks(old, new, peak)
    if after > RAISED * before and not raise_rate:
        kept = _settings_that_keep(old, new, before / factor) if factor else []
        _refuse_rise(directory, step, [(before * a, after * b) for a, b in (peak, *others)], kept)
    lines = [f"learning rate after step {step}: {before * peak[0]:.3g} -> {after * peak[1]:.3g}"]
    if not any(key.startswith(_SCHEDULE) for key in keys):
        lines = []
    for (a, b), names in others.items():
        if not math.isclose(before * a, after * b):
            lines.append(f"learning rate after step {step} of {_list(names)}: {before * a:.3g} -> {after * b:.3g}")
    return lines


def _other_peaks(old: Recipe, new: Recipe, peak: tuple[float, float]) -> dict[tuple[float, float], list[str]]:
    """Return the parameters whose peak is not `optimizer.learning_rate`, by (peak before, peak after)."""
    by_peaks: dict[tuple[float, float], list[str]] = {}
    shapes = trained_shapes(new.model, new.adapter, vocab_size=1, sequence_length=new.data.positions)
    for name, shape in shapes.items():
        pair = (_peak_of(old, name, shape), _peak_of(new, name, shape))
        if not all(map(math.isclose, pair, peak)):
            by_peaks.setdefault(pair, []).append(name)
    return by_peaks


def _peak_of(recipe: Recipe, name: str, shape: tuple[int, ...]) -> float:
    ratio = recipe.adapter.learning_rate_ratio if recipe.adapter and name.endswith(".b") else 1.0  # as in optim.build
    ratio *= rate_factor(recipe.optimizer.owner(name, shape), name, shape, wider=width_ratio(recipe.mup, recipe.model))
    return recipe.optimizer.learning_rate * recipe.optimizer.rate_factor_of(name, shape) * ratio


def _refuse_rise(directory: Path, step: int, rates: list[tuple[float, float]], kept: list[str]) -> None:
    """Raise TrainkitError for the first pair of rates that rises; the first pair is that of the whole model.

    `kept` are the settings that keep the present rates, if there are such settings.
    """
    for before, after in rates:
        if after > RAISED * before:
            times = f", {after / before:.3g} times as much" if before else ""
            keep = "   or to keep the present rate: " + " ".join(f"--set {setting}" for setting in kept)
            raise TrainkitError(
                f"the changed recipe raises the learning rate after step {step}: {before:.3g} -> {after:.3g}{times}",
                where=str(directory),
                hint="to allow it: --raise-rate" + (keep if kept else ""),
            )


def _refuse_unknown(directory: Path, step: int) -> None:
    raise TrainkitError(
        f"the changed recipe may raise the learning rate after step {step}: its number of steps is unknown until the"
        " data is counted",
        where=str(directory),
        hint="give the length as train.steps   or to allow it: --raise-rate",
    )


def _settings_that_keep(old: Recipe, new: Recipe, share: float) -> list[str]:
    """Return the settings that keep the rates of `old`, whose schedule is at `share` of its peaks.

    There are none if that share is 0, or if other keys changed on which the rates depend.
    """
    before = {dotted_key(key): value for key, value in flat(old).items() if key[0] == "optimizer"}
    other = [difference.key for difference in differences(old, new) if difference.key.startswith(_PEAKS)]
    if share <= 0 or not all(key in before and key.endswith(".learning_rate") for key in other):
        return []
    rates = {key: value for key, value in before.items() if key.endswith(".learning_rate")}
    return ["'schedule={type=\"constant\"}'", *(f"{key}={share * value:.6g}" for key, value in rates.items())]


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def share(
    schedule: ScheduleSpec,
    steps: int,
    step: int,
    *,
    decay_start: int = NEVER,
    ends: Sequence[tuple[int, int]] = (),
) -> float:
    """Return the learning rate of the update after `step` others, as a share of the peak, in a run of `steps`.

    Args:
        decay_start: where a command began the decay.
        ends: for a run that ends at a time, the steps after which its end was decided, each with that end.
    """
    decay_end = None
    for decided, end in ends:
        planned = schedule.decay_start(steps, ordered=NEVER)
        before = (decay_start, decay_end) if decay_end is not None else (NEVER if planned is None else planned, steps)
        decay_start, decay_end = schedule.decay_until(end, step=decided, before=before), end
    return float(schedule.rate(step, peak=1.0, steps=steps, decay_start=decay_start, decay_end=decay_end, xp=np))


def _newest_plan(directory: Path) -> dict[str, Any]:
    """Return the run's last plan; empty without one."""
    *_, plan = ({}, *(event["plan"] for event in of_kinds(directory, "planned")))
    return plan


def _total(recipe: Recipe, plan: Mapping[str, Any]) -> int | None:
    """Return the steps of the run by this recipe, or None if that is unknown.

    Epochs, and tokens of padded examples, are converted to steps as the run's `plan` counted them.
    """
    train = recipe.train
    if train.steps is not None:
        return train.steps
    if train.tokens is not None and not is_padded(recipe.data.encoding):
        return recipe.batch_sizes.steps_for(math.ceil(train.tokens / recipe.data.positions))
    wanted, counted = (train.epochs, "epochs") if train.tokens is None else (train.tokens, "total_tokens")
    steps, amount = plan.get("steps"), plan.get(counted)
    if wanted is None or not steps or not amount:
        return None
    return math.ceil(round(steps * wanted / amount, 6))
