"""Every rule ends where its reference ends: after 100 steps on a fixed problem, to 1e-6 of the greatest parameter."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trajectories
from optax import contrib
from reference import Reference
from trajectories import SHAPES, trajectory

from trainkit import optim
from trainkit.optim.schedule_free import averages
from trainkit.recipe.optimizers.adam import (
    Adam,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    Adopt,
    Lamb,
    NAdam,
    NAdamW,
    PolarDescent,
    Sophia,
)
from trainkit.recipe.optimizers.first_order import Adafactor, Adagrad, Lars, Lion, NormalizedSgd, RmsProp, Sgd
from trainkit.recipe.optimizers.matrix import MatrixOptimizer
from trainkit.recipe.optimizers.parameter_free import DAdaptAdam, Prodigy, ScheduleFree
from trainkit.recipe.optimizers.spec import Group, Optimizer, OptimizerSpec
from trainkit.recipe.optimizers.wrappers import Lookahead
from trainkit.recipe.union import members_of

STEPS = 100
#: A weight decay for all parameters, as torch and optax have it.
ALL = {"groups": (Group(match="*", weight_decay=0.1),)}
RATE = {"learning_rate": 0.05}


def share(step: Any) -> Any:
    return 1 - step / (2 * STEPS)


#: A spec, and its name and options in torch.optim.
TORCH: dict[str, tuple[OptimizerSpec, str, dict[str, Any]]] = {
    "sgd": (Sgd(type="sgd", **RATE, **ALL), "SGD", {"weight_decay": 0.1}),
    "sgd-momentum": (Sgd(type="sgd", momentum=0.9, dampening=0.5, **RATE), "SGD", {"momentum": 0.9, "dampening": 0.5}),
    "sgd-nesterov": (
        Sgd(type="sgd", momentum=0.8, nesterov=True, **RATE, **ALL),
        "SGD",
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (Adam(type="adam", **RATE, **ALL), "Adam", {"weight_decay": 0.1}),
    "adam-amsgrad": (Adam(type="adam", amsgrad=True, **RATE), "Adam", {"amsgrad": True}),
    "adam-decoupled": (
        Adam(type="adam", decay_type="decoupled", betas=(0.8, 0.95), **RATE, **ALL),
        "AdamW",
        {"betas": (0.8, 0.95), "weight_decay": 0.1},
    ),
    "nadam": (NAdam(type="nadam", **RATE, **ALL), "NAdam", {"weight_decay": 0.1}),
    "adamax": (Adamax(type="adamax", **RATE), "Adamax", {}),
    "rmsprop": (RmsProp(type="rmsprop", **RATE, **ALL), "RMSprop", {"weight_decay": 0.1}),
    "rmsprop-centered": (
        RmsProp(type="rmsprop", decay=0.9, centered=True, momentum=0.5, learning_rate=0.01, eps=1e-3),
        "RMSprop",
        {"alpha": 0.9, "centered": True, "momentum": 0.5, "eps": 1e-3},
    ),
    "adagrad": (
        Adagrad(type="adagrad", initial=0.1, eps=1e-12, **RATE),
        "Adagrad",
        {"initial_accumulator_value": 0.1, "eps": 0},
    ),
}
#: A spec, and optax's own optimizer.
OPTAX: dict[str, tuple[OptimizerSpec, Any]] = {
    "nadamw": (NAdamW(type="nadamw", **RATE, **ALL), optax.nadamw(0.05, weight_decay=0.1)),
    "adan": (Adan(type="adan", **RATE), optax.adan(0.05, eps_root=0.0)),
    "ademamix": (AdEMAMix(type="ademamix", **RATE, **ALL), contrib.ademamix(0.05, weight_decay=0.1)),
    "adopt": (Adopt(type="adopt", **RATE), contrib.adopt(0.05)),
    "adopt-unclipped": (Adopt(type="adopt", clip=False, **RATE), contrib.adopt(0.05, use_clipping=False)),
    "lamb": (Lamb(type="lamb", **RATE, **ALL), optax.lamb(0.05, weight_decay=0.1)),
    "lars": (Lars(type="lars", learning_rate=2.0, trust=0.01), optax.lars(2.0, trust_coefficient=0.01)),
    "lars-nesterov": (
        Lars(type="lars", learning_rate=2.0, trust=0.01, momentum=0.5, nesterov=True, **ALL),
        optax.lars(2.0, weight_decay=0.1, trust_coefficient=0.01, momentum=0.5, nesterov=True),
    ),
    "adafactor": (
        Adafactor(type="adafactor", least_factored=4, **RATE),
        optax.adafactor(0.05, min_dim_size_to_factor=4),
    ),
    "adafactor-absolute": (
        Adafactor(type="adafactor", relative=False, **RATE),
        optax.adafactor(0.05, multiply_by_parameter_scale=False),
    ),
    "prodigy": (Prodigy(type="prodigy", weight_decay=0.0), contrib.prodigy(1.0)),
    "dadapt": (DAdaptAdam(type="dadapt", weight_decay=0.0), contrib.dadapt_adamw(1.0)),
    "lion": (Lion(type="lion", **RATE, **ALL), optax.lion(0.05, b2=0.99, weight_decay=0.1)),
}


def with_rate(spec: OptimizerSpec) -> dict[str, Any]:
    return {"lr": spec.learning_rate}


@pytest.fixture(scope="module")
def torch_ends(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    directory: Path = tmp_path_factory.mktemp("torch")
    curvature, minimum, noise = trajectories.problem(STEPS)
    parts = {"start": trajectories.start(), "curvature": curvature, "minimum": minimum, "noise": noise}
    arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
    np.savez(directory / "problem.npz", shares=[share(step) for step in range(STEPS)], **arrays)
    wanted = {label: (kind, with_rate(spec) | options) for label, (spec, kind, options) in TORCH.items()}
    return reference.descend(directory, wanted)


@pytest.mark.parametrize("label", TORCH)
def test_a_rule_ends_where_torch_s_ends(label: str, torch_ends: dict[str, np.ndarray]) -> None:
    found, _ = trajectory(TORCH[label][0], rate=share)
    trajectories.assert_equal(found, {name: torch_ends[f"{label}/{name}"] for name in SHAPES})


@cache
def layers() -> dict[str, np.ndarray]:
    """Return the first parameters with each layer of a stack by itself, as optax knows them."""
    return apart(trajectories.start())


def apart(params: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{name}/{number}": layer
        for name, value in params.items()
        for number, layer in enumerate(value if name.startswith("blocks.") else [value])
    }


def together(params: dict[str, Any]) -> dict[str, Any]:
    """Return layers as stacks again."""
    return {
        name: jnp.stack([params[f"{name}/{n}"] for n in range(shape[0])])
        if name.startswith("blocks.")
        else params[f"{name}/0"]
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("label", OPTAX)
def test_a_rule_ends_where_optax_s_ends_layer_by_layer(label: str) -> None:
    spec, rule = OPTAX[label]
    params = {name: jnp.asarray(value, jnp.float32) for name, value in layers().items()}
    curvature, minimum, noise = trajectories.problem(STEPS)

    def one(carry: Any, step: Any) -> tuple[Any, None]:
        params, state = carry
        whole = together(params)
        grads = {
            name: jnp.float32(curvature[name]) * (p - jnp.float32(minimum[name])) + jnp.float32(noise[name])[step]
            for name, p in whole.items()
        }
        updates, state = rule.update(apart(grads), state, params)
        return (optax.apply_updates(params, updates), state), None

    scan = jax.jit(lambda carry: jax.lax.scan(one, carry, jnp.arange(STEPS))[0])
    wanted, _ = scan((params, rule.init(params)))
    found, _ = trajectory(spec)
    # an estimate of the rate multiplies what float32 rounds
    trajectories.assert_equal(found, together(wanted), within=4e-6 if spec.owns_rate else 1e-6)


def test_adam_with_neither_momentum_nor_preconditioner_is_gradient_descent() -> None:
    bare = Adam(type="adam", momentum=False, preconditioner=False, **RATE)
    trajectories.assert_equal(trajectory(bare, steps=20)[0], trajectory(Sgd(type="sgd", **RATE), steps=20)[0])
    assert bare.total_state_bytes(SHAPES) == 0


def numpy_end(direction: Any, steps: int, rate: float) -> dict[str, np.ndarray]:
    """Return the parameters after steps of `direction(t, name, gradients, params)`, in float64."""
    params = trajectories.start()
    for t in range(steps):
        grads = trajectories.gradient(params, t, steps)
        params = {name: p - rate * direction(t, name, grads, params) for name, p in params.items()}
    return params


def test_adam_without_debiasing_keeps_its_averages_as_they_are() -> None:
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))

    def direction(t, name, grads, params):
        m[name], v[name] = 0.9 * m[name] + 0.1 * grads[name], 0.99 * v[name] + 0.01 * grads[name] ** 2
        return m[name] / (np.sqrt(v[name] / (1 - 0.99 ** (t + 1))) + 1e-8)

    spec = Adam(type="adam", betas=(0.9, 0.99), debias=(False, True), **RATE)
    trajectories.assert_equal(trajectory(spec, steps=50)[0], numpy_end(direction, 50, 0.05), within=2e-6)


@pytest.mark.parametrize("norm", ["global", "layer"])
def test_normalized_descent_takes_steps_of_one_length(norm: str) -> None:
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def direction(t, name, grads, params):
        if name == "token_embedding":  # the first of each step
            for each, g in grads.items():
                m[each] = 0.9 * m[each] + 0.1 * g
        if norm == "global":
            return m[name] / np.sqrt(sum((value**2).sum() for value in m.values()))
        axes = tuple(range(name.startswith("blocks."), m[name].ndim))
        return m[name] / np.sqrt((m[name] ** 2).sum(axes, keepdims=True))

    spec = NormalizedSgd(type="normalized-sgd", norm=norm, **RATE)
    trajectories.assert_equal(trajectory(spec)[0], numpy_end(direction, STEPS, 0.05))


def test_polar_descent_updates_the_norm_and_the_direction_by_themselves() -> None:
    params, norms = trajectories.start(), np.zeros(2)
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))

    def adam(m, v, t):
        return m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.99 ** (t + 1))) + 1e-8)

    for t in range(STEPS):
        rate, grads = 0.005 * share(t), trajectories.gradient(params, t)
        norm = np.sqrt(sum((p**2).sum() for p in params.values()))
        along = sum((g * params[name]).sum() for name, g in grads.items()) / norm
        norms = np.array([0.9, 0.99]) * norms + np.array([0.1, 0.01]) * (along, along**2)
        for name, g in grads.items():
            m[name], v[name] = 0.9 * m[name] + 0.1 * norm * g, 0.99 * v[name] + 0.01 * (norm * g) ** 2
        direction = {name: p / norm - rate * adam(m[name], v[name], t) for name, p in params.items()}
        length = np.sqrt(sum((u**2).sum() for u in direction.values()))
        norm -= 4.0 * rate * adam(*norms, t)
        params = {name: norm / length * u for name, u in direction.items()}
    spec = PolarDescent(type="polar-descent", learning_rate=0.005, betas=(0.9, 0.99), norm_rate=4.0)
    found, state = trajectory(spec, rate=share)
    # a norm that float32 rounds scales all parameters alike in each step
    trajectories.assert_equal(found, params, within=4e-6)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim) == spec.total_state_bytes(SHAPES)


@pytest.mark.parametrize("base", ["adamw", "sgd"])
def test_schedule_free_learning_ends_where_the_authors_update_ends(base: str) -> None:
    spec = ScheduleFree(type="schedule-free", base=base, betas=(0.8, 0.9), power=1.0, weight_decay=0.1, **RATE)
    beta, decayed = 0.8, ("blocks.mlp_in.weight", "output")
    y, z = trajectories.start(), trajectories.start()
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    weights = 0.0
    for t in range(STEPS):
        rate = 0.05 * min(1, (t + 1) / 10)
        weight = (t + 1) * rate**2
        weights += weight
        share = weight / weights
        for name, g in trajectories.gradient(y, t).items():
            v[name] = 0.9 * v[name] + 0.1 * g * g
            divisor = np.sqrt(v[name] / (1 - 0.9 ** (t + 1))) + 1e-8 if base == "adamw" else 1
            d = g / divisor + (0.1 * y[name] if name in decayed else 0)
            y[name] = (1 - share) * y[name] + share * z[name] + rate * (beta * (1 - share) - 1) * d
            z[name] = z[name] - rate * d
    found, state = trajectory(spec, rate=lambda step: jnp.minimum(1, (step + 1) / 10))
    trajectories.assert_equal(found, y, within=2e-6)
    at = {name: jnp.asarray(value, jnp.float32) for name, value in found.items()}
    ended = averages([spec] * len(at), state, at)
    trajectories.assert_equal(ended, {name: (y[name] - (1 - beta) * z[name]) / beta for name in y}, within=4e-6)


def test_prodigy_decays_by_its_estimate_what_is_decayed() -> None:
    spec = Prodigy(type="prodigy", weight_decay=0.5, first_estimate=0.01)
    apart = Prodigy(type="prodigy", weight_decay=0.0, first_estimate=0.01)
    (decayed, state), (plain, _) = trajectory(spec, steps=1), trajectory(apart, steps=1)
    moved = trajectories.start()["output"] - (decayed["output"] - plain["output"] + trajectories.start()["output"])
    wanted = 0.01 * np.sqrt(1 - 0.999) / (1 - 0.9) * 0.5 * trajectories.start()["output"]
    np.testing.assert_allclose(moved, wanted, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(decayed["token_embedding"], plain["token_embedding"])
    assert optim.metrics(state)["estimated_rate"] >= 0.01


@pytest.mark.parametrize("kind", [Prodigy, DAdaptAdam])
def test_an_estimate_survives_a_first_learning_rate_of_zero(kind: type[OptimizerSpec]) -> None:
    (name,) = kind.model_fields["type"].annotation.__args__
    found, state = trajectory(kind(type=name), steps=10, rate=lambda step: jnp.minimum(1, step / 4))
    assert all(np.isfinite(value).all() for value in found.values())
    assert 1e-6 <= optim.metrics(state)["estimated_rate"] < np.inf


def test_an_optimizer_that_estimates_one_rate_is_not_beside_another() -> None:
    group = Group(match="output", optimizer=Sgd(type="sgd", **RATE))
    with pytest.raises(ValueError, match=r'groups\.0\.optimizer: "prodigy" estimates one learning rate'):
        Prodigy(type="prodigy", groups=(group,))


def test_what_would_make_the_average_of_schedule_free_wrong_is_refused() -> None:
    wrappers = (Lookahead(type="lookahead"),)
    with pytest.raises(ValueError, match=r'wrappers\.0: "lookahead" changes the steps'):
        ScheduleFree(type="schedule-free", wrappers=wrappers, **RATE)
    inner = ScheduleFree(type="schedule-free", learning_rate=0.1)
    with pytest.raises(ValueError, match=r"groups\.0\.optimizer\.learning_rate = 0\.1"):
        Sgd(type="sgd", groups=(Group(match="output", optimizer=inner),), **RATE)


def test_a_group_scales_no_rate_that_another_group_has_given_to_schedule_free() -> None:
    half = Group(match="output", learning_rate_factor=0.5)
    free, sgd = ScheduleFree(type="schedule-free", **RATE), Sgd(type="sgd", **RATE)
    with pytest.raises(ValueError, match=r'groups\.1: learning_rate_factor = 0\.5 cannot scale "schedule-free"'):
        Sgd(type="sgd", groups=(Group(match="output", optimizer=free), half), **RATE).check_groups(SHAPES)
    groups = (Group(match="output", optimizer=sgd), half)
    ScheduleFree(type="schedule-free", groups=groups, **RATE).check_groups(SHAPES)


def test_sophia_divides_by_the_true_diagonal_of_a_quadratic() -> None:
    curvature, _, _ = trajectories.problem(STEPS)
    m, h = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))

    def direction(t, name, grads, params):
        m[name] = 0.965 * m[name] + 0.035 * grads[name]
        if t % 10 == 0:
            h[name] = 0.99 * h[name] + 0.01 * curvature[name]
        return np.clip(m[name] / np.maximum(5.0 * h[name], 1e-8), -1, 1)

    found, state = trajectory(Sophia(type="sophia", gamma=5.0, weight_decay=0.0, **RATE))
    # the estimate is a difference of gradients in float32
    trajectories.assert_equal(found, numpy_end(direction, STEPS, 0.05), within=2e-3)
    assert 0 <= optim.metrics(state)["clipped_share"] <= 1


def test_sophia_beside_another_rule_sees_its_own_part_of_the_curvature() -> None:
    sgd = Sgd(type="sgd", **RATE)
    sophia = Sophia(type="sophia", gamma=5.0, weight_decay=0.0, **RATE)
    grouped = sophia.model_copy(update={"groups": (Group(match="output", optimizer=sgd),)})
    (alone, _), (beside, _), (other, _) = (trajectory(spec, steps=20) for spec in (sophia, grouped, sgd))
    trajectories.assert_equal(beside, {**alone, "output": other["output"]}, within=2e-3)


def test_the_slow_average_of_ademamix_rises_from_the_fast_one() -> None:
    from trainkit.optim.adam import _slow_decay, _weight

    decay = _slow_decay(0.9, 0.9999, 1000)
    half_lives = [np.log(0.5) / np.log(float(decay(step))) for step in (0, 499, 999, 5000)]
    first, last = (np.log(0.5) / np.log(b) for b in (0.9, 0.9999))
    wanted = [first + share * (last - first) for share in (0.001, 0.5, 1, 1)]
    np.testing.assert_allclose(half_lives, wanted, rtol=2e-3)
    spec = AdEMAMix(type="ademamix", ramp=1000, **RATE)
    assert float(_weight(spec)(499)) == pytest.approx(2.5) and float(_weight(spec)(5000)) == 5.0
    assert np.isfinite(trajectory(spec, steps=20)[0]["output"]).all()
    with pytest.raises(ValueError, match="the first must be above 0"):
        AdEMAMix(type="ademamix", betas=(0.0, 0.999, 0.9999), ramp=1000, **RATE)


def test_a_deviation_is_not_computed_from_rounded_averages() -> None:
    with pytest.raises(ValueError, match=r'optimizer\.moments = "int8" does not go with optimizer\.centered'):
        RmsProp(type="rmsprop", centered=True, moments="int8", **RATE)
    assert not list(RmsProp(type="rmsprop", centered=True, **RATE).smaller())
    assert list(RmsProp(type="rmsprop", **RATE).smaller())


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_few_bits_change_a_trajectory_little_and_no_type_of_the_state(moments: str) -> None:
    name_of = "blocks.mlp_in.weight"  # a matrix of each of two layers
    shapes = {name_of: (2, 64, 96)}
    names = {name_of: name_of}
    params = {name_of: jnp.ones((2, 64, 96), jnp.bfloat16)}
    grads = {name_of: jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 96)), jnp.float32)}
    few = [
        kind
        for kind in members_of(Optimizer)
        if "moments" in kind.model_fields and kind.model_fields["type"].default != "adamw"
    ]
    assert len(few) > 10
    for kind in few:
        if kind.__name__ == "Muon":
            continue
        options: dict[str, Any] = {"momentum": 0.9} if kind in (Sgd, RmsProp) else {}
        if issubclass(kind, MatrixOptimizer):
            options["adamw"] = AdamW(learning_rate=0.1)
        (name,) = kind.model_fields["type"].annotation.__args__
        exact, spec = (kind(type=name, **RATE, moments=m, **options) for m in ("float32", moments))
        ends = []
        for each in (exact, spec):
            rule = optim.build(each, names, params)
            state = rule.init(params)
            extras = {"key": jax.random.key(0), "learning_rate": jnp.float32(0.05), "value": 0.0}
            for scale in (1.0, -0.5, 0.7):
                scaled = {name_of: scale * grads[name_of]}
                directions, after = rule.update(
                    scaled, state, params, grad_fn=lambda p, scaled=scaled: (0.0, scaled), **extras
                )
                assert jax.tree.map(jnp.dtype, state) == jax.tree.map(jnp.dtype, after), name
                state = after
            ends.append(np.asarray(directions[name_of], np.float64))
            kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.size > 1)
            assert kept == each.total_state_bytes(shapes), name
        apart = np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(ends[0])
        assert apart < (0.05 if moments == "bfloat16" else 0.3), (name, apart)
