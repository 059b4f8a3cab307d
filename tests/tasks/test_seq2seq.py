"""Writing a target from a source: what is predicted from what, and what it costs."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS
from parity import GRADIENT, _as_tensors, _compiled, _read
from reference import Reference
from toy_seq2seq import ToySeq2Seq

from trainkit.recipe.sections.task import Seq2Seq
from trainkit.tasks import build as build_task
from trainkit.tasks.statistics import values_of

VOCAB, LENGTH = 13, 6


def batch_of(seed: int, rows: int = 4) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    filled = chance.integers(1, LENGTH + 1, (rows, 2)).astype(np.int32)
    inside = np.arange(LENGTH) < filled[..., None]
    tokens = (chance.integers(2, VOCAB, (rows, 2, LENGTH)) * inside).astype(np.uint16)
    weights = (inside * np.array([0, 1])[:, None]).astype(np.float32)
    return {"tokens": tokens, "weights": weights, "filled": filled, "example": np.arange(rows, dtype=np.uint32)}


def test_every_token_of_the_target_is_predicted_from_the_source_and_those_before_it() -> None:
    model, batch = ToySeq2Seq.init(jax.random.key(0), vocab=VOCAB), batch_of(1)
    task = build_task(Seq2Seq(type="seq2seq"))
    found = jax.jit(task.loss)(model, jax.tree.map(jnp.asarray, batch))
    total, correct, counted = 0.0, 0, 0
    embedding, mix, output = map(np.asarray, (model.embedding, model.mix, model.output))
    for tokens, (source, target) in zip(batch["tokens"].astype(np.int32), batch["filled"], strict=True):
        state, before = embedding[tokens[0, :source]].mean(0), model.decoder_start
        for token in tokens[1, :target].tolist():
            state = np.tanh(state @ mix + embedding[before])
            logits = output @ state
            total += float(np.log(np.exp(logits).sum()) - logits[token])
            correct, counted, before = correct + int(logits.argmax() == token), counted + 1, token
    assert float(found.weight) == counted
    assert np.isclose(float(found.sum), total, rtol=1e-5)
    assert values_of(found.metrics)["accuracy"] == np.float32(correct) / np.float32(counted)
    shown = task.report(loss=total / counted, metrics=found.metrics, targets=0, bytes=0)
    assert set(shown) == Seq2Seq.reports and np.isclose(shown["perplexity"], np.exp(total / counted))


@pytest.mark.parametrize(("name", "smoothing"), [("t5", 0.0), ("bart", 0.1)])
def test_loss_and_gradients_are_those_of_transformers(
    name: str, smoothing: float, reference: Reference, tmp_path: Path
) -> None:
    config, batch = ENCODER_DECODERS[name], batch_of(2)
    reference.make_encoder_decoder(tmp_path, config, seed=3, size=(2, 8), padded=3)
    sources, targets = (
        [tokens[side, : filled[side]].tolist() for tokens, filled in zip(batch["tokens"], batch["filled"], strict=True)]
        for side in (0, 1)
    )
    expected = reference.learn(tmp_path, sources=sources, targets=targets, smoothing=smoothing)
    task, model = build_task(Seq2Seq(type="seq2seq", label_smoothing=smoothing)), _read(tmp_path)

    @_compiled
    @eqx.filter_value_and_grad
    def trained(model):
        loss = task.loss(model, jax.tree.map(jnp.asarray, batch))
        return loss.sum / loss.weight

    loss, gradients = trained(model)
    assert abs(loss - expected.pop("loss")) < 1e-5 * loss
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(array).max() for array in expected.values())
    learned = {name: array for name, array in expected.items() if "logits_bias" not in name}
    assert learned.keys() == ours.keys() - {GRADIENT + "final_logits_bias"}
    assert not {name for name, array in learned.items() if np.abs(ours[name] - array).max() > 1e-5 * largest}
