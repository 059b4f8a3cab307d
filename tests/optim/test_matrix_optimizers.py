"""SOAP and Shampoo end where the published algorithms end, in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import trajectories
from trajectories import SHAPES, trajectory

from trainkit.optim.shampoo import inverse_root
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.matrix import Shampoo, Soap, blocks_of

MATRIX, RATE = "blocks.mlp_in.weight", 0.02
REST = AdamW(learning_rate=0.01, weight_decay=0.0)


def soap(params: np.ndarray, longest: int) -> np.ndarray:
    """Return the matrices after the steps of the authors' implementation."""
    state: list[dict] = [{} for _ in params]
    for t in range(100):
        grads = trajectories.gradient({MATRIX: params}, t)[MATRIX]
        steps = [soap_step(g, each, t, longest) for g, each in zip(grads, state, strict=True)]
        params = params - RATE * np.stack(steps)
    return params


def soap_step(g: np.ndarray, s: dict, t: int, longest: int) -> np.ndarray:
    grams = [g @ g.T, g.T @ g]
    used = [side <= longest for side in g.shape]
    if t == 0:
        s["averages"] = [0.1 * gram for gram in grams]
        s["bases"] = [
            np.linalg.eigh(a)[1][:, ::-1] if use else np.eye(len(a)) for a, use in zip(s["averages"], used, strict=True)
        ]
        s["m"], s["v"] = np.zeros_like(g), np.zeros_like(g)
        return np.zeros_like(g)
    left, right = s["bases"]
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.95 * s["v"] + 0.05 * (left.T @ g @ right) ** 2
    scale = np.sqrt(1 - 0.95**t) / (1 - 0.9**t)
    direction = scale * left @ (left.T @ s["m"] @ right / (np.sqrt(s["v"]) + 1e-8)) @ right.T
    s["averages"] = [0.9 * a + 0.1 * gram for a, gram in zip(s["averages"], grams, strict=True)]
    if t % 5 == 0:
        for side in (0, 1):
            if used[side]:
                a, q = s["averages"][side], s["bases"][side]
                order = np.argsort(-np.diag(q.T @ a @ q))
                s["v"] = np.take(s["v"], order, axis=side)
                s["bases"][side] = np.linalg.qr(a @ q[:, order])[0]
    return direction


@pytest.mark.parametrize(("longest", "columns"), [(100, 6), (7, 8)])
def test_soap_ends_where_the_authors_implementation_ends(longest: int, columns: int) -> None:
    """Of gradients with more columns than rows the first basis of the columns is not unique: these have none."""
    shapes = {MATRIX: (2, 6, columns)}
    at = trajectories.start(shapes)
    spec = Soap(
        type="soap", learning_rate=RATE, betas=(0.9, 0.95), preconditioner_decay=0.9, every=5, longest_side=longest,
        weight_decay=0.0, adamw=REST,
    )  # fmt: skip
    found, state = trajectory(spec, at=at)
    trajectories.assert_equal(found, {MATRIX: soap(at[MATRIX], longest)}, within=1e-5)
    assert sum_of_arrays(state) == spec.total_state_bytes(shapes)


def root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag((values + 1e-3 * np.linalg.norm(matrix)) ** -0.25) @ vectors.T


def shampoo(steps: int, block: int, graft: str) -> np.ndarray:
    params = trajectories.start({MATRIX: SHAPES[MATRIX]})[MATRIX]
    m, v = np.zeros_like(params), np.zeros_like(params)
    kept: dict = {}
    for t in range(steps):
        grads = trajectories.gradient({MATRIX: params}, t, steps)[MATRIX]
        v = 0.95 * v + 0.05 * grads**2
        directions = np.zeros_like(grads)
        for layer, g in enumerate(grads):
            for i in range(0, 6, blocks_of(6, block)[1]):
                for j in range(0, 8, blocks_of(8, block)[1]):
                    part = np.s_[i : i + blocks_of(6, block)[1], j : j + blocks_of(8, block)[1]]
                    averages, roots = kept.setdefault((layer, i, j), ([0.0, 0.0], [None, None]))
                    for side, gram in enumerate((g[part] @ g[part].T, g[part].T @ g[part])):
                        averages[side] = 0.95 * averages[side] + 0.05 * gram
                        if t % 5 == 0:
                            roots[side] = root(averages[side] / (1 - 0.95 ** (t + 1)))
                    directions[layer][part] = roots[0] @ g[part] @ roots[1]
        targets = {"sgd": grads, "adam": grads / np.sqrt(v / (1 - 0.95 ** (t + 1)) + 1e-16), "none": directions}
        lengths = [np.sqrt((x**2).sum((1, 2), keepdims=True)) for x in (targets[graft], directions)]
        m = 0.9 * m + 0.1 * directions * lengths[0] / lengths[1]
        params = params - RATE * m / (1 - 0.9 ** (t + 1))
    return params


@pytest.mark.parametrize(("block", "graft"), [(100, "adam"), (5, "sgd"), (8, "none")])
def test_shampoo_ends_where_exact_roots_end(block: int, graft: str) -> None:
    spec = Shampoo(
        type="shampoo", learning_rate=RATE, eps=1e-3, betas=(0.9, 0.95), block=block, every=5, graft=graft,
        weight_decay=0.0, adamw=REST,
    )  # fmt: skip
    shapes = {MATRIX: SHAPES[MATRIX]}
    found, state = trajectory(spec, steps=60, at=trajectories.start(shapes))
    trajectories.assert_equal(found, {MATRIX: shampoo(60, block, graft)}, within=2e-5)
    assert sum_of_arrays(state) == spec.total_state_bytes(shapes)


def sum_of_arrays(state) -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)


def test_sides_are_divided_into_the_fewest_equal_blocks() -> None:
    assert [blocks_of(side, 4) for side in (3, 4, 5, 8, 9)] == [(1, 3), (1, 4), (2, 3), (2, 4), (3, 3)]


@pytest.mark.parametrize("smallest", [1.0, 1e-3, 1e-6])
def test_inverse_roots_are_exact_however_uneven_the_eigenvalues(smallest: float) -> None:
    chance = np.random.default_rng(0)
    for _ in range(20):
        vectors = np.linalg.qr(chance.normal(size=(6, 6)))[0]
        matrix = 50 * vectors @ np.diag(smallest ** chance.uniform(size=6)) @ vectors.T
        values, vectors = np.linalg.eigh(matrix + 1e-5 * np.linalg.norm(matrix) * np.eye(6))
        wanted = vectors @ np.diag(values**-0.25) @ vectors.T
        found = inverse_root(jnp.asarray(matrix, jnp.float32), 1e-5)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
