"""What an optimizer computes of matrices is divided over the devices, and comes out the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit import optim
from trainkit.parallel import mesh
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.matrix import Muon, Shampoo, Soap
from trainkit.recipe.optimizers.preconditioned import Psgd
from trainkit.recipe.optimizers.spec import OptimizerSpec

#: Twelve layers are no multiple of eight devices, but those of both shapes together are.
SHAPES = {"blocks.mlp_in.weight": (12, 32, 64), "blocks.mlp_out.weight": (12, 64, 32)}
RATES = {"learning_rate": 0.02, "adamw": AdamW(learning_rate=0.01)}
RULES = {
    "muon": Muon(type="muon", **RATES),
    # one gradient has no part in some directions of the longer sides, so that no basis of those is the only one
    "soap": Soap(type="soap", every=1, longest_side=32, **RATES),
    "shampoo": Shampoo(type="shampoo", every=1, eps=1e-3, **RATES),
    "psgd": Psgd(type="psgd", **RATES),
}


def arrays(seed: int) -> dict[str, jax.Array]:
    chance = np.random.default_rng(seed)
    return {name: jnp.asarray(chance.normal(size=shape), jnp.float32) for name, shape in SHAPES.items()}


def update_of(spec: OptimizerSpec):
    rule = optim.build(spec, {name: name for name in SHAPES}, arrays(0))
    key = jax.random.key(0)
    extras = {"key": key, "value": 0.0, "learning_rate": spec.learning_rate, "grad_fn": None}
    return rule.init(arrays(0)), lambda grads, state, params: rule.update(grads, state, params, **extras)


@pytest.mark.parametrize(("data", "fsdp", "zero1"), [(8, 1, False), (2, 4, True)])
@pytest.mark.parametrize("rule", RULES)
def test_eight_devices_compute_an_eighth_each_of_what_one_computes(
    rule: str, data: int, fsdp: int, zero1: bool
) -> None:
    state, update = update_of(RULES[rule])
    params, first = arrays(0), arrays(1)
    alone = jax.jit(update).lower(first, state, params).compile()
    device_mesh = mesh.make_mesh(data=data, fsdp=fsdp)
    placed = [mesh.shardings(device_mesh, tree) for tree in (first, state, params)]
    if zero1:
        placed[:2] = [mesh.shardings(device_mesh, tree, over_data=True) for tree in (first, state)]
    with jax.set_mesh(device_mesh):
        jitted = jax.jit(update, in_shardings=tuple(placed), out_shardings=(placed[2], placed[1]))
        shared = jitted.lower(first, state, params).compile()
    # what is not a product of matrices is repeated, and is much of it where they are this small
    assert flops_of(shared) < 0.18 * flops_of(alone)
    apart = jax.device_put(state, placed[1])
    for grads in (first, arrays(2), arrays(3)):
        wanted, state = alone(grads, state, params)
        found, apart = shared(*jax.device_put((grads, apart, params), tuple(placed)))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)


def test_soap_without_a_short_side_has_nothing_to_divide() -> None:
    state, update = update_of(Soap(type="soap", longest_side=8, **RATES))
    with jax.set_mesh(mesh.make_mesh(data=8, fsdp=1)):
        directions, _ = jax.eval_shape(update, arrays(1), state, arrays(0))
    assert {name: value.shape for name, value in directions.items()} == SHAPES


def flops_of(compiled) -> float:
    return compiled.cost_analysis()["flops"]
