"""The values that a sweep tries: those of a grid, random ones, and the ends of every range."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from trainkit.recipe.sections.sweep import Sweep, SweptKey


def settings_of(spec: Sweep) -> Iterator[dict[str, Any]]:
    """Yield the settings of each trial of a grid or of random trials: a pure function of the sweep, however many trials
    came before."""
    if spec.method == "grid":
        for values in itertools.product(*(_points(swept) for swept in spec.parameters.values())):
            yield dict(zip(spec.parameters, values, strict=True))
        return
    for trial in range(1, (spec.trials or 0) + 1):
        yield {key: draw(swept, random.Random(f"{spec.seed}/{trial}/{key}")) for key, swept in spec.parameters.items()}


def extremes(spec: Sweep) -> Iterator[dict[str, Any]]:
    """Yield settings of one key each: its values, or the ends of its range."""
    for key, swept in spec.parameters.items():
        for value in swept.values or (swept.low, swept.high):
            yield {key: value}


def as_recipe_value(swept: SweptKey, value: float) -> int | float:
    """Return a value of a range as a recipe has it: whole, or in six digits, as nobody wants to read
    0.0010000000000000002."""
    assert swept.low is not None and swept.high is not None
    return round(value) if swept.is_whole else min(max(float(f"{value:.6g}"), swept.low), swept.high)


def _points(swept: SweptKey) -> list[Any]:
    """Return the values of a key that a grid tries."""
    if swept.values is not None:
        return list(swept.values)
    assert swept.low is not None and swept.high is not None
    if swept.points is None:
        return list(range(int(swept.low), int(swept.high) + 1))
    return list(dict.fromkeys(_between(swept, at / (swept.points - 1)) for at in range(swept.points)))


def draw(swept: SweptKey, chance: random.Random) -> Any:
    """Return a random value of a key."""
    if swept.values is not None:
        return chance.choice(swept.values)
    if swept.is_whole and not swept.log:
        return chance.randint(int(swept.low or 0), int(swept.high or 0))
    return _between(swept, chance.random())


def _between(swept: SweptKey, share: float) -> int | float:
    """Return the value of a range at a share of the way from its lowest to its highest."""
    assert swept.low is not None and swept.high is not None
    low, high = swept.low, swept.high
    return as_recipe_value(swept, low * (high / low) ** share if swept.log else low + (high - low) * share)
