"""Every rule and wrapper takes the same steps on eight devices, with fsdp and ZeRO-1, as on one."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit import models, optim
from trainkit.parallel import mesh
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.matrix import MatrixOptimizer
from trainkit.recipe.optimizers.parameter_free import DAdaptAdam, EstimatingAdam, Prodigy
from trainkit.recipe.optimizers.spec import Group, Optimizer, OptimizerSpec
from trainkit.recipe.optimizers.wrappers import WRAPPERS, ClipAdaptive, ClipLeaf, ClipUpdate, ClipValue, Mars
from trainkit.recipe.sections.schedule import Constant
from trainkit.recipe.spec import type_of
from trainkit.recipe.union import members_of
from trainkit.tasks.task import Loss
from trainkit.train.state import State, init
from trainkit.train.step import make_step

RATE, STEPS = 0.01, 3
#: Those that can stand beside one another; `test_division.py` has those of matrices.
RULES = {
    type_of(kind): kind for kind in members_of(Optimizer) if not issubclass(kind, (MatrixOptimizer, EstimatingAdam))
}
LIMITS: dict[Any, dict[str, Any]] = {
    ClipValue: {"limit": 0.5}, ClipLeaf: {"limit": 5.0}, ClipAdaptive: {"limit": 0.5}, ClipUpdate: {"limit": 0.5},
    Mars: {"exact": True},
}  # fmt: skip


class Matrices(eqx.Module):
    """Parameters that each rule has for itself: a matrix, and one of each of two layers."""

    single: dict[str, jax.Array]
    blocks: dict[str, jax.Array]


class Distance:
    """A task whose loss is the squared distance of parameters from places that depend on the row."""

    metrics: ClassVar[dict[str, Any]] = {}
    baselines: ClassVar[dict[str, Any]] = {}

    def loss(self, model: Matrices, batch: Any, *, key: jax.Array) -> Loss:
        rows = batch["rows"]
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_array))
        curvatures = [
            0.5 + 0.3 * jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape) for leaf in leaves
        ]
        # the mean over rows of (p - r)^2 needs the sums of r and of r^2 alone
        total = sum(
            (c * (rows.size * p**2 - 2 * p * rows.sum() + (rows**2).sum())).sum()
            for c, p in zip(curvatures, leaves, strict=True)
        )
        return Loss(total, jnp.float32(rows.size))


def model(key: jax.Array, labels: tuple[str, ...]) -> Matrices:
    def drawn(number: int, *shape: int) -> dict[str, jax.Array]:
        keys = jax.random.split(jax.random.fold_in(key, number), len(labels))
        return {label: jax.random.normal(each, shape) for label, each in zip(labels, keys, strict=True)}

    return Matrices(drawn(0, 16, 64), drawn(1, 2, 16, 64))


def every_rule() -> OptimizerSpec:
    groups = tuple(
        Group(match=f"*.{label}", optimizer=kind(type=label, learning_rate=RATE)) for label, kind in RULES.items()
    )
    return AdamW(learning_rate=RATE, groups=groups)


CASES: dict[str, OptimizerSpec] = {
    "rules": every_rule(),
    "prodigy": Prodigy(type="prodigy", learning_rate=1.0),
    "dadapt": DAdaptAdam(type="dadapt", learning_rate=1.0),
    "wrappers": AdamW(
        learning_rate=RATE, wrappers=tuple(kind(type=type_of(kind), **LIMITS.get(kind, {})) for kind in WRAPPERS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_eight_devices_take_the_steps_of_one(case: str) -> None:
    assert len(RULES) > 20
    spec, labels = CASES[case], tuple(RULES) if case == "rules" else ("first", "second")
    drawn = partial(model, labels=labels)
    shapes = jax.eval_shape(drawn, jax.random.key(0))
    rule = optim.build(spec, models.leaf_names(shapes), shapes)
    first = jax.jit(partial(init, model=drawn, optimizer=rule, compute=jnp.dtype(jnp.float32)))
    device_mesh = mesh.make_mesh(data=2, fsdp=4)
    shardings = mesh.state_shardings(device_mesh, jax.eval_shape(first, jax.random.key(0)), zero1=True)
    step = partial(
        make_step, task=Distance(), optimizer=rule, compute=jnp.dtype(jnp.float32), max_grad_norm=0.0,
        learning_rate=optim.learning_rate(Constant(type="constant", warmup=0), peak=spec.learning_rate, steps=STEPS),
    )  # fmt: skip
    one: State = first(jax.random.key(0))
    many: State = jax.device_put(one, shardings)
    alone = jax.jit(step())
    gradients = mesh.shardings(device_mesh, shapes, over_data=True)
    shared = jax.jit(
        step(gradient_shardings=gradients), out_shardings=(shardings, mesh.replicated_sharding(device_mesh))
    )
    for number in range(STEPS):
        batch = {"rows": np.random.default_rng(number).normal(size=(1, 16)).astype(np.float32)}
        one, _ = alone(one, batch)
        with jax.set_mesh(device_mesh):
            many, _ = shared(many, jax.device_put(batch, mesh.batch_sharding(device_mesh)))
    largest = many.params.single[labels[0]]
    assert largest.addressable_shards[0].data.size == largest.size // 4
    for (path, wanted), found in zip(
        jax.tree_util.tree_leaves_with_path(one.params), jax.tree.leaves(many.params), strict=True
    ):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=name)
