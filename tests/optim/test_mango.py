"""Mango ends where the update of ZQZCalin's fork of Trainit ends, in float64, whatever a parameter is for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import trajectories
from trajectories import trajectory

from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.mango import Mango, Normalizations, WeightNorms, role_of

RATE = 0.02
#: One parameter of each role, with two heads of three outputs for each of queries, keys and values.
SHAPES = {
    "token_embedding": (12, 6),
    "output": (12, 6),
    "blocks.mlp_in.weight": (2, 6, 8),
    "blocks.mlp_in.bias": (2, 8),
    "blocks.mlp_norm.weight": (2, 6),
    "blocks.attention.qkv.weight": (2, 6, 18),
    "blocks.attention.qkv.bias": (2, 18),
}
Arrays = dict[str, np.ndarray]


def frobenius(x: np.ndarray) -> float:
    return np.sqrt((x**2).sum())


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """Return a matrix (outputs, inputs) orthogonalised, as Trainit does."""
    scale = max(1, x.shape[0] / x.shape[1]) ** 0.5
    x = x / frobenius(x)
    for _ in range(6):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return scale * x


def by_head(function: Any, x: np.ndarray) -> np.ndarray:
    """Return `function` of each head's outputs, which are the first axis."""
    return np.concatenate([function(part) for part in np.split(x, len(x) // 3)])


def unit(x: np.ndarray) -> np.ndarray:
    return x / frobenius(x)


def first(name: str, x: np.ndarray) -> np.ndarray:
    """Return the direction of one layer's parameter in the first version, (outputs, inputs), with heads."""
    if name == "token_embedding":
        return x / np.sqrt((x**2).sum(1, keepdims=True))
    if "attention" in name:
        return by_head(newton_schulz if x.ndim == 2 else unit, x)
    if x.ndim == 2:
        return newton_schulz(x)
    return np.sign(x) if "norm" in name else unit(x)


def second(name: str, x: np.ndarray) -> np.ndarray:
    """Return the direction with other choices of the second version."""
    if name == "token_embedding":
        return x
    if name == "output":
        return x / np.sqrt((x**2).sum(0, keepdims=True))
    if "attention" in name:
        return newton_schulz(x) if x.ndim == 2 else np.sign(x)
    return unit(x)


def weighted(name: str, w: np.ndarray) -> Any:
    """Return what multiplies directions in the second version."""
    if name == "output":
        return np.clip(np.sqrt((w**2).sum(1, keepdims=True)) ** 0.5, 1.2, 1.5)
    if name == "blocks.mlp_in.weight":
        return np.clip(np.linalg.norm(w, 2) ** 0.5, 1.2, 1.5)
    return np.clip(frobenius(w) ** 0.5, 1.2, 1.5) if name == "blocks.mlp_in.bias" else 1


def layers(name: str, stack: np.ndarray) -> list[np.ndarray]:
    """Return parameters of layers as Trainit has them: matrices are (outputs, inputs)."""
    return [layer.T for layer in stack] if name.startswith("blocks.") else [stack]


def whole(name: str, parts: list[np.ndarray]) -> np.ndarray:
    return np.stack([part.T for part in parts]) if name.startswith("blocks.") else parts[0]


def mango(direction: Any, preconditioner: str, weights: Any, nesterov: bool) -> Arrays:
    params = trajectories.start(SHAPES)
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    for t in range(100):
        for name, g in trajectories.gradient(params, t).items():
            if preconditioner == "adam":
                m[name], v[name] = 0.9 * m[name] + 0.1 * g, 0.8 * v[name] + 0.2 * g**2
                x = (0.9 * m[name] / (1 - 0.9 ** (t + 2)) + 0.1 * g / (1 - 0.9 ** (t + 1))) if nesterov else 0
                x = x / (np.sqrt(v[name] / (1 - 0.8 ** (t + 1))) + 1e-8)
            else:
                if preconditioner == "laprop":
                    v[name] = 0.8 * v[name] + g**2
                    g = g / (np.sqrt(v[name]) + 1e-8)
                m[name] = 0.9 * m[name] + g
                x = g + 0.9 * m[name] if nesterov else m[name]
            parts = zip(layers(name, x), layers(name, params[name]), strict=True)
            params[name] = params[name] - RATE * whole(name, [direction(name, d) * weights(name, w) for d, w in parts])
    return params


SECOND = {
    "normalize": Normalizations(embeddings="none", head="columns", matrices="l2", attention_biases="sign", scales="l2"),
    "weights": WeightNorms(head="rows", matrices="operator", biases="l2", power=0.5, least=1.2, greatest=1.5),
}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"head_size": 3}, (first, "none", lambda *_: 1, True)),
        ({"head_size": 3, "preconditioner": "laprop", "nesterov": False}, (first, "laprop", lambda *_: 1, False)),
        ({"preconditioner": "adam", **SECOND}, (second, "adam", weighted, True)),
    ],
)
def test_mango_ends_where_trainit_s_ends(options: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    spec = Mango(type="mango", learning_rate=RATE, momentum=0.9, preconditioner_decay=0.8, **options)
    found, state = trajectory(spec, at=trajectories.start(SHAPES))
    trajectories.assert_equal(found, mango(*wanted), within=2e-6)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim) == spec.total_state_bytes(SHAPES)


def test_a_single_number_of_each_layer_is_normalized_by_itself() -> None:
    params = {"blocks.gate": np.array([3.0, -4.0])}
    spec = Mango(type="mango", learning_rate=RATE, momentum=0.0, normalize=Normalizations(scales="l2"))
    found, _ = trajectory(spec, at=params, steps=1)
    signs = np.sign(trajectories.gradient(params, 0, 1)["blocks.gate"])
    trajectories.assert_equal(found, {"blocks.gate": params["blocks.gate"] - RATE * signs})


def test_every_parameter_of_a_model_has_the_role_that_its_name_says() -> None:
    assert [role_of(name, shape) for name, shape in SHAPES.items()] == [
        "embeddings", "head", "matrices", "biases", "scales", "attention", "attention_biases",
    ]  # fmt: skip
    assert role_of("blocks.attention.output.weight", (2, 6, 6)) == "matrices"
    assert role_of("blocks.attention_norm.bias", (2, 6)) == "biases"


def test_heads_of_another_size_than_the_model_s_are_refused() -> None:
    table = {
        "run": {"name": "heads"}, "model": {"type": "gpt2", "layers": 1, "hidden": 32, "heads": 4}, "task": {},
        "optimizer": {"type": "mango", "learning_rate": 0.1, "head_size": 7},
        "train": {"steps": 1, "batch_size": 1}, "schema": 1,
        "data": {"sequence_length": 8, "train": ({"path": "text.jsonl"},)}, "tokenizer": {"path": "gpt2"},
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"optimizer\.head_size = 7 does not divide the 96 outputs of blocks\.att"):
        Recipe.model_validate(table)
