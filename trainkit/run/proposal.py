"""The smallest change to a recipe that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, get_args

from trainkit.plan import Memory, Plan, divisors
from trainkit.recipe import Recipe
from trainkit.recipe.sections.train import Remat
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.write import flat, toml_value
from trainkit.run.replan import replan

#: Changes to a recipe: dotted key -> new value.
Changes = Mapping[str, Any]
#: How many proposals are compiled before the search gives up.
COMPILED_AT_MOST = 6


@dataclass(frozen=True)
class Proposal:
    """Changes with which the recipe fits, and what the step then needs: compiled, not estimated."""

    changes: Changes
    memory: Memory


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    values = recipe.model_dump(by_alias=True)
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        values[section][key] = value
    return Recipe.model_validate(with_tuples(values))


def candidates(recipe: Recipe, plan: Plan) -> Iterator[Changes]:
    """Fewer changes before more; then by which keys, the harmless before those that change more; then the milder."""
    ladder: dict[str, list[Any]] = {key: [] for key in _KEYS}
    train = recipe.train
    if train.micro_batch_size != "auto":
        sizes = divisors(plan.batch.global_size // plan.batch.replicas)
        ladder["train.micro_batch_size"] = [n for n in reversed(sizes) if n < plan.batch.micro]
    if train.remat != "auto":
        policies = [p for p in get_args(Remat) if p != "offload" or plan.devices.platform != "cpu"]
        ladder["train.remat"] = policies[policies.index(train.remat) + 1 :] if train.remat in policies else []
    shards = [n for n in divisors(plan.devices.count) if n > recipe.parallel.fsdp]
    ladder["parallel.fsdp"] = shards if recipe.parallel.data == "auto" else []
    kinds = ["float32", "bfloat16", "int8"]
    ladder["optimizer.moments"] = kinds[kinds.index(recipe.optimizer.moments) + 1 :]
    for count in range(1, len(_KEYS) + 1):
        for keys in combinations(_KEYS, count):
            for values in product(*(ladder[key] for key in keys)):
                yield dict(zip(keys, values, strict=True))


_KEYS = ("train.micro_batch_size", "train.remat", "parallel.fsdp", "optimizer.moments")


def likely(recipe: Recipe, plan: Plan, memory: Memory | None) -> Iterator[Changes]:
    """The candidates that fit by the estimate, put right by what was compiled, if anything was."""
    assert plan.devices.memory_bytes is not None
    error = memory.peak / plan.total_bytes if memory else 1.0
    for changes in candidates(recipe, plan):
        other = replan(changed(recipe, changes), plan)
        if plan.devices.have_room_for(error * other.total_bytes):
            yield changes


def find(
    recipe: Recipe, plan: Plan, memory: Memory | None, *, compiled: Callable[[Recipe, Plan], Memory | None]
) -> Proposal | None:
    """The first candidate that fits when it is compiled; None where none was found.

    `compiled` says what the step needs, None where it cannot be laid out or compiled.
    """
    for _, changes in zip(range(COMPILED_AT_MOST), likely(recipe, plan, memory), strict=False):
        other = changed(recipe, changes)
        needed = compiled(other, replan(other, plan))
        if needed is not None and plan.devices.have_room_for(needed.peak):
            return Proposal(changes, needed)
    return None


def hint(recipe: Recipe, plan: Plan) -> str:
    """What would fit by the estimate, in words."""
    tell = "trainkit plan RECIPE says more"
    if plan.devices.memory_bytes is None:
        return f'a smaller train.micro_batch_size, train.remat = "blocks" or a smaller model; {tell}'
    found = next(likely(recipe, plan, None), None)
    if found is None:
        return f"a smaller model, or more devices and parallel.fsdp; {tell}"
    return " and ".join(f"{key} = {toml_value(value)}" for key, value in found.items()) + f"; {tell}"


def diff(loaded: Loaded, changes: Changes) -> list[str]:
    """The changes as lines of TOML to take out (-) and to put in (+), below their section."""
    values, lines, section = flat(loaded.recipe), [], ""
    for dotted, new in changes.items():
        table, _, key = dotted.partition(".")
        if table != section:
            section = table
            lines.append(f" [{section}]")
        if not loaded.origins[dotted].startswith(("default", "--set")):
            lines.append(f"-{key} = {toml_value(values[table, key])}")
        lines.append(f"+{key} = {toml_value(new)}")
    return lines
