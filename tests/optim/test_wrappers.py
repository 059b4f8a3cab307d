"""What wraps an optimizer: each ends where its formula ends, in float64."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trajectories
from trajectories import SHAPES, trajectory

from trainkit import optim
from trainkit.hub.recipe import notes
from trainkit.models.master_weights import exact
from trainkit.optim.norms import layer_norm
from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.adam import AdamW, Sophia
from trainkit.recipe.optimizers.first_order import Sgd
from trainkit.recipe.optimizers.wrappers import (
    ClipAdaptive,
    ClipLeaf,
    ClipUpdate,
    ClipValue,
    Lookahead,
    Mars,
    Offset,
    Sam,
    SkipOutliers,
    Transport,
    WrapperSpec,
)
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.spec import type_of
from trainkit.tasks.task import Loss
from trainkit.train.state import init
from trainkit.train.step import make_step

RATE, STEPS = 0.05, 60


def norm(x: np.ndarray, name: str) -> np.ndarray:
    """Return the norm of a parameter, or of each layer's in a stack."""
    return np.sqrt((x**2).sum(tuple(range(name.startswith("blocks."), x.ndim)), keepdims=True))


def descend(change, after=None) -> dict[str, np.ndarray]:
    """Return the end of gradient descent with `change(t, gradients, params)` for gradients.

    `after(t, before, params)` may then replace the parameters.
    """
    params = trajectories.start()
    for t in range(STEPS):
        grads = change(t, trajectories.gradient(params, t, STEPS), params)
        before, params = params, {name: p - RATE * grads[name] for name, p in params.items()}
        params = after(t, before, params) if after else params
    return params


def end(*wrappers: WrapperSpec) -> dict[str, np.ndarray]:
    return trajectory(Sgd(type="sgd", learning_rate=RATE, wrappers=wrappers), steps=STEPS)[0]


def test_every_number_of_the_gradient_is_clipped() -> None:
    wanted = descend(lambda t, grads, _: {name: np.clip(g, -0.3, 0.3) for name, g in grads.items()})
    # equal steps are rounded alike in float32, so that the roundings add up
    trajectories.assert_equal(end(ClipValue(type="clip-value", limit=0.3)), wanted, within=4e-6)


def test_the_gradient_of_each_parameter_of_each_layer_is_clipped() -> None:
    wanted = descend(lambda t, grads, _: {n: g * np.minimum(1, 2.0 / norm(g, n)) for n, g in grads.items()})
    trajectories.assert_equal(end(ClipLeaf(type="clip-leaf", limit=2.0)), wanted)


def test_each_output_s_gradient_is_clipped_to_a_share_of_its_weights() -> None:
    def change(t, grads, params):
        clipped = {}
        for name, g in grads.items():
            axis = -2 if g.ndim - name.startswith("blocks.") >= 2 else -1
            of_weights = np.maximum(np.linalg.norm(params[name], axis=axis, keepdims=True), 1e-3)
            of_grad = np.linalg.norm(g, axis=axis, keepdims=True)
            clipped[name] = g * np.minimum(1, 0.2 * of_weights / of_grad)
        return clipped

    trajectories.assert_equal(end(ClipAdaptive(type="clip-adaptive", limit=0.2)), descend(change))


def test_the_norm_of_the_whole_update_is_clipped() -> None:
    def change(t, grads, _):
        whole = RATE * np.sqrt(sum((g**2).sum() for g in grads.values()))
        return {name: g * min(1, 0.2 / whole) for name, g in grads.items()}

    trajectories.assert_equal(end(ClipUpdate(type="clip-update", limit=0.2)), descend(change))


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_gradient_is_taken_where_the_loss_is_greatest_nearby(adaptive: bool) -> None:
    def change(t, grads, params):
        scaled = {name: g * np.abs(params[name]) if adaptive else g for name, g in grads.items()}
        distance = 0.5 / np.sqrt(sum((s**2).sum() for s in scaled.values()))
        there = {name: p + distance * scaled[name] * (np.abs(p) if adaptive else 1) for name, p in params.items()}
        return trajectories.gradient(there, t, STEPS)

    trajectories.assert_equal(end(Sam(type="sam", rho=0.5, adaptive=adaptive)), descend(change))


