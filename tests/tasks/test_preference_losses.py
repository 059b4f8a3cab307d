"""The losses of preferences: those of trl, of a plain computation in float64, and how parts of a batch add up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import FIXED
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_rows import halves, mean_and_gradient, padded, sums
from parity import GRADIENT, _as_tensors, _read
from reference import Reference, reference  # noqa: F401 (a fixture)

from trainkit import models
from trainkit.models.loss import blocked_cross_entropy
from trainkit.models.sequence_loss import sequence_log_likelihoods
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.sections.preference_tasks import Preference
from trainkit.tasks import build as build_task
from trainkit.tasks.statistics import values_of

VOCAB, LENGTH, PAIRS = 41, 14, 4
SPEC = Gpt2(layers=1, hidden=16, heads=2)
LOSSES = {
    "dpo": {"beta": 0.3},
    "dpo-per-token": {"loss": "dpo", "beta": 3.0, "per_token": True},
    "robust": {"beta": 0.3, "label_smoothing": 0.2},
    "ipo": {"beta": 0.5},
    "simpo": {"beta": 2.0, "margin": 0.7},
    "cpo": {"beta": 0.2, "label_smoothing": 0.1, "likelihood": 0.5},
    "orpo": {"beta": 0.4, "likelihood": 1.5},
    "orpo-prompts": {"loss": "orpo", "beta": 0.4, "likelihood": 1.5, "likelihood_of_prompt": True},
}
#: Largest difference over the largest number.
EXACT = 1e-5


def pairs(seed: int = 0, count: int = PAIRS, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """Pairs of sequences as `tokens`, (pairs, 2, length), with how long they are and where their answers begin."""
    chance = np.random.default_rng(seed)
    prompts = chance.integers(1, 5, count)
    return {
        "tokens": chance.integers(3, vocab, (count, 2, LENGTH + 1)),
        "prompts": prompts,
        "filled": prompts[:, None] + chance.integers(1, LENGTH - 4, (count, 2)),
        "reference": chance.normal(-20, 4, (count, 2)).astype(np.float32),
    }


def batch_of(made: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The same as a batch: of a sequence of n tokens, the last is a target only."""
    place = np.arange(LENGTH)
    weights = (place + 1 < made["filled"][..., None]) & (place + 1 >= made["prompts"][:, None, None])
    found = {
        "tokens": made["tokens"][..., :-1].astype(np.uint16),
        "targets": made["tokens"][..., 1:].astype(np.uint16),
        "weights": weights.astype(np.float32),
        "filled": (made["filled"] - 1).astype(np.int32),
        "reference": made["reference"],
    }
    return {name: jnp.asarray(array) for name, array in found.items()}


def fresh(seed: int = 0):
    return models.build(SPEC, vocab_size=VOCAB, sequence_length=LENGTH, implementation="xla", key=jax.random.key(seed))


