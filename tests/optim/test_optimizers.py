"""Every optimizer: its reference, its state, its place in a recipe."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from trajectories import SHAPES

from trainkit import optim
from trainkit.checkpoint.leaves import named_leaves
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.matrix import Muon
from trainkit.recipe.optimizers.spec import Group, OptimizerSpec

MUON = Muon(type="muon", learning_rate=0.02, adamw=AdamW(learning_rate=1e-3))
RULES = {
    "adamw": AdamW(learning_rate=1e-2),
    "muon": MUON,
    "muon-rms": Muon(type="muon", learning_rate=1e-3, scale="rms", nesterov=False, adamw=AdamW(learning_rate=1e-3)),
    "grouped": AdamW(learning_rate=1e-2, groups=(Group(match="blocks.*", optimizer=MUON),)),
}
every_rule = pytest.mark.parametrize("rule", RULES)


def params(seed: int = 0) -> dict[str, jax.Array]:
    chance = np.random.default_rng(seed)
    return {name: jnp.asarray(chance.normal(size=shape), jnp.float32) for name, shape in SHAPES.items()}


def built(spec: OptimizerSpec):
    return optim.build(spec, {name: name for name in SHAPES}, params())


def update(spec: OptimizerSpec, grads: list[dict[str, jax.Array]]):
    rule, at = built(spec), params()
    state = rule.init(at)
    for grad in grads:
        directions, state = rule.update(grad, state, at, key=jax.random.key(0), value=0.0, grad_fn=None)
    return directions


@every_rule
def test_the_state_takes_as_many_bytes_as_the_spec_says(rule: str) -> None:
    state = built(RULES[rule]).init(params())
    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim and leaf.shape in SHAPES.values()]
    assert sum(leaf.nbytes for leaf in arrays) == RULES[rule].total_state_bytes(SHAPES)


def newton_schulz(momentum: np.ndarray, iterations: int = 5) -> np.ndarray:
    """Jordan et al. 2024 in float64."""
    x = momentum.T if momentum.shape[0] > momentum.shape[1] else momentum
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(iterations):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if momentum.shape[0] > momentum.shape[1] else x


def test_muon_orthogonalises_each_layer_s_momentum_as_published() -> None:
    grads = [params(seed) for seed in (1, 2, 3)]
    spec = RULES["muon"].model_copy(update={"weight_decay": 0.0})
    found = np.asarray(update(spec, grads)["blocks.mlp_in.weight"], np.float64)
    beta, momentum = 0.95, np.zeros((2, 6, 8))
    for step, grad in enumerate(grads, 1):
        g = np.asarray(grad["blocks.mlp_in.weight"], np.float64)
        momentum = beta * momentum + (1 - beta) * g
        ahead = beta * momentum / (1 - beta ** (step + 1)) + (1 - beta) * g / (1 - beta**step)
    wanted = np.stack([newton_schulz(layer) for layer in ahead]) * np.sqrt(8 / 6)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_muon_leaves_embeddings_biases_and_the_output_to_its_adamw() -> None:
    grads = [params(seed) for seed in (1, 2)]
    muon, adamw = update(RULES["muon"], grads), update(AdamW(learning_rate=1e-3), grads)
    for name in ("token_embedding", "output", "blocks.mlp_in.bias"):
        np.testing.assert_allclose(muon[name], adamw[name] * (1e-3 / 0.02), rtol=1e-5)
    assert (jnp.abs(muon["blocks.mlp_in.weight"] - adamw["blocks.mlp_in.weight"]) > 1e-3).any()


def test_the_singular_values_of_muon_s_updates_are_near_one() -> None:
    spec = RULES["muon"].model_copy(update={"weight_decay": 0.0})
    values = np.linalg.svd(np.asarray(update(spec, [params(1)])["blocks.mlp_in.weight"]) / np.sqrt(8 / 6))[1]
    assert values.min() > 0.6 and values.max() < 1.25


def test_one_rule_keeps_the_paths_of_its_state_where_they_always_were() -> None:
    from trainkit.checkpoint.leaves import named_leaves

    assert {name.rpartition(".")[0] for name in named_leaves(built(AdamW(learning_rate=1.0)).init(params()))} >= {
        "0.mu"
    }


def test_a_rule_is_given_the_loss_and_can_evaluate_the_gradient_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sharpness-aware and line-search methods need is there, and equals the gradient of the step itself."""
    import optax

    from trainkit.optim import adamw

    def build(spec: AdamW) -> optax.GradientTransformationExtraArgs:
        def look(grads, state, params=None, *, key, value, grad_fn, **_):
            again, same = grad_fn(params)
            apart = optax.tree.norm(jax.tree.map(jnp.subtract, same, grads)) / optax.tree.norm(grads)
            return jax.tree.map(jnp.zeros_like, grads), jnp.stack([apart, jnp.abs(again - value)])

        return optax.GradientTransformationExtraArgs(lambda params: jnp.ones(2), look)

    monkeypatch.setattr(adamw, "build", build)
    spec = AdamW(learning_rate=1.0, weight_decay=0.0, eps=1e-7)
    step = small.step(spec, max_grad_norm=0.0)
    state, _ = jax.jit(step)(small.state(spec=spec), small.batch(0))
    np.testing.assert_allclose(jax.tree.leaves(state.optimizer)[0], 0, atol=1e-6)


