"""Question answering computes what transformers computes in float32: scores, loss and gradients, with padding too."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODERS
from parity import GRADIENT, _as_tensors, _compiled, _read
from reference import PADDED, Reference

from trainkit.data.documents.question import TARGET
from trainkit.hub.load import read_spec
from trainkit.hub.save import save
from trainkit.recipe.sections.task import QuestionAnswering
from trainkit.tasks.question_answering import best_span, build

#: Of the largest number there.
NEAR = 1e-5
ROWS, LENGTH = SIZE = (3, 24)
#: Of each window; the last has no answer.
STARTS, ENDS = [13, 15, 0], [16, 15, 0]
TASK = build(QuestionAnswering(type="question-answering"), None)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "bert-three-types"])
def test_spans_are_scored_and_learned_as_in_the_reference(name: str, reference: Reference, tmp_path: Path) -> None:
    asked = {"seed": 5, "size": SIZE, "padded": PADDED, "starts": STARTS, "ends": ENDS}
    expected = reference.make_answerer(tmp_path, ENCODERS[name], **asked)
    at, filled = np.arange(LENGTH), np.array([LENGTH - PADDED, LENGTH, LENGTH])
    target = (at >= np.array(STARTS)[:, None]) & (at <= np.array(ENDS)[:, None])
    in_context = (at >= LENGTH // 2) & (at < filled[:, None] - 1)
    batch = {
        "tokens": jnp.asarray(expected["tokens"]),
        "filled": jnp.asarray(filled),
        "second": jnp.broadcast_to(at >= LENGTH // 2, SIZE).astype(jnp.uint8),
        "labels": jnp.asarray(np.where(target, TARGET, np.where(in_context, 0, -1))),
    }

    def loss(model):
        found, predictions = TASK.predict(model, batch)
        return found.sum / found.weight, predictions

    model = _read(tmp_path)
    (value, predictions), gradients = _compiled(eqx.filter_value_and_grad(loss, has_aux=True))(model)
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    theirs = {tensor: numbers for tensor, numbers in expected.items() if tensor.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    assert ours.keys() == theirs.keys() - {tensor for tensor in theirs if "position_ids" in tensor}
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    apart = max(np.abs(ours[tensor] - theirs[tensor]).max() for tensor in ours)
    print(f"{name}: loss {abs(value / expected['loss'] - 1):.1e}, gradients {apart / largest:.1e}")
    assert apart < NEAR * largest
    for row, logits in enumerate(expected["logits"]):
        places = np.flatnonzero(in_context[row]).tolist()
        spans = {(i, j): logits[i, 0] + logits[j, 1] for i in places for j in places if j >= i}
        assert (int(predictions["first"][row]), int(predictions["last"][row])) == max(spans, key=spans.get)
        assert predictions["score"][row] == pytest.approx(max(spans.values()), abs=1e-4)
        assert predictions["null_score"][row] == pytest.approx(logits[0].sum(), abs=1e-4)
    out = tmp_path / "out"
    out.mkdir()
    save(out, model, read_spec(tmp_path), dtype="float32", sequence_length=64, tokens={"pad_token_id": 7})
    assert read_spec(out).head == read_spec(tmp_path).head
    same = jax.tree.map(np.array_equal, jax.tree.leaves(_read(out)), jax.tree.leaves(model))
    assert all(same) and len(same) > 8


def test_the_best_span_is_the_best_of_all_that_are_allowed() -> None:
    chance = np.random.default_rng(0)
    scores = chance.integers(-9, 9, (40, 12, 2)).astype(np.float32)  # so few numbers that some spans are equal
    allowed = chance.random((40, 12)) < 0.6
    allowed[:, 5] = True
    for longest in (1, 3, 99):
        first, last, score = best_span(jnp.asarray(scores), jnp.asarray(allowed), longest)
        for row in range(40):
            places = np.flatnonzero(allowed[row]).tolist()
            spans = [(i, j) for i in places for j in places if i <= j < i + longest]
            sums = {span: scores[row, span[0], 0] + scores[row, span[1], 1] for span in spans}
            assert sums[int(first[row]), int(last[row])] == score[row] == max(sums.values())
            assert (first[row], last[row]) == min(span for span in spans if sums[span] == score[row])


def test_windows_without_a_target_do_not_count() -> None:
    class Model:
        def hidden_and_penalty(self, tokens, **_):
            return tokens, jnp.float32(0)

        def scores(self, hidden, segments):
            return jnp.ones((*hidden.shape, 2))

    batch = {"tokens": jnp.zeros((2, 4), jnp.int32), "filled": jnp.array([3, 0]), "second": jnp.zeros((2, 4), jnp.int8)}
    found = TASK.loss(Model(), batch | {"labels": jnp.array([[TARGET, 0, -1, -1], [-1] * 4])})
    assert found.weight == 1 and found.sum == pytest.approx(np.log(3)), "padding is no choice"
