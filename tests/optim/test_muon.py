"""Muon ends where torch's ends, and its singular values are in the published bands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trajectories
from reference import Reference

from trainkit.optim.orthogonal import MARGIN, NEWTON_SCHULZ, POLAR_EXPRESS, orthogonal
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.matrix import Coefficients, Compute, Muon
from trainkit.recipe.optimizers.wrappers import Offset

RATE = 0.02
REST = AdamW(learning_rate=0.01)
#: Of two layers wide and tall.
SHAPES = {"blocks.mlp_in.weight": (2, 6, 8), "blocks.mlp_out.weight": (2, 9, 5)}
PUBLISHED = Muon(type="muon", learning_rate=RATE, debias=False, adamw=REST)
#: A spec, and torch's options.
CASES: dict[str, tuple[Muon, dict[str, Any]]] = {
    "width": (PUBLISHED, {}),
    "rms": (
        PUBLISHED.model_copy(update={"scale": "rms", "nesterov": False, "momentum": 0.8, "weight_decay": 0.0}),
        {"adjust_lr_fn": "match_rms_adamw", "nesterov": False, "momentum": 0.8, "weight_decay": 0.0},
    ),
}


def by_layer(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return matrices as torch has them: each layer by itself, (outputs, inputs)."""
    return {f"{name}/{n}": layer.T for name, value in params.items() for n, layer in enumerate(value)}


@pytest.fixture(scope="module")
def torch_ends(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    directory: Path = tmp_path_factory.mktemp("muon")
    curvature, minimum, noise = trajectories.problem(100, SHAPES)
    parts = {"start": trajectories.start(SHAPES), "curvature": curvature, "minimum": minimum}
    arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in by_layer(values).items()}
    for step in range(100):
        for name, value in by_layer({name: value[step] for name, value in noise.items()}).items():
            arrays.setdefault(f"noise/{name}", []).append(value)
    np.savez(directory / "problem.npz", shares=np.ones(100), **arrays)
    return reference.descend(
        directory, {label: ("Muon", {"lr": RATE} | options) for label, (_, options) in CASES.items()}
    )


@pytest.mark.parametrize("label", CASES)
def test_muon_ends_where_torch_s_ends(label: str, torch_ends: dict[str, np.ndarray]) -> None:
    found, _ = trajectories.trajectory(CASES[label][0], at=trajectories.start(SHAPES))
    wanted = {name: torch_ends[f"{label}/{name}"] for name in by_layer(found)}
    trajectories.assert_equal(by_layer(found), wanted, within=1e-5)


def test_muon_with_laprop_and_offsets_ends_where_trainit_s_muon_adamw_ends() -> None:
    """As in ZQZCalin's fork: a sum of squares, a trace with Nesterov's look-ahead, Newton-Schulz; AdamW for the rest;
    and the average of all updates added to each."""
    rest = AdamW(learning_rate=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    spec = PUBLISHED.model_copy(
        update={
            "laprop": True, "laprop_decay": 0.9, "weight_decay": 0.0, "adamw": rest,
            "wrappers": (Offset(type="offset", beta=0.9),),
        }
    )  # fmt: skip
    shapes = SHAPES | {"output": (12, 6)}
    at = trajectories.start(shapes)
    params = by_layer(at)
    v, m, offset = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(3))
    for t in range(100):
        stacks = {name: np.stack([params[f"{name}/{n}"].T for n in range(shape[0])]) for name, shape in shapes.items()}
        for name, g in by_layer(trajectories.gradient(stacks, t)).items():
            if name.startswith("output"):
                m[name], v[name] = 0.9 * m[name] + 0.1 * g, 0.95 * v[name] + 0.05 * g**2
                step = m[name] / (1 - 0.9 ** (t + 1)) / (np.sqrt(v[name] / (1 - 0.95 ** (t + 1))) + 1e-8)
                moved = 0.01 * step
            else:
                v[name] = 0.9 * v[name] + g**2
                normal = g / (np.sqrt(v[name]) + 1e-8)
                m[name] = 0.95 * m[name] + normal
                x = newton_schulz(0.95 * m[name] + normal)
                moved = RATE * max(1, x.shape[0] / x.shape[1]) ** 0.5 * x
            offset[name] = 0.9 * offset[name] + 0.1 * moved
            params[name] = params[name] - moved - offset[name]
    found, state = trajectories.trajectory(spec, at=at)
    trajectories.assert_equal(by_layer(found), params, within=1e-5)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim > 1)
    assert kept == spec.total_state_bytes(shapes)


