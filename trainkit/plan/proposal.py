"""Changes that need less memory: the smallest change to a recipe that fits, and the next smaller micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, get_args

from trainkit.errors import FAILED, TrainkitError
from trainkit.plan.plan import Memory, Plan, replan
from trainkit.plan.split import Choice, shared_size
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import Remat, divisors
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import flat, toml_value
from trainkit.text import plural

#: Changes to a recipe: dotted key -> new value.
Changes = Mapping[str, Any]
#: The search gives up after compiling so many proposals.
COMPILED_AT_MOST = 6


@dataclass(frozen=True)
class Proposal:
    """Changes with which the recipe fits, and the memory of the step as compiled."""

    changes: Changes
    memory: Memory


def with_changes(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with these values in place of its own."""
    values = recipe.model_dump(by_alias=True)
    for dotted, value in changes.items():
        *tables, key = dotted.split(".")
        table = values
        for name in tables:
            table = table[name]
        table[key] = value
    return type(recipe).model_validate(with_tuples(values))


def candidates(recipe: Recipe, plan: Plan) -> Iterator[Changes]:
    """Yield changes that need less memory: fewer before more, harmless keys before others, milder values first."""
    ladders = _ladders(recipe, plan)
    for count in range(1, len(ladders) + 1):
        for chosen in combinations(ladders, count):
            for steps in product(*chosen):
                yield {key: value for step in steps for key, value in step.items()}


def _ladders(recipe: Recipe, plan: Plan) -> list[list[Changes]]:
    """Return, in the order in which they are tried, the ways to need less memory, each with its steps."""
    train = recipe.train
    sizes: list[int] = []
    if train.micro_batch_size != "auto":
        fitting = divisors(shared_size(recipe) // plan.batch.replicas)
        sizes = [n for n in reversed(fitting) if n < plan.batch.micro]
    policies = [p for p in get_args(Remat) if p != "offload" or plan.devices.platform != "cpu"]
    policies = policies[policies.index(train.remat) + 1 :] if train.remat in policies else []
    shards = [n for n in divisors(plan.devices.count) if n > recipe.parallel.fsdp]
    return [
        [{"train.micro_batch_size": size} for size in sizes],
        [{"train.remat": policy} for policy in policies],
        [{"parallel.fsdp": count} for count in shards if recipe.parallel.data == "auto"],
        [{f"optimizer.{key}": value for key, value in step.items()} for step in recipe.optimizer.smaller()],
    ]


def likely(recipe: Recipe, plan: Plan, memory: Memory | None) -> Iterator[Changes]:
    """Yield the candidates that fit by the estimate, corrected by the `memory` of a compiled step if given."""
    assert plan.devices.memory_bytes is not None
    error = memory.peak / plan.total_bytes if memory else 1.0
    for changes in candidates(recipe, plan):
        other = replan(with_changes(recipe, changes), plan)
        if plan.devices.have_room_for(error * other.total_bytes):
            yield changes


def find(
    recipe: Recipe, plan: Plan, memory: Memory | None, *, compiled: Callable[[Recipe, Plan], Memory | None]
) -> Proposal | None:
    """Return the first candidate that fits when compiled; None if there is none.

    `compiled` returns the memory of a recipe's step, or None if it cannot be sharded or compiled.
    """
    for _, changes in zip(range(COMPILED_AT_MOST), likely(recipe, plan, memory), strict=False):
        other = with_changes(recipe, changes)
        needed = compiled(other, replan(other, plan))
        if needed is not None and plan.devices.have_room_for(needed.peak):
            return Proposal(changes, needed)
    return None


def smaller_plan(recipe: Recipe, plan: Plan) -> Plan:
    """Return the plan with the largest micro-batch of at most half the size.

    Raises:
        TrainkitError: the micro-batch is one sequence.
    """
    fewer = [n for n in divisors(shared_size(recipe) // plan.batch.replicas) if 2 * n <= plan.batch.micro]
    if not fewer:
        raise no_memory("a step of one sequence at a time", plan, recipe)
    return replan(recipe, plan, Choice(micro=fewer[-1], remat=plan.remat))


def no_memory(what: str, plan: Plan, recipe: Recipe) -> TrainkitError:
    """Return the error that `what` does not fit in the memory of the plan's devices, with a change that would."""
    return TrainkitError(
        f"{what} does not fit in the memory of the {plural(plan.devices.count, 'device')} ({plan.devices.kind})",
        hint=hint(recipe, plan),
        exit_code=FAILED,
    )


def hint(recipe: Recipe, plan: Plan) -> str:
    """Return in words what would fit by the estimate."""
    more = "for details: trainkit plan RECIPE"
    if plan.devices.memory_bytes is None:
        return f'a smaller train.micro_batch_size, train.remat = "blocks" or a smaller model; {more}'
    changes = next(likely(recipe, plan, None), None)
    if changes is None:
        return f"a smaller model, batch or sequence, or more devices and parallel.fsdp; {more}"
    return " and ".join(f"{key} = {toml_value(value)}" for key, value in changes.items()) + f"; {more}"


def diff(loaded: Loaded, changes: Changes) -> list[str]:
    """Return the changes as lines of TOML to remove (-) and to add (+), below their section."""
    values, lines, section = flat(loaded.recipe), [], ""
    for dotted, new in changes.items():
        table, _, key = dotted.rpartition(".")
        if table != section:
            section = table
            lines.append(f" [{section}]")
        if not loaded.origins[dotted].startswith(("default", "--set")):
            lines.append(f"-{key} = {toml_value(values[tuple(dotted.split('.'))])}")
        lines.append(f"+{key} = {toml_value(new)}")
    return lines