def test_sam_moves_bfloat16_parameters_by_less_than_their_rounding() -> None:
    ones = {"output": jnp.ones((4, 4), jnp.bfloat16)}
    grads = jax.tree.map(lambda p: p.astype(jnp.float32), ones)
    places = []

    def grad_fn(at):
        places.append(at)
        return 0.0, grads

    spec = Sgd(type="sgd", learning_rate=RATE, wrappers=(Sam(type="sam", rho=1e-3),))
    rule = optim.build(spec, {"output": "output"}, ones)
    rule.update(grads, rule.init(ones), ones, key=jax.random.key(0), grad_fn=grad_fn)
    np.testing.assert_allclose(np.linalg.norm(places[0]["output"] - 1), 1e-3, rtol=1e-3)


class Bowl:
    """A task whose loss is half the squared norm of the parameters, as they are rounded for computing."""

    metrics: ClassVar[dict[str, Any]] = {}
    baselines: ClassVar[dict[str, Any]] = {}

    def loss(self, model: Any, batch: Any, *, key: jax.Array) -> Loss:
        return Loss(0.5 * jnp.square(exact(model["weight"])).sum(), jnp.float32(1))


def test_gradients_nearby_are_of_parameters_that_16_bits_do_not_round() -> None:
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)
    rule = optim.build(
        Sgd(type="sgd", learning_rate=1.0, wrappers=(Sam(type="sam", rho=1e-3),)),
        {"weight": "weight"},
        {"weight": weight},
    )
    bfloat16, float32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
    statistics = Statistics(every=1, compute=("hessian", "last-parameters"))
    state = init(
        jax.random.key(0),
        model=lambda key: {"weight": weight},
        optimizer=rule,
        compute=bfloat16,
        statistics=statistics,
    )
    step = make_step(
        task=Bowl(),
        optimizer=rule,
        learning_rate=lambda *_: 1.0,
        compute=bfloat16,
        max_grad_norm=0.0,
        statistics=statistics,
        nearby=float32,
    )
    after, metrics = step(state, {"tokens": jnp.zeros((1, 1))})
    rounded = np.asarray(weight.astype(bfloat16), np.float64)
    np.testing.assert_allclose(after.params["weight"], -1e-3 * rounded / np.linalg.norm(rounded), rtol=2e-3)
    np.testing.assert_allclose([metrics["hessian/top_eigenvalue"], metrics["hessian/trace"]], [1, 64], rtol=1e-3)
    assert metrics["train/loss_change"] == 0, "both losses are in the precision of the step"


def test_rules_that_compare_gradients_are_refused_in_8_bit() -> None:
    plain, sam = (Sgd(type="sgd", learning_rate=RATE, wrappers=w) for w in ((), (Sam(type="sam"),)))
    assert plain.needs_exact_gradients is None and sam.needs_exact_gradients == "sam"
    assert Sophia(type="sophia", learning_rate=RATE).needs_exact_gradients == "sophia"
    mars = [AdamW(learning_rate=RATE, wrappers=(Mars(type="mars", exact=each),)) for each in (False, True)]
    assert [spec.needs_exact_gradients for spec in mars] == [None, "mars"]
    with pytest.raises(ValueError, match=r'precision\.compute = "fp8" is too coarse for "sam"'):
        recipe(optimizer={"wrappers": ({"type": "sam"},)}, precision={"compute": "fp8"})
    with pytest.raises(ValueError, match='is too coarse for "hessian"'):
        recipe(optimizer={}, statistics={"every": 1, "compute": ("hessian",)}, precision={"compute": "fp8"})


def recipe(*, optimizer: dict[str, Any], **tables: Any) -> Recipe:
    """Return a recipe for a small model."""
    table = {
        "schema": 1, "model": {"layers": 1, "hidden": 32, "heads": 2}, "tokenizer": {"path": "gpt2"},
        "data": {"sequence_length": 8, "train": ({"path": "text.jsonl"},)}, "train": {"steps": 100, "batch_size": 1},
    }  # fmt: skip
    return Recipe.model_validate({**table, "optimizer": {"learning_rate": 0.1, **optimizer}, **tables})


def test_lookahead_returns_half_the_way_every_five_steps() -> None:
    slow = trajectories.start()

    def after(t, before, params):
        if (t + 1) % 5:
            return params
        for name, p in params.items():
            slow[name] = slow[name] + 0.5 * (p - slow[name])
        return dict(slow)

    wanted = descend(lambda t, grads, _: grads, after)
    trajectories.assert_equal(end(Lookahead(type="lookahead")), wanted)


