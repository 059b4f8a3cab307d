"""What `[statistics]` costs: a step with them against one without, in turns in one process, for each group and for all.

uv run python scripts/bench/step_statistics.py                       # the model of recipes/quickstart.toml
uv run python scripts/bench/step_statistics.py RECIPE --set model.layers=2 --rounds 20 --only norms

A ratio is that of CPU time (of the wall clock on a GPU), the median over rounds. `gradients` is what the plan expects:
1, the further gradients of the batch, and the forward pass of a micro-batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from trainkit.plan.statistics import statistic_costs
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import StatisticName
from trainkit.recipe.toml.load import load
from trainkit.train.build import build, new_state
from trainkit.train.planning import UNKNOWN_SIZE, plan_of

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
VOCAB = 4096


class Variant(NamedTuple):
    """A compiled step, its state, and the gradients of the batch that it needs."""

    step: Callable[..., Any]
    state: list[Any]
    gradients: float


def variant(recipe: Recipe, names: tuple[StatisticName, ...], batch: dict[str, np.ndarray] | None) -> tuple[Any, Any]:
    """Return a step with these statistics, and the batch that all of them take."""
    spec = type(recipe.statistics)(every=1, compute=names) if names else type(recipe.statistics)()
    recipe = recipe.model_copy(update={"statistics": spec})
    plan = plan_of(recipe, vocab_size=VOCAB, data=UNKNOWN_SIZE)
    built = build(recipe, plan)
    if batch is None:
        shape = (plan.batch.accumulation, -1, recipe.data.positions)
        tokens = np.random.default_rng(0).integers(0, VOCAB, (recipe.train.batch_size, recipe.data.positions), np.int32)
        batch = {name: tokens.reshape(shape) for name in ("tokens", "targets")}
        batch["weights"] = np.ones(batch["tokens"].shape, np.float32)
    state = new_state(built, jax.random.key(0), None)
    step = jax.jit(built.measuring_step or built.step, donate_argnums=0).lower(state, batch).compile()
    gradients = 1 + sum(cost.passes for cost in statistic_costs(recipe, plan))
    return Variant(step, [state], gradients), batch


def seconds(of: Variant, batch: dict[str, np.ndarray]) -> float:
    """Return how long one step takes."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    begin = clock()
    state, metrics = of.step(of.state.pop(), batch)
    jax.block_until_ready((state, metrics))
    of.state.append(state)
    return clock() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=10)
    names: tuple[StatisticName, ...] = tuple(name for name in get_args(StatisticName) if name != "histograms")
    groups = {name: (name,) for name in names}
    groups |= {"all-but-hessian": tuple(name for name in names if name != "hessian"), "all": names}
    parser.add_argument("--only", nargs="*", choices=list(groups), default=list(groups), help="by default all of these")
    given = parser.parse_args()
    # two micro-batches, which the noise scale needs
    size = load(given.recipe, given.set).recipe.train.batch_size
    recipe = load(given.recipe, [*given.set, f"train.micro_batch_size={size // 2}"]).recipe
    without, batch = variant(recipe, (), None)
    print(f"{jax.devices()[0].device_kind}, {recipe.train.batch_size} x {recipe.data.positions} tokens")
    print(f"{'':<16} {'ratio':>7} {'least':>7} {'most':>7} {'gradients':>10} {'every 10':>9}")
    for name in given.only:
        with_them, _ = variant(recipe, groups[name], batch)
        for each in (without, with_them):
            seconds(each, batch)
        pairs = []
        for number in range(given.rounds):
            order = (without, with_them) if number % 2 else (with_them, without)
            took = {id(each): seconds(each, batch) for each in order}
            pairs.append(took[id(with_them)] / took[id(without)])
        found = median(pairs)
        row = f"{found:>7.3f} {min(pairs):>7.3f} {max(pairs):>7.3f} {with_them.gradients:>10.2f}"
        print(f"{name:<16} {row} {(found - 1) / 10:>9.2%}", flush=True)


if __name__ == "__main__":
    main()
