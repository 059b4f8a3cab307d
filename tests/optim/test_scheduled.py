"""[schedules] of the optimizer: weight decay, momentum and the decay of squares are scaled in the compiled step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small
import trajectories
from reference import Reference
from sample_recipe import changed, write

from trainkit import optim
from trainkit.errors import TrainkitError
from trainkit.recipe.optimizers.adam import Adam, AdamW, AdEMAMix
from trainkit.recipe.optimizers.first_order import RmsProp, Sgd
from trainkit.recipe.optimizers.matrix import MatrixOptimizer
from trainkit.recipe.optimizers.parameter_free import Prodigy
from trainkit.recipe.optimizers.spec import Group, Optimizer, OptimizerSpec
from trainkit.recipe.sections.schedule import Constant, LinearDecay
from trainkit.recipe.sections.schedule_shapes import PiecewiseLinear
from trainkit.recipe.spec import type_of
from trainkit.recipe.toml.load import check_lengths, load
from trainkit.recipe.union import members_of

STEPS = 100
#: Rules with a momentum, and torch's optimizer with its options.
TORCH: dict[str, tuple[OptimizerSpec, str, dict[str, Any]]] = {
    "sgd": (
        Sgd(type="sgd", momentum=0.9, nesterov=True, learning_rate=0.05), "SGD", {"momentum": 0.9, "nesterov": True},
    ),
    "adam": (Adam(type="adam", learning_rate=0.05), "Adam", {}),
    "adamw": (
        AdamW(learning_rate=0.05, betas=(0.9, 0.999), weight_decay=0.0), "AdamW", {"weight_decay": 0.0},
    ),
    "rmsprop": (
        RmsProp(type="rmsprop", momentum=0.5, decay=0.9, learning_rate=0.05), "RMSprop",
        {"momentum": 0.5, "alpha": 0.9},
    ),
}  # fmt: skip


def momentum(step: Any) -> Any:
    return 0.5 + step / (2 * STEPS)


def squares(step: Any) -> Any:
    return 1 - step / (4 * STEPS)


@pytest.fixture(scope="module")
def torch_ends(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    directory: Path = tmp_path_factory.mktemp("torch")
    curvature, minimum, noise = trajectories.problem(STEPS)
    parts = {"start": trajectories.start(), "curvature": curvature, "minimum": minimum, "noise": noise}
    arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
    scaled = {"momentum": [momentum(s) for s in range(STEPS)], "beta2": [squares(s) for s in range(STEPS)]}
    np.savez(directory / "problem.npz", shares=np.ones(STEPS), **scaled, **arrays)
    wanted = {label: (kind, {"lr": spec.learning_rate} | options) for label, (spec, kind, options) in TORCH.items()}
    return reference.descend(directory, wanted)


@pytest.mark.parametrize("label", TORCH)
def test_a_scheduled_momentum_is_that_of_torch_with_its_options_set_at_each_step(
    label: str, torch_ends: dict[str, np.ndarray]
) -> None:
    found, _ = trajectories.trajectory(TORCH[label][0], shares={"momentum": momentum, "beta2": squares})
    wanted = {name: torch_ends[f"{label}/{name}"] for name in trajectories.SHAPES}
    trajectories.assert_equal(found, wanted, within=2e-6)


def rule(kind: type[OptimizerSpec]) -> OptimizerSpec:
    inner = {"adamw": AdamW(learning_rate=0.01)} if issubclass(kind, MatrixOptimizer) else {}
    own = {"momentum": 0.5} if kind in (Sgd, RmsProp) else {}
    return kind(type=type_of(kind), learning_rate=0.01, **inner, **own)


@pytest.mark.parametrize("kind", [kind for kind in members_of(Optimizer) if kind.schedulable], ids=type_of)
def test_a_rule_with_a_constant_share_is_the_rule_with_that_value(kind: type[OptimizerSpec]) -> None:
    spec = rule(kind)
    shares = {name: 0.5 for name in ("momentum", "beta2") if spec.scheduled_values(name)}
    found, state = trajectories.trajectory(spec, steps=5, shares={name: lambda step: 0.5 for name in shares})
    fixed = spec.scale_values(shares)
    if isinstance(fixed, MatrixOptimizer):
        fixed = fixed.model_copy(update={"adamw": fixed.adamw.scale_values(shares)})
    wanted, same_state = trajectories.trajectory(fixed, steps=5)
    trajectories.assert_equal(found, wanted, within=2e-6)
    assert jax.tree.structure(state) == jax.tree.structure(same_state), "a schedule changes no path in the state"


def test_a_slow_average_rises_from_a_fast_one_whose_decay_a_schedule_takes_to_zero() -> None:
    spec = AdEMAMix(type="ademamix", ramp=100, learning_rate=0.01)
    found, _ = trajectories.trajectory(spec, steps=3, shares={"momentum": lambda step: 0.0})
    wanted, _ = trajectories.trajectory(spec.scale_values({"momentum": 1e-6}), steps=3)
    trajectories.assert_equal(found, wanted, within=1e-4)


def test_a_rule_that_decays_by_itself_has_both_shares() -> None:
    half = {name: lambda step: 0.5 for name in ("momentum", "weight_decay")}
    spec = Prodigy(type="prodigy", weight_decay=0.2)
    found, _ = trajectories.trajectory(spec, steps=5, shares=half)
    fixed = Prodigy(type="prodigy", weight_decay=0.1, betas=(0.45, 0.999))
    trajectories.assert_equal(found, trajectories.trajectory(fixed, steps=5)[0], within=2e-6)


def test_scheduled_values_are_logged_by_the_keys_that_have_them() -> None:
    inner = Group(match="*", optimizer=Sgd(type="sgd", momentum=0.5, learning_rate=1e-2), weight_decay=0.3)
    spec = AdamW(learning_rate=1e-2, weight_decay=0.1, groups=(inner,))
    assert spec.scheduled_metrics("momentum") == {
        "optimizer/betas/0": 0.9, "optimizer/groups/0/optimizer/momentum": 0.5
    }  # fmt: skip
    assert spec.scheduled_metrics("weight_decay") == {
        "optimizer/weight_decay": 0.1, "optimizer/groups/0/weight_decay": 0.3
    }  # fmt: skip
    share = optim.learning_rate(LinearDecay(type="linear", warmup=0, min_ratio=0.5), peak=1.0, steps=10)
    step = small.step(schedules={"weight_decay": optim.ScheduledValue(share, spec.scheduled_metrics("weight_decay"))})
    compiled = jax.jit(step)
    state, _ = compiled(small.state(), small.batch(0))
    _, metrics = compiled(state, small.batch(1))
    assert compiled._cache_size() == 1, "one program for all values"
    assert float(metrics["optimizer/weight_decay"]) == pytest.approx(0.095)
    assert float(metrics["optimizer/groups/0/weight_decay"]) == pytest.approx(0.285)


@pytest.mark.parametrize(
    ("optimizer", "schedule", "said"),
    [
        ("weight_decay = 0.0", 'weight_decay]\ntype = "linear"', "weight_decay, which is 0"),
        ("weight_decay = 0.1", 'weight_decay]\ntype = "linear"\nwarmup = 90', "warmup = 90 is more than"),
        ("betas = [0.9, 0.9]", 'momentum]\ntype = "linear"\nwarmup = 90', "schedules.momentum.warmup = 90 is more"),
        ('type = "sgd"', 'momentum]\ntype = "constant"', "optimizer.momentum, which is 0"),
        ('type = "adagrad"', 'momentum]\ntype = "constant"', 'type = "adagrad" has nothing to scale.* adamw.* muon'),
        ('type = "adagrad"', 'beta2]\ntype = "constant"', "nothing to scale: it sums squares and forgets none; those"),
        ('type = "adafactor"', 'momentum]\ntype = "constant"', "it keeps no average of gradients"),
        ('type = "adafactor"', 'beta2]\ntype = "constant"', r"a schedule of its own, 1 - t\^-decay_rate"),
        ('type = "schedule-free"', 'momentum]\ntype = "constant"', "the model is computed from it, so it stays"),
        ('type = "schedule-free"\nbase = "sgd"', 'beta2]\ntype = "constant"', "divides by no squares"),
        ('type = "online-to-non-convex"', 'momentum]\ntype = "constant"', "its learner decides"),
        ('type = "sgd"\nmomentum = 0.9', 'beta2]\ntype = "constant"', 'type = "sgd" has nothing to scale'),
        ('type = "adam"\nmomentum = false', 'momentum]\ntype = "constant"', 'type = "adam" has nothing to scale'),
        ("betas = [0.9, 0.9]", 'beta2]\ntype = "piecewise-linear"\npoints = [[0, 1.2]]', "1.2 x 0.9 = 1.08"),
    ],
)
def test_a_schedule_of_the_optimizer_that_cannot_be_is_refused(
    tmp_path: Path, optimizer: str, schedule: str, said: str
) -> None:
    lines = f"learning_rate = 1e-3\n{optimizer}\n[schedules.{schedule}"
    path = write(tmp_path, changed(("learning_rate = 1e-3", lines)))
    with pytest.raises(TrainkitError, match=said):
        check_lengths(load(path), "full")


def test_what_only_an_inner_rule_has_can_be_scheduled(tmp_path: Path) -> None:
    muon = 'type = "muon"\nlearning_rate = 1e-3\nweight_decay = 0.0\nadamw = { learning_rate = 1e-3 }'
    path = write(tmp_path, changed(("learning_rate = 1e-3", f'{muon}\n[schedules.weight_decay]\ntype = "linear"')))
    assert load(path).recipe.optimizer_schedules.keys() == {"weight_decay"}


def test_the_greatest_share_of_a_schedule_bounds_it() -> None:
    points = PiecewiseLinear(type="piecewise-linear", points=((0, 0.5), (10, 1.5)))
    for schedule in (Constant(type="constant"), points):
        rates = [schedule.rate(s, peak=1.0, steps=20, decay_start=99, xp=np) for s in range(20)]
        assert max(map(float, rates)) == pytest.approx(schedule.greatest_ratio)
