"""Every family computes what transformers computes: logits, gradients, greedy answers, in float32."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_configs import FAMILIES, LENGTH, VOCAB, Config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jaxtyping import Array
from reference import Reference, reference  # noqa: F401 (a fixture)

from trainkit import models
from trainkit.hub.config import family_of, read_config
from trainkit.hub.load import load_params, read_spec
from trainkit.infer.generate import generate
from trainkit.infer.sampling import Sampling
from trainkit.models.loss import blocked_cross_entropy

#: Largest difference over the largest number.
NEAR = 1e-4
ROWS, GREEDY, LATE = 2, 6, 150


def read(directory: Path) -> Any:
    """The model that lies in the directory, in float32."""
    spec = read_spec(directory)
    shapes = eqx.filter_eval_shape(
        lambda key: models.build(
            spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="lean", key=key
        ),
        jax.random.key(0),
    )  # fmt: skip
    return load_params(directory, shapes, dtype=jnp.float32)


def apart(ours: Any, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float(np.abs(np.asarray(ours, np.float64) - theirs).max() / np.abs(theirs).max())


class Ours(NamedTuple):
    """What a model makes of tokens."""

    logits: Array
    late_logits: Array
    greedy: Array
    gradients: Any


def ours(model: Any, tokens: Array) -> Ours:
    length = tokens.shape[1]
    late = jnp.broadcast_to(jnp.arange(LATE, LATE + length), tokens.shape)
    return Ours(
        logits(model, tokens, None), logits(model, tokens, late), greedy(model, tokens), gradients(model, tokens)
    )


@eqx.filter_jit
def logits(model: Any, tokens: Array, positions: Array | None) -> Array:
    return model.logits(model.hidden(tokens, positions_BT=positions)[0])


@eqx.filter_jit
def greedy(model: Any, tokens: Array) -> Array:
    rows, length = tokens.shape
    lengths, keys = jnp.full(rows, length), jax.random.split(jax.random.key(0), rows)
    return generate(model, tokens, lengths, keys, new_tokens=GREEDY, sampling=Sampling(temperature=0))


@eqx.filter_jit
def gradients(model: Any, tokens: Array) -> Any:
    return eqx.filter_grad(loss)(model, tokens)


def loss(model: Any, tokens: Array) -> Array:
    """The mean over all tokens but each row's first, as the reference takes it; routing adds nothing to it."""
    hidden, _ = model.hidden(tokens)
    targets, weights = jnp.roll(tokens, -1, axis=1), jnp.ones(tokens.shape).at[:, -1].set(0)
    total, weight = blocked_cross_entropy(hidden, model.unembedding(), targets, weights, softcap=model.final_softcap)
    return total / weight


def gradients_by_their_names(directory: Path, model: Any, gradients: Any) -> dict[str, np.ndarray]:
    """Ours, cut into the tensors of the checkpoint."""
    family = family_of(read_config(directory), where="")
    leaves = dict(zip(jax.tree.leaves(models.leaf_names(model)), jax.tree.leaves(gradients), strict=True))
    found = {}
    for name in family.names:
        if name.ours in leaves:
            leaf = np.asarray(leaves[name.ours])
            for at in np.ndindex(leaf.shape[: name.stacked]):
                found[name.at(at)] = leaf[at].T if name.transposed else leaf[at]
    return found


#: What torch calls the experts of a layer, which are not called so in checkpoints.
FUSED = re.compile(r"model\.layers\.(\d+)\.mlp\.(experts\.gate_up_proj|experts\.down_proj|gate\.weight)")


def apart_again(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of experts, taken out of `theirs`, each by layer and our name for it."""
    found = {}
    for name in [name for name in theirs if FUSED.fullmatch(name)]:
        layer, what = FUSED.fullmatch(name).groups()  # type: ignore[union-attr]
        turned = np.swapaxes(theirs.pop(name), -1, -2)
        if what == "experts.gate_up_proj":
            found[f"{layer} gate"], found[f"{layer} up"] = np.split(turned, 2, axis=-1)
        else:
            found[f"{layer} {'down' if what == 'experts.down_proj' else 'router'}"] = turned
    return found


def of_experts(model: Any, gradients: Any) -> dict[str, np.ndarray]:
    """Ours, under the same names; nothing where there are no experts."""
    leaves = dict(zip(jax.tree.leaves(models.leaf_names(model)), jax.tree.leaves(gradients), strict=True))
    if "blocks.mlp.router.weight" not in leaves:
        return {}
    names = {"router": "blocks.mlp.router.weight", **{part: f"blocks.mlp.{part}" for part in ("gate", "up", "down")}}
    return {
        f"{layer} {part}": np.asarray(gradient)
        for part, leaf in names.items()
        for layer, gradient in enumerate(leaves[leaf])
    }


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_computes_what_the_reference_does(
    family: str,
    reference: Reference,  # noqa: F811
    tmp_path: Path,
) -> None:
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(FAMILIES[family](), st.integers(0, 1000))
    def compared(config: Config, seed: int) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as name:
            directory = Path(name)
            asked = {"greedy": GREEDY, "gradients": True, "padding": True, "first_position": LATE}
            expected = reference.make(directory, config, seed=seed, size=[ROWS, 24], **asked)
            compare(directory, expected)

    compared()


def compare(directory: Path, expected: dict[str, np.ndarray]) -> None:
    model = read(directory)
    found = ours(model, jnp.asarray(expected["tokens"]))
    assert apart(found.logits, expected["logits"]) < NEAR
    assert apart(found.late_logits, expected["late_logits"]) < NEAR
    half = expected["tokens"].shape[1] // 2  # of a row that is padded from there on; what stands there means nothing
    assert apart(found.logits[0, :half], expected["padded_logits"][0, :half]) < NEAR
    assert found.greedy.tolist() == expected["greedy"].tolist()
    by_name = gradients_by_their_names(directory, model, found.gradients)
    theirs = {name.removeprefix("gradient/"): g for name, g in expected.items() if name.startswith("gradient/")}
    largest = max(np.abs(g).max() for g in theirs.values())
    theirs |= apart_again(theirs)
    by_name |= of_experts(model, found.gradients)
    missing = set(theirs) - set(by_name)
    assert not missing, missing
    for name, gradient in theirs.items():
        assert np.abs(by_name[name] - gradient).max() < NEAR * largest, name
