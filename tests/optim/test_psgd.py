"""PSGD ends where its published update ends, in float64 and with the same random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trajectories
from trajectories import trajectory

from trainkit import optim
from trainkit.optim import psgd as rule
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.preconditioned import Psgd

MATRIX, RATE = "blocks.mlp_in.weight", 0.02
REST = AdamW(learning_rate=0.01, weight_decay=0.0)


def norm_bound(s: np.ndarray) -> float:
    row = s[(s**2).sum(1).argmax()]
    along = s @ row
    return np.linalg.norm(s @ (along / np.linalg.norm(along)))


def fitted(q: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a factor after its update; a diagonal is a vector."""
    of_a, of_b = a @ a.T, b @ b.T
    if q.ndim == 1:
        of_a, of_b = np.diag(of_a), np.diag(of_b)
        return q - 0.1 * (of_a - of_b) * q / (of_a + of_b).max()
    return q - 0.1 * np.triu(of_a - of_b) / norm_bound(of_a + of_b) @ q


def full(q: np.ndarray) -> np.ndarray:
    return np.diag(q) if q.ndim == 1 else q


def psgd(diagonal: tuple[bool, bool], sure: int) -> dict[str, np.ndarray]:
    """Return the matrices after 100 steps of the update of psgd_jax, with factors that are certain to change in the
    first `sure` steps."""
    params = trajectories.start()[MATRIX]
    m = np.zeros_like(params)
    factors = [
        [np.ones(side) if short else np.eye(side) for side, short in zip((6, 8), diagonal, strict=True)] for _ in params
    ]
    for t in range(100):
        key = jax.random.fold_in(jax.random.key(7), t)
        m = 0.9 * m + 0.1 * trajectories.gradient({MATRIX: params}, t)[MATRIX]
        grads = m / (1 - 0.9 ** (t + 1))
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, rule.PROBE), 0), len(params))
        probes = np.stack([jax.random.normal(key, params.shape[1:]) for key in keys])
        probable = np.clip(np.exp(-0.01 * (t + 1 - sure)), 0.03, 1)
        whether, balance = (
            float(jax.random.uniform(jax.random.fold_in(key, each))) for each in (rule.WHETHER, rule.BALANCE)
        )
        for layer, (g, v) in enumerate(zip(grads, probes.astype(np.float64), strict=True)):
            left, right = factors[layer]
            if whether < probable:
                if balance < rule.BALANCED:
                    greatest = [np.abs(q).max() for q in (left, right)]
                    left, right = (
                        q * np.sqrt(np.prod(greatest)) / each for q, each in zip((left, right), greatest, strict=True)
                    )
                a = full(left) @ g @ full(right).T
                b = np.linalg.inv(full(left)).T @ v @ np.linalg.inv(full(right))
                factors[layer] = left, right = fitted(left, a, b), fitted(right, a.T, b.T)
            x = full(left).T @ full(left) @ g @ full(right).T @ full(right) / 1.5
            params[layer] -= RATE * 1.5 * (0.1 * np.sign(x) * np.log(np.abs(x) + 1) + 0.9 * np.tanh(x))
    return {MATRIX: params}


@pytest.mark.parametrize(
    ("options", "diagonal"),
    [({}, (False, False)), ({"longest_side": 7}, (False, True)), ({"diagonal": "both"}, (True, True))],
)
def test_psgd_ends_where_its_published_update_ends(
    options: dict, diagonal: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "BALANCED", 0.2)
    spec = Psgd(
        type="psgd", learning_rate=RATE, every_step_until=20, probability_decay=0.01, weight_decay=0.0, adamw=REST,
        **options,
    )  # fmt: skip
    shapes = {MATRIX: trajectories.SHAPES[MATRIX]}
    found, state = trajectory(spec, at={MATRIX: trajectories.start()[MATRIX]})
    trajectories.assert_equal(found, psgd(diagonal, 20))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert kept == spec.total_state_bytes(shapes)


def test_factors_of_a_matrix_without_a_gradient_stay() -> None:
    params = {MATRIX: jnp.ones((2, 6, 8))}
    built = optim.build(Psgd(type="psgd", learning_rate=RATE, adamw=REST), {MATRIX: MATRIX}, params)
    grads = {MATRIX: jnp.stack([jnp.zeros((6, 8)), jnp.eye(6, 8)])}
    state = built.init(params)
    _, after = jax.jit(built.update)(grads, state, params, key=jax.random.key(0))
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
    moved = [(q != new).any((-2, -1)).tolist() for q, new in pairs if q.ndim == 3 and q.shape[-2] == q.shape[-1]]
    assert moved == [[False, True], [False, True]]
