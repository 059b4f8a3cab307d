"""A fixed problem on which every optimizer is compared with its reference, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainkit import optim
from trainkit.recipe.optimizers.spec import OptimizerSpec

#: Parameters with the names that decide what is decayed, and what Muon and its like orthogonalise.
SHAPES = {
    "token_embedding": (12, 6),
    "blocks.mlp_in.weight": (2, 6, 8),
    "blocks.mlp_in.bias": (2, 8),
    "output": (12, 6),
}
Shapes = dict[str, tuple[int, ...]]
Params = dict[str, Any]
NAMES = {name: name for name in SHAPES}


def start(shapes: Shapes = SHAPES) -> dict[str, np.ndarray]:
    """Return the parameters before the first step, in float64."""
    chance = np.random.default_rng(0)
    return {name: chance.normal(size=shape) for name, shape in shapes.items()}


def problem(steps: int, shapes: Shapes = SHAPES) -> tuple[Params, Params, dict[str, np.ndarray]]:
    """Return curvatures, minima and the noise of every step's gradient."""
    chance = np.random.default_rng(1)
    curvature = {name: chance.uniform(0.1, 2.0, size=shape) for name, shape in shapes.items()}
    minimum = {name: chance.normal(size=shape) for name, shape in shapes.items()}
    noise = {name: 0.1 * chance.normal(size=(steps, *shape)) for name, shape in shapes.items()}
    return curvature, minimum, noise


def gradient(params: Params, step: int, steps: int = 100) -> Params:
    """Return the gradient at `params` in a step, from 0, of a run of `steps`; float64 of numpy arrays."""
    curvature, minimum, noise = problem(steps, {name: np.shape(value) for name, value in params.items()})
    return {name: curvature[name] * (params[name] - minimum[name]) + noise[name][step] for name in params}


def trajectory(
    spec: OptimizerSpec,
    *,
    steps: int = 100,
    rate: Callable[[Any], Any] = lambda step: 1.0,
    at: Params | None = None,
    shares: Mapping[str, Callable[[Any], Any]] = {},
) -> tuple[dict[str, np.ndarray], Any]:
    """Return parameters and state after `steps` of trainkit's optimizer.

    Args:
        rate: the schedule's share of `learning_rate` at a step, from 0.
        at: the first parameters.
        shares: of values of the optimizer at a step, by their names in [schedules].
    """
    at = at or start()
    curvature, minimum, noise = problem(steps, {name: np.shape(value) for name, value in at.items()})
    params = {name: jnp.asarray(value, jnp.float32) for name, value in at.items()}
    rule = optim.build(spec, {name: name for name in params}, params, scheduled=shares.keys())

    def grads_at(params: Params, step: Any) -> Params:
        return {
            name: jnp.float32(curvature[name]) * (p - jnp.float32(minimum[name])) + jnp.float32(noise[name])[step]
            for name, p in params.items()
        }

    def value_at(params: Params, step: Any) -> Any:
        parts = (
            0.5 * jnp.float32(curvature[n]) * jnp.square(p - jnp.float32(minimum[n])) + jnp.float32(noise[n])[step] * p
            for n, p in params.items()
        )
        return sum(part.sum() for part in parts)

    def one(carry: Any, step: Any) -> tuple[Any, None]:
        params, state = carry
        scale = spec.learning_rate * rate(step)
        directions, state = rule.update(
            grads_at(params, step), state, params, key=jax.random.fold_in(jax.random.key(7), step),
            value=value_at(params, step), learning_rate=jnp.float32(scale),
            grad_fn=lambda other: (value_at(other, step), grads_at(other, step)),
            **({"shares": {name: of_step(step) for name, of_step in shares.items()}} if shares else {}),
        )  # fmt: skip
        return (jax.tree.map(lambda p, d: p - scale * d, params, directions), state), None

    (params, state), _ = jax.jit(lambda carry: jax.lax.scan(one, carry, jnp.arange(steps)))((params, rule.init(params)))
    return {name: np.asarray(value, np.float64) for name, value in params.items()}, state


def assert_equal(found: Params, wanted: Params, *, within: float = 1e-6) -> None:
    """Check that parameters equal a reference's, relative to the greatest of each array."""
    for name, value in wanted.items():
        value = np.asarray(value, np.float64)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=within * np.abs(value).max(), err_msg=name)
