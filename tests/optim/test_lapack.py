"""What optimizers ask of LAPACK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from trainkit import models, optim
from trainkit.optim.lapack import one_by_one
from trainkit.recipe.optimizers.spec import Optimizer, OptimizerSpec
from trainkit.recipe.spec import type_of
from trainkit.recipe.union import members_of

#: The primitives that XLA computes on a CPU by LAPACK, and divides among threads.
CALLS = {"cholesky", "eigh", "eig", "geqrf", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve"}
RULES: dict[str, type[OptimizerSpec]] = {type_of(kind): kind for kind in members_of(Optimizer)}


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr)):
            if isinstance(value, ClosedJaxpr | Jaxpr):
                yield from equations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)


def lapack_calls(function: Any, *arguments: Any) -> list[tuple[str, int]]:
    """The name of each call, and how many axes its greatest argument has."""
    return [
        (equation.primitive.name, max(len(argument.aval.shape) for argument in equation.invars))
        for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr)
        if equation.primitive.name in CALLS
    ]


@pytest.mark.parametrize("name", RULES)
def test_no_optimizer_gives_lapack_several_matrices_at_once(name: str) -> None:
    params = {"blocks": {"weight": jnp.ones((2, 6, 4)), "experts": jnp.ones((2, 3, 6, 4))}, "head": jnp.ones((6, 4))}
    rest = {"adamw": {"learning_rate": 0.01}} if "adamw" in RULES[name].model_fields else {}
    rule = optim.build(RULES[name](type=name, learning_rate=0.01, **rest), models.leaf_names(params), params)
    state = rule.init(params)
    extras = {"key": jax.random.key(0), "value": 1.0, "learning_rate": 0.01, "grad_fn": lambda p: (1.0, p)}
    found = lapack_calls(lambda: rule.update(params, state, params, **extras))
    assert all(axes == 2 for _, axes in found), found
    assert bool(found) == (name in {"soap", "psgd"})


def test_matrices_one_by_one_are_factorized_as_all_at_once() -> None:
    stack = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
    assert lapack_calls(jnp.linalg.qr, stack)[0][1] == 4
    for found, wanted in zip(one_by_one(jnp.linalg.qr, stack), jnp.linalg.qr(stack), strict=True):
        assert found.shape == wanted.shape
        assert jnp.array_equal(found, wanted)