def newton_schulz(x: np.ndarray) -> np.ndarray:
    x = x / np.linalg.norm(x)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return x


def test_muon_scaled_by_the_nuclear_norm_is_polargrad() -> None:
    """With the exact polar factor of the momentum, from a singular value decomposition."""
    spec = PUBLISHED.model_copy(
        update={
            "scale": "nuclear", "nesterov": False, "momentum": 0.9, "weight_decay": 0.0, "iterations": 12,
            "coefficients": "polar-express", "learning_rate": 0.01,
        }
    )  # fmt: skip
    params = by_layer(trajectories.start(SHAPES))
    m = {name: np.zeros_like(value) for name, value in params.items()}
    for t in range(100):
        stacks = {name: np.stack([params[f"{name}/{n}"].T for n in (0, 1)]) for name in SHAPES}
        for name, g in by_layer(trajectories.gradient(stacks, t)).items():
            m[name] = 0.9 * m[name] + 0.1 * g
            left, values, right = np.linalg.svd(m[name], full_matrices=False)
            params[name] = params[name] - 0.01 * values.sum() * left @ right
    found, _ = trajectories.trajectory(spec, at=trajectories.start(SHAPES))
    trajectories.assert_equal(by_layer(found), params, within=1e-5)


@pytest.mark.parametrize(("iterations", "furthest"), [(5, 0.16), (6, 0.0066), (7, 2e-5)])
def test_polar_express_brings_singular_values_as_near_to_one_as_published(iterations: int, furthest: float) -> None:
    chance = np.random.default_rng(0)
    left, right = (np.linalg.qr(chance.normal(size=(side, 24)))[0] for side in (32, 24))
    matrix = left @ np.diag(np.geomspace(1, 2e-3, 24)) @ right.T  # the smallest is over 1e-3 of the norm
    found = np.asarray(orthogonal(jnp.asarray(matrix, jnp.float32), "polar-express", iterations), np.float64)
    assert np.abs(np.linalg.svd(found)[1] - 1).max() < furthest
    if iterations == 7:
        np.testing.assert_allclose(found, left @ right.T, atol=1e-4)


def test_newton_schulz_leaves_singular_values_in_its_published_band() -> None:
    matrices = np.random.default_rng(0).normal(size=(4, 16, 32))
    values = np.linalg.svd(np.asarray(orthogonal(jnp.asarray(matrices, jnp.float32), "newton-schulz", 5)))[1]
    assert values.min() > 0.68 and values.max() < 1.21


def stretched(rows: int, columns: int) -> np.ndarray:
    """Return matrices (2, rows, columns) whose singular values fall from 1 to a thousandth."""
    chance = np.random.default_rng(0)
    left, right = (np.linalg.qr(chance.normal(size=(2, side, rows)))[0] for side in (rows, columns))
    return left * np.geomspace(1, 1e-3, rows) @ right.swapaxes(-2, -1)


@pytest.mark.parametrize(
    ("coefficients", "iterations", "columns"),
    [("newton-schulz", 5, 17), ("newton-schulz", 1, 60), ("newton-schulz", 5, 60), ("polar-express", 8, 60)],
)
def test_products_of_halves_and_of_squares_alone_are_those_of_whole_matrices(
    coefficients: Coefficients, iterations: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where matrices are large; long ones by their squares."""
    monkeypatch.setattr("trainkit.optim.orthogonal.MANY_ROWS", 4)
    matrices = stretched(17, columns)
    wanted = matrices / np.linalg.norm(matrices, axis=(-2, -1), keepdims=True)
    if coefficients == "polar-express":
        wanted = wanted / MARGIN
    for number in range(iterations):
        a, b, c = NEWTON_SCHULZ
        if coefficients == "polar-express":
            a, b, c = POLAR_EXPRESS[number]
            if number < len(POLAR_EXPRESS) - 1:
                a, b, c = a / MARGIN, b / MARGIN**3, c / MARGIN**5
        square = wanted @ wanted.swapaxes(-2, -1)
        wanted = a * wanted + (b * square + c * square @ square) @ wanted
    found = orthogonal(jnp.asarray(matrices, jnp.float32), coefficients, iterations)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_iterations_in_bfloat16_differ_by_a_few_percent() -> None:
    matrices = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 60)), jnp.float32)
    exact, found = (np.asarray(orthogonal(matrices, "newton-schulz", 5, compute)) for compute in get_args(Compute))
    assert 0.005 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.05
    values = np.linalg.svd(found)[1]
    assert values.min() > 0.65 and values.max() < 1.21 and found.dtype == np.float32