def task(name: str):
    return build_task(Preference(type="preference", **{"loss": name, **LOSSES[name]}))


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_those_of_trl(loss, reference: Reference, tmp_path) -> None:  # noqa: F811
    if not reference.has("trl"):
        pytest.skip("no trl to compare with: the Python of the reference has torch, but .ci/run has not installed trl")
    config, made = FIXED["llama"].config, pairs()
    reference.make(tmp_path, config, seed=3, size=(2, 20), late=5, padded=3, greedy=1)
    asked = {name: array.tolist() for name, array in made.items()}
    expected = reference.prefer(tmp_path, settings={"loss": loss, **LOSSES[loss]}, **asked)
    model, batch, preference = _read(tmp_path), batch_of(made), task(loss)

    value, _, gradients = mean_and_gradient(preference, model, batch)
    assert abs(value - expected["losses"].mean()) <= EXACT * np.abs(expected["losses"]).max()
    theirs = {name: numbers for name, numbers in expected.items() if name.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    assert theirs.keys() == ours.keys()
    assert all(np.abs(ours[name] - theirs[name]).max() <= EXACT * largest for name in theirs)


def plainly(spec: Preference, sums: np.ndarray, lengths: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The loss of each pair by the papers' formulas, in float64."""

    def log_sigmoid(x: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0, -x)

    def apart(x: np.ndarray) -> np.ndarray:
        return x[:, 0] - x[:, 1]

    def ranked(margin: np.ndarray) -> np.ndarray:
        smoothing = spec.label_smoothing
        return -(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin)

    sums, means = sums.astype(np.float64), sums.astype(np.float64) / lengths
    match spec.loss:
        case "dpo" | "robust":
            margin = spec.beta * apart((sums - base) / (lengths if spec.per_token else 1))
            wrong = spec.label_smoothing
            if spec.loss == "dpo":
                return ranked(margin)
            return (wrong * log_sigmoid(-margin) - (1 - wrong) * log_sigmoid(margin)) / (1 - 2 * wrong)
        case "ipo":
            return (apart((sums - base) / lengths) - 1 / (2 * spec.beta)) ** 2
        case "simpo":
            return ranked(spec.beta * apart(means) - spec.margin)
        case "cpo":
            return ranked(spec.beta * apart(sums)) - spec.likelihood * means[:, 0]
        case "orpo":
            odds = means - np.log1p(-np.exp(means))
            return -spec.beta * log_sigmoid(apart(odds)) - spec.likelihood * means[:, 0]


@given(st.sampled_from(list(LOSSES)), st.floats(0.05, 3), st.floats(0, 0.4), st.floats(0, 2), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_loss_is_the_formula_of_its_paper(loss, beta, smoothing, other, seed) -> None:
    loss = LOSSES[loss].get("loss", loss)
    keys = {"beta": beta, "per_token": loss in ("dpo", "robust") and seed % 2 > 0}
    keys |= {"label_smoothing": smoothing} if loss in ("dpo", "robust", "simpo", "cpo") else {}
    keys |= {"margin": other} if loss == "simpo" else {"likelihood": other} if loss in ("cpo", "orpo") else {}
    spec = Preference(type="preference", loss=loss, **keys)
    chance = np.random.default_rng(seed)
    lengths = chance.integers(1, 30, (5, 2)).astype(np.float32)
    sums = (-lengths * chance.uniform(0.05, 6, (5, 2))).astype(np.float32)
    base = (sums + chance.normal(0, 3, (5, 2))).astype(np.float32)
    found, _ = build_task(spec).compare(jnp.asarray(sums), jnp.asarray(lengths), {"reference": jnp.asarray(base)})
    expected = plainly(spec, sums, lengths, base)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * max(1, np.abs(expected).max()))


def test_the_likelihood_of_a_sequence_is_that_of_its_tokens_and_so_is_its_gradient() -> None:
    chance = np.random.default_rng(0)
    hidden, table = (jnp.asarray(chance.normal(size=size), jnp.float32) for size in ((6, 9, 8), (VOCAB, 8)))
    targets = jnp.asarray(chance.integers(0, VOCAB, (6, 9)))
    weights = jnp.asarray(chance.integers(0, 2, (6, 9)), jnp.float32)
    bent = jnp.asarray(chance.normal(size=6), jnp.float32)

    def blocked(hidden, table):
        return sequence_log_likelihoods(hidden, table, targets, weights, softcap=20.0)

    def plain(hidden, table):
        likely = jax.nn.log_softmax(20 * jnp.tanh(hidden @ table.T / 20))
        return (jnp.take_along_axis(likely, targets[..., None], -1)[..., 0] * weights).sum(1)

    def bend(function):
        return jax.value_and_grad(lambda *given: (jnp.tanh(function(*given) / 30) * bent).sum(), argnums=(0, 1))

    np.testing.assert_allclose(blocked(hidden, table), plain(hidden, table), rtol=1e-5)
    total, _ = blocked_cross_entropy(hidden, table, targets, weights, softcap=20.0)
    np.testing.assert_allclose(-blocked(hidden, table).sum(), total, rtol=1e-6)
    (value, slopes), (plain_value, plain_slopes) = bend(blocked)(hidden, table), bend(plain)(hidden, table)
    np.testing.assert_allclose(value, plain_value, rtol=1e-5)
    for one, other in zip(slopes, plain_slopes, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["dpo", "orpo-prompts"])
def test_parts_of_a_batch_rows_of_padding_and_eight_devices_add_up_to_the_whole(loss) -> None:
    preference, model = task(loss), fresh()
    batch = batch_of(pairs(count=6))

    whole = sums(preference, model, batch)
    parts = (sums(preference, model, half) for half in halves(batch))
    for other in (sums(preference, model, padded(batch), devices=8), jax.tree.map(lambda *each: sum(each), *parts)):
        for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    assert whole[0].weight == 6 and 0 <= values_of(whole[0].metrics)["reward_accuracy"] <= 1