def test_groups_that_choose_different_optimizers_for_a_parameter_are_refused() -> None:
    other = AdamW(learning_rate=1.0)
    groups = (Group(match="blocks.*", optimizer=other), Group(match="*.bias", optimizer=other, weight_decay=0.1))
    AdamW(learning_rate=1.0, groups=groups).check_groups(SHAPES)
    apart = (*groups[:1], Group(match="*.bias", optimizer=AdamW(learning_rate=2.0)))
    with pytest.raises(ValueError, match=r"'blocks\.\*' and '\*\.bias' choose different optimizers for blocks"):
        AdamW(learning_rate=1.0, groups=apart).check_groups(SHAPES)


def test_a_group_that_matches_nothing_is_an_error_that_lists_the_parameters() -> None:
    spec = AdamW(learning_rate=1.0, groups=(Group(match="*.biass"),))
    with pytest.raises(ValueError, match=r"biass.*blocks\.mlp_in\.bias"):
        spec.check_groups(SHAPES)


def test_smaller_states_come_mildest_first_and_are_smaller() -> None:
    shape = (64, 128)
    for spec in (AdamW(learning_rate=1.0), AdamW(learning_rate=1.0, moments="bfloat16")):
        sizes = [spec.model_copy(update=change).state_bytes(shape) for change in spec.smaller()]
        assert sizes == sorted(sizes, reverse=True) and all(size < spec.state_bytes(shape) for size in sizes)


def test_the_state_of_muon_has_the_paths_that_older_checkpoints_have() -> None:
    matrices, rest = "0.inner_states.1-muon.inner_state.0", "0.inner_states.0-adamw.inner_state"
    others = [name for name in SHAPES if name != "blocks.mlp_in.weight"]
    wanted = {f"{matrices}.{field}" for field in ("count", "mu.blocks.mlp_in.weight", "ns_coeffs")}
    wanted |= {f"{rest}.count", *(f"{rest}.{field}.{name}" for field in ("mu", "nu") for name in others)}
    assert named_leaves(built(MUON).init(params())).keys() == wanted


def test_muon_keeps_the_types_of_its_state_where_parameters_are_bfloat16() -> None:
    at = {name: value.astype(jnp.bfloat16) for name, value in params().items()}
    rule = optim.build(MUON, {name: name for name in SHAPES}, at)
    before = rule.init(at)
    _, after = rule.update(params(1), before, at, key=jax.random.key(0), value=0.0, grad_fn=None)
    kinds = [jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, state) for state in (before, after)]
    assert jax.tree.leaves(kinds[0]) == jax.tree.leaves(kinds[1])


def test_every_bias_is_exempt_from_decay_whatever_it_belongs_to() -> None:
    from trainkit.recipe.families.bert import Bert

    shapes = Bert(layers=1, hidden=8, heads=2).leaf_shapes(vocab_size=11, sequence_length=4)
    decayed = {name for name, shape in shapes.items() if AdamW(learning_rate=1.0).decay_of(name, shape)}
    assert decayed == {name for name in shapes if name.endswith(".weight") and "norm" not in name}
