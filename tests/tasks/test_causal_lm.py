"""What can be added to the loss of next tokens: smoothed labels, a z-loss, and noise of embeddings."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from fixed_configs import FIXED
from parity import GRADIENT, _as_tensors, _read
from reference import Reference
from test_preference_losses import fresh

from trainkit.models.dropout import EmbeddingNoise, with_keys
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build
from trainkit.tasks.causal_lm import CausalLMTask

#: Of the largest number there.
EXACT = 1e-5


def batch_of(tokens: np.ndarray, learned: np.ndarray) -> dict[str, jax.Array]:
    filled = np.full(len(tokens), tokens.shape[1] - 1)
    found = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": learned[:, 1:], "filled": filled}
    return {name: jnp.asarray(array, jnp.float32 if name == "weights" else jnp.int32) for name, array in found.items()}


def test_smoothed_labels_and_a_z_loss_have_the_gradient_of_the_reference_and_leave_the_loss_that_is_shown(
    reference: Reference, tmp_path: Path
) -> None:
    made = reference.make(tmp_path, FIXED["llama"].config, seed=3, size=(3, 20), late=5, padded=3, greedy=1)
    tokens = dict(np.load(tmp_path / "reference.npz"))["tokens"]
    learned = np.arange(20) >= np.array([[4], [9], [1]])
    keys = {"label_smoothing": 0.2, "z_loss": 0.01}
    labels = np.where(learned, tokens, -100).tolist()
    expected = reference.smoothed(tmp_path, tokens=tokens.tolist(), labels=labels, **keys)
    model, batch = _read(tmp_path), batch_of(tokens, learned)

    def found(**keys: float):
        task = CausalLMTask(**keys)

        def mean(model):
            loss = task.loss(model, batch)
            return loss.sum / loss.weight

        return eqx.filter_jit(eqx.filter_value_and_grad(mean))(model)

    (value, gradients), (plain, others) = found(**keys), found()
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    ours, without = _as_tensors(tmp_path, model, gradients), _as_tensors(tmp_path, model, others)
    largest = max(np.abs(expected[name]).max() for name in ours)
    assert made and all(name.startswith(GRADIENT) for name in ours)
    assert all(np.abs(ours[name] - expected[name]).max() <= EXACT * largest for name in ours)
    assert any(np.abs(without[name] - expected[name]).max() > 100 * EXACT * largest for name in ours)


def test_noise_of_embeddings_is_as_large_as_its_paper_says_of_each_row_another_and_only_in_training() -> None:
    model, tokens = fresh(), jnp.asarray(np.random.default_rng(0).integers(0, 41, (4, 14)))
    noisy = eqx.tree_at(lambda model: model.embedding_noise, model, EmbeddingNoise(5.0))
    assert jnp.array_equal(noisy.hidden_states(tokens)[0], model.hidden_states(tokens)[0]), (
        "nothing is added without keys"
    )
    key, rows = jax.random.key(7), jnp.arange(4)
    module = with_keys(noisy, key, rows).embedding_noise
    zeros = jnp.zeros((4, 200, 16))
    noise, largest = np.asarray(module(zeros)), 5 / (200 * 16) ** 0.5
    assert 0.99 * largest < np.abs(noise).max() <= largest
    np.testing.assert_allclose(noise.std(), largest / 3**0.5, rtol=0.02)
    assert not np.array_equal(noise[0], noise[1])
    half = with_keys(noisy, key, rows[2:]).embedding_noise(zeros[2:])
    assert np.array_equal(half, noise[2:]), "it depends on the row in the step, and not on the micro-batch"
    assert not np.array_equal(noise, with_keys(noisy, jax.random.key(8), rows).embedding_noise(zeros))
    assert not jnp.array_equal(with_keys(noisy, key, rows).hidden_states(tokens)[0], model.hidden_states(tokens)[0])


def test_with_all_off_the_program_is_that_of_the_plain_task() -> None:
    model = fresh()
    batch = batch_of(np.ones((2, 15), int), np.ones((2, 15), bool))

    def program(task: CausalLMTask) -> str:
        return str(jax.make_jaxpr(lambda batch: eqx.filter_grad(lambda m: task.loss(m, batch)[0])(model))(batch))

    plain = program(build(CausalLM(type="causal-lm")))
    assert plain == program(CausalLMTask())
    assert plain != program(CausalLMTask(z_loss=1e-4)) != program(CausalLMTask(label_smoothing=0.1)) != plain
