"""A model with a head of classes computes what transformers computes, in float32: scores, loss and gradients, of one
text and of two, with padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS, ENCODERS, FIXED
from parity import GRADIENT, _as_tensors, _read
from reference import PADDED, Reference

from trainkit.hub.load import read_spec
from trainkit.hub.save import save
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.sections.classification_tasks import SequenceClassification, TokenClassification
from trainkit.tasks.sequence_classification import SequenceClassificationTask, build
from trainkit.tasks.token_classification import TokenClassificationTask

#: Of the largest number there.
NEAR = 1e-5
SIZE, CLASSES = (3, 24), 3
MEAN = {"modernbert-mean": ENCODERS["modernbert"] | {"classifier_pooling": "mean"}}
CONFIGS = ENCODERS | MEAN | ENCODER_DECODERS
CONFIGS |= {name: fixed.config | {"pad_token_id": 0} for name, fixed in FIXED.items()}
#: One of each kind of block.
DECODERS = ("gpt2", "llama", "olmo2", "gemma2", "gemma3", "qwen3-moe", "mpt")
CASES = [
    *((name, head, False) for name in ENCODERS for head in ("sequence", "token")),
    ("modernbert-mean", "sequence", False),
    *((name, head, True) for name in ("bert", "bert-three-types") for head in ("sequence", "token")),
    *((name, "sequence", False) for name in ENCODER_DECODERS),
    *((name, "sequence", False) for name in DECODERS),
]
TASKS = {
    "sequence": SequenceClassificationTask(SequenceClassification(type="sequence-classification", classes=CLASSES)),
    "token": TokenClassificationTask(TokenClassification(type="token-classification", classes=CLASSES)),
}
#: Of each text; of each token, the half of which have none, as the padding has none.
LABELS = {
    "sequence": [2, 0, 1],
    "token": np.where(
        (np.arange(72).reshape(SIZE) % 2 == 0) & ~((np.arange(24) >= 24 - PADDED) & (np.arange(3) == 0)[:, None]),
        np.arange(72).reshape(SIZE) * 7 % 5 % 3,
        -1,
    ).tolist(),
}


#: By the kind of problem: what transformers calls it, the labels of three texts, the keys of the task and the same as
#: torch has them.
PROBLEMS: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "regression": ("regression", [0.5, -1.5, 2.0], {}, {}),
    "numbers": ("regression", [[0.5, 1.0, -2.0], [0.0, 3.0, 0.1], [1.0, 1.0, 1.0]], {}, {}),
    "multi-label": ("multi_label_classification", [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], {}, {}),
    "weighted multi-label": (
        "multi_label_classification",
        [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
        {"class_weights": (0.5, 1.0, 2.0), "positive_weights": (3.0, 1.0, 0.25)},
        {"weight": [0.5, 1.0, 2.0], "pos_weight": [3.0, 1.0, 0.25]},
    ),
    "smoothed classes": (
        "single_label_classification",
        [2, 0, 1],
        {"class_weights": (0.5, 1.0, 2.0), "label_smoothing": 0.2},
        {"weight": [0.5, 1.0, 2.0], "smoothing": 0.2},
    ),
}


#: Those that a decoder is tried with too.
PLAIN = ("regression", "multi-label")


@pytest.mark.parametrize(
    ("name", "problem"),
    [*(("bert", problem) for problem in PROBLEMS if problem != "multi-label"), *(("gpt2", p) for p in PLAIN)],
)
def test_a_problem_computes_what_the_reference_does_and_its_export_scores_the_same(
    name: str, problem: str, reference: Reference, tmp_path: Path
) -> None:
    theirs, labels, keys, weights = PROBLEMS[problem]
    kind = {"regression": "regression", "multi_label_classification": "multi-label"}.get(theirs, "multi-class")
    classes = 1 if problem == "regression" else CLASSES
    asked = {"seed": 5, "size": SIZE, "padded": PADDED, "labels": labels, "classes": classes, "problem": theirs}
    expected = reference.make_classifier(
        tmp_path, CONFIGS[name], head="sequence", pairs=False, weights=weights, **asked
    )
    spec = SequenceClassification.model_validate({"type": "sequence-classification", "problem": kind, **keys})
    length = SIZE[1]
    batch = {
        "tokens": jnp.asarray(expected["tokens"]),
        "filled": jnp.asarray([length - PADDED, length, length]),
        "second": jnp.zeros(SIZE, jnp.uint8),
        "labels": jnp.asarray(labels, jnp.float32 if kind == "regression" else jnp.int32),
    }

    def loss(model):
        found = build(spec, None).loss(model, batch)
        return found.sum / found.weight

    model = _read(tmp_path)
    value, gradients = eqx.filter_jit(eqx.filter_value_and_grad(loss))(model)
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(expected[tensor]).max() for tensor in ours)
    apart = max(np.abs(ours[tensor] - expected[tensor]).max() for tensor in ours)
    print(f"{name}, {problem}: loss {abs(value / expected['loss'] - 1):.1e}, gradients {apart / largest:.1e}")
    assert apart < NEAR * largest
    out = tmp_path / "out"
    out.mkdir()
    head = Head("sequence", classes, problem=theirs)
    save(
        out, model, read_spec(tmp_path).with_head(head), dtype="float32", sequence_length=64, tokens={"pad_token_id": 0}
    )
    asked = {"tokens": expected["tokens"].tolist(), "padded": PADDED, "labels": labels}
    again = reference.rescore(out, **asked)
    np.testing.assert_allclose(again["logits"], expected["logits"], rtol=1e-5, atol=1e-6)
    assert len(again["id2label"]) == classes and read_spec(out).head.problem == theirs
    if not weights:
        assert again["loss"] == pytest.approx(float(value), rel=NEAR), "config.json names the problem"


@pytest.mark.parametrize(("name", "head", "pairs"), CASES)
def test_a_head_with_classes_computes_what_the_reference_does(
    name: str, head: str, pairs: bool, reference: Reference, tmp_path: Path
) -> None:
    labels, task = LABELS[head], TASKS[head]
    asked = {"seed": 5, "size": SIZE, "padded": PADDED, "pairs": pairs, "labels": labels, "classes": CLASSES}
    expected = reference.make_classifier(tmp_path, CONFIGS[name], head=head, **asked)
    length = SIZE[1]
    batch = {
        "tokens": jnp.asarray(expected["tokens"]),
        "filled": jnp.asarray([length - PADDED, length, length]),
        "second": jnp.broadcast_to((jnp.arange(length) >= length // 2) & pairs, SIZE).astype(jnp.uint8),
        "labels": jnp.asarray(labels),
    }

    def loss(model):
        found = task.loss(model, batch)
        return found.sum / found.weight, found.metrics["accuracy"]

    model = _read(tmp_path)
    (value, accuracy), gradients = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(model)
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    assert float(accuracy.sum) == (expected["logits"].argmax(-1) == labels).sum()
    assert float(accuracy.weight) == (np.asarray(labels) >= 0).sum()
    theirs = {tensor: numbers for tensor, numbers in expected.items() if tensor.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    assert ours.keys() == theirs.keys() - {tensor for tensor in theirs if "position_ids" in tensor}
    apart = max(np.abs(ours[tensor] - theirs[tensor]).max() for tensor in ours)
    print(f"{name}: loss {abs(value - expected['loss']) / expected['loss']:.1e}, gradients {apart / largest:.1e}")
    assert apart < NEAR * largest
    out = tmp_path / "out"
    out.mkdir()
    # the id of another padding token, such as a tokenizer has, changes no positions
    save(out, model, read_spec(tmp_path), dtype="float32", sequence_length=64, tokens={"pad_token_id": 7})
    assert read_spec(out).with_head(TOKENS).model_copy(update={"pad_token_id": 0}) == read_spec(tmp_path).with_head(
        TOKENS
    ).model_copy(update={"pad_token_id": 0})
    assert read_spec(out).head == read_spec(tmp_path).head
    same = jax.tree.map(np.array_equal, jax.tree.leaves(_read(out)), jax.tree.leaves(model))
    assert all(same) and len(same) > 8
