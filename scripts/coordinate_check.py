"""Print how far outputs move in the first steps of training at several widths: the coordinate check of [mup].

    uv run python scripts/coordinate_check.py recipes/quickstart.toml --widths 128 256 512 --steps 4

Under [mup] the columns stay within a factor of about 2 from width to width; under the standard form they grow
(Yang et al. 2022, appendix D.1). Batches are random tokens. The width inside the MLP must follow from `model.hidden`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from trainkit.hub.recipe import load
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.train.build import build, new_state

VOCABULARY = 256


def movements(recipe: Recipe, *, steps: int) -> tuple[float, float]:
    """Return the mean change, over `steps`, of a number of the last hidden state and of a logit of one batch."""
    plan = make_plan(recipe, devices=Devices(count=1), vocab_size=VOCABULARY, data=None)
    built = build(recipe, plan)
    state = new_state(built, jax.random.key(recipe.run.seed), None)
    chance = np.random.default_rng(0)
    ids = chance.integers(0, VOCABULARY, (1, recipe.train.batch_size, recipe.data.positions + 1))
    batch = {"tokens": ids[..., :-1], "targets": ids[..., 1:], "weights": np.ones(ids[..., 1:].shape, np.float32)}
    step = jax.jit(built.step)

    @jax.jit
    def outputs(params: object) -> tuple[jax.Array, jax.Array]:
        model = eqx.combine(params, state.frozen)
        hidden = model.hidden_states(batch["tokens"][0])[0]
        return hidden, model.logits(hidden)

    before, now = outputs(state.params), state
    for _ in range(steps):
        now, _ = step(now, batch)
    hidden, logits = (float(jnp.abs(b - a).mean()) for a, b in zip(before, outputs(now.params), strict=True))
    return hidden, logits


def print_table(recipe: Path, widths: Sequence[int], *, steps: int, overrides: Sequence[str]) -> None:
    """Print the movements at each width, each of heads as wide as the recipe's."""
    model = load(recipe, overrides).recipe.language_model
    print(f"{'hidden':>8} {'hidden state':>14} {'logits':>14}")
    for width in widths:
        sizes = [f"model.hidden={width}", f"model.heads={width // model.key_width}"]
        hidden, logits = movements(load(recipe, [*overrides, *sizes]).recipe, steps=steps)
        print(f"{width:8} {hidden:14.4g} {logits:14.4g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    given = parser.parse_args()
    print_table(given.recipe, given.widths, steps=given.steps, overrides=given.overrides)
