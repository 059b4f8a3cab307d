"""Which of the groups of an optimizer decides about a parameter, in words."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from trainkit.recipe.optimizers.spec import OptimizerSpec


def decisions(spec: OptimizerSpec, names: Iterable[str]) -> list[str]:
    """Return lines that say, of all parameters that a group matches, which group decides about each of its options.

    The last one wins: of those that give a weight decay or an optimizer, and of all for the learning rate's factor.
    """
    by_decision: dict[str, list[str]] = {}
    for name in names:
        if decision := _decision(spec, name):
            by_decision.setdefault(decision, []).append(name)
    return [f"{', '.join(matched)}: {decision}" for decision, matched in by_decision.items()]


def _decision(spec: OptimizerSpec, name: str) -> str:
    """Return the options of one parameter with the group that each comes from; empty if no group matches it."""
    found: dict[str, tuple[str, int]] = {}
    for number, group in enumerate(spec.groups):
        if not fnmatchcase(name, group.match):
            continue
        if group.optimizer is not None:
            found["optimizer"] = f'"{group.optimizer.type}"', number
        if group.weight_decay is not None:
            found["weight_decay"] = f"{group.weight_decay:g}", number
        found["learning_rate_factor"] = f"{group.learning_rate_factor:g}", number
    return ", ".join(f"{key} = {value} (groups.{number})" for key, (value, number) in found.items())