def test_transport_moves_parameters_ahead_along_the_change_of_the_updates() -> None:
    last: dict[str, np.ndarray] = {}

    def change(t, grads, _):
        moved = {name: g + 0.5 * 0.8 / 0.2 * (g - last.get(name, g)) for name, g in grads.items()}
        last.update(grads)
        return moved

    trajectories.assert_equal(end(Transport(type="transport", beta=0.8, scale=0.5)), descend(change))


@pytest.mark.parametrize("exact", [False, True])
def test_mars_corrects_the_gradient_by_its_change(exact: bool) -> None:
    last: dict[str, dict[str, np.ndarray]] = {}
    strength = 0.1 * 0.9 / (1 - 0.9)

    def change(t, grads, params):
        before = last.get("grads", grads)
        if exact and t:
            before = trajectories.gradient(last["params"], t, STEPS)
        last.update(grads=grads, params=params)
        corrected = {name: g + strength * (g - before[name]) for name, g in grads.items()}
        return {name: c / np.maximum(norm(c, name), 1) for name, c in corrected.items()}

    wanted = descend(change)
    trajectories.assert_equal(end(Mars(type="mars", gamma=0.1, beta=0.9, exact=exact)), wanted)


@pytest.mark.parametrize("size", [50.0, np.nan])
def test_a_step_with_an_outlier_changes_nothing_but_its_count(size: float) -> None:
    spec = Sgd(type="sgd", learning_rate=RATE, momentum=0.9, wrappers=(SkipOutliers(type="skip-outliers", window=4),))
    params = {name: jnp.asarray(value, jnp.float32) for name, value in trajectories.start().items()}
    rule = optim.build(spec, trajectories.NAMES, params)
    state, grads = rule.init(params), jax.tree.map(jnp.ones_like, params)
    for _ in range(4):
        directions, state = rule.update(grads, state, params, key=jax.random.key(0))
    assert optim.metrics(state)["skipped"] == 0
    directions, after = rule.update(jax.tree.map(lambda g: size * g, grads), state, params, key=jax.random.key(0))
    assert all(not leaf.any() for leaf in jax.tree.leaves(directions)) and optim.metrics(after)["skipped"] == 1
    assert all(map(np.array_equal, jax.tree.leaves(state.inner), jax.tree.leaves(after.inner)))
    directions, after = rule.update(grads, after, params, key=jax.random.key(0))
    assert all(leaf.all() for leaf in jax.tree.leaves(directions)) and optim.metrics(after)["skipped"] == 1


def test_a_recipe_is_told_what_works_against_its_optimizer() -> None:
    def told(optimizer: dict[str, Any], schedule: dict[str, Any], max_grad_norm: float = 0.0) -> list[str]:
        train = {"steps": 100, "batch_size": 1, "max_grad_norm": max_grad_norm}
        return notes(recipe(optimizer=optimizer, schedule=schedule, train=train))

    constant, free, skips = (
        {"type": "constant"},
        {"type": "schedule-free", "learning_rate": 0.1},
        ({"type": "skip-outliers"},),
    )
    assert not told(free, constant, 1.0) and not told({"wrappers": skips}, {})
    (note,) = told({"groups": ({"match": "*", "optimizer": free},)}, {})
    assert note.startswith('schedule.type = "cosine" changes the learning rate, and "schedule-free" averages')
    (note,) = told(free, {"type": "constant", "cooldown": 5})
    assert note.startswith("schedule.cooldown changes")
    (note,) = told({"wrappers": skips}, {}, 1.0)
    assert note.startswith('optimizer.wrappers.0: "skip-outliers" sees gradients that train.max_grad_norm = 1 has')
    assert "below 0.1: write train.max_grad_norm = 0" in note


def test_norms_of_bfloat16_parameters_are_taken_in_float32() -> None:
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)), jnp.bfloat16)
    found = layer_norm(weights, stacked=True)
    exact = np.sqrt((np.asarray(weights, np.float64) ** 2).sum((1, 2), keepdims=True))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_the_spec_of_a_wrapper_says_how_many_bytes_it_keeps() -> None:
    for kind in (Lookahead, Mars, Offset, Transport):
        wrapper = kind(type=type_of(kind))
        spec = Sgd(type="sgd", learning_rate=RATE, wrappers=(wrapper,))
        params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
        arrays = [leaf for leaf in jax.tree.leaves(optim.build(spec, trajectories.NAMES, params).init(params))]
        assert sum(leaf.nbytes for leaf in arrays if leaf.ndim) == spec.total_state_bytes(SHAPES)
