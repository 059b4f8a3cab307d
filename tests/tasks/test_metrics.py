"""Metrics of an evaluation: the values of the textbook formulas in float64, whatever the parts that they come from."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Reference
from scipy.stats import spearmanr

from trainkit.evaluation.evaluator import add_compensated
from trainkit.parallel.mesh import batch_sharding, make_mesh, replicated_sharding
from trainkit.recipe.sections.classification_tasks import TokenClassification
from trainkit.recipe.sections.labelled_documents import Tagged
from trainkit.recipe.sections.metric import METRICS, NUMBERS, SETS, SpanF1
from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.spec import type_of
from trainkit.tasks.exact_sums import ExactSum, exact_dot, exact_sum
from trainkit.tasks.gathered_metrics import log_odds, mean_ranks
from trainkit.tasks.metric import GatheredItems, GatheredMetric, Metric, build_metrics
from trainkit.tasks.token_classification import TokenClassificationTask

CLASSES = ("a", "b", "c", "d")
KEYS: dict[str, list[dict[str, Any]]] = {
    "f1": [{"average": average, "name": f"f1_{average}"} for average in ("macro", "micro", "weighted")],
    "precision": [{"per_class": True}],
    "recall": [{"average": "weighted", "per_class": True}],
    "top-k-accuracy": [{"k": 2}],
    "auroc": [{"per_class": True}, {"average": "weighted", "name": "auroc_weighted"}],
}
#: The same of items with sets of classes.
SET_KEYS: dict[str, list[dict[str, Any]]] = {
    "f1": [{"average": average, "name": f"f1_{average}"} for average in ("macro", "micro", "weighted", "samples")],
    "precision": [{"per_class": True}, {"average": "samples", "name": "precision_samples"}],
    "recall": [{"per_class": True}, {"average": "samples", "name": "recall_samples"}],
    "subset-accuracy": [{}],
    "hamming-loss": [{}],
    "auroc": [{"average": average, "name": f"auroc_{average}"} for average in ("macro", "micro", "weighted")],
}


def specs() -> list[MetricSpec]:
    """Those of items with one class, and of numbers."""
    return [
        spec.model_validate({"type": type_of(spec), **keys})
        for spec in METRICS
        if spec.fits(frozenset({"label", "predicted", "scores", "target"}))
        for keys in KEYS.get(type_of(spec), [{}])
    ]


def set_specs() -> list[MetricSpec]:
    known = {type_of(spec): spec for spec in METRICS}
    assert SET_KEYS.keys() == {name for name, spec in known.items() if spec.fits(SETS | {"scores"})}
    return [known[name].model_validate({"type": name, **keys}) for name in SET_KEYS for keys in SET_KEYS[name]]


def drawn(seed: int, items: int = 61) -> dict[str, np.ndarray]:
    """Predictions of a class and of a number, a third right, with items that do not count; class d never occurs."""
    chance = np.random.default_rng(seed)
    label, predicted = chance.integers(0, 3, (2, items)).astype(np.int32)
    target = (chance.normal(1e3, 2, items) * 10.0 ** chance.integers(-2, 3, items)).astype(np.float32)
    weights = (chance.random(items) < 0.8).astype(np.float32)
    return {
        "label": np.where(weights > 0, np.where(chance.random(items) < 0.3, predicted, label), -1).astype(np.int32),
        "predicted": predicted,
        "target": target,
        "number": (target + chance.normal(0, 1, items)).astype(np.float32),
        # few distinct scores, so that many are equal
        "scores": (chance.integers(-8, 8, (items, 4)) / 4).astype(np.float32),
        "weights": weights,
    }


def drawn_sets(seed: int, items: int = 61) -> dict[str, np.ndarray]:
    """Predictions of sets of classes, some of them empty; class d is in no set."""
    chance = np.random.default_rng(seed)
    scores = (chance.integers(-8, 8, (items, 4)) / 4 + 1 / 16).astype(np.float32)
    labels = ((scores + chance.normal(0, 2, scores.shape) > 0.7) & (np.arange(4) < 3)).astype(np.int32)
    predicted = ((scores > 0) & (np.arange(4) < 3)).astype(np.int32)
    weights = (chance.random(items) < 0.8).astype(np.float32)
    return {"labels": labels, "predicted_labels": predicted, "scores": scores, "weights": weights}


def of_kind(metric: MetricSpec, predictions: dict[str, Any]) -> dict[str, Any]:
    numbers = metric.predictions == NUMBERS
    return predictions | {"predicted": predictions["number"]} if numbers else predictions


def classes_of(metric: MetricSpec) -> tuple[str, ...]:
    return () if metric.predictions == NUMBERS else CLASSES


def values_of(metric: Metric, parts: list[dict[str, Any]]) -> dict[str, float]:
    """The values of a set in these parts."""
    if not isinstance(metric, GatheredMetric):
        return dict(metric.values(summed(metric, parts)))
    items = GatheredItems()
    for part in parts:
        items.add({"it": {**jax.jit(metric.needed_arrays)(part), "weights": part["weights"]}})
    return dict(metric.values(items.of("it")))


def by_the_book(predictions: dict[str, np.ndarray]) -> dict[str, float]:
    counted = predictions["weights"] > 0
    label, predicted = predictions["label"][counted], predictions["predicted"][counted]
    matrix = np.array([[np.sum((label == i) & (predicted == j)) for j in range(4)] for i in range(4)], np.float64)
    right, of_label, of_predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    precision, recall = right / np.maximum(of_predicted, 1), right / np.maximum(of_label, 1)
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros(4), where=precision + recall > 0)
    scores = predictions["scores"][counted].astype(np.float64)
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    own = scores[np.arange(len(label)), label][:, None]
    before = (scores > own).sum(1) + ((scores == own) & (np.arange(4) < label[:, None])).sum(1)
    areas = [np.mean(of_pairs(chances[label == i, i], chances[label != i, i])) for i in range(3)]
    t, p = (np.float64(predictions[name][counted]) for name in ("target", "number"))
    one_hot = [np.eye(4)[which] for which in (label, predicted)]
    covariance = [[np.sum((x - x.mean(0)) * (y - y.mean(0))) for x in one_hot] for y in one_hot]
    found = {
        "accuracy": np.mean(label == predicted),
        "f1_macro": f1[:3].mean(),
        "f1_micro": np.mean(label == predicted),
        "f1_weighted": np.average(f1, weights=of_label),
        "precision": precision[:3].mean(),
        "recall": np.average(recall, weights=of_label),
        "mcc": covariance[0][1] / np.sqrt(covariance[0][0] * covariance[1][1]),
        "mean_absolute_error": np.mean(np.abs(t - p)),
        "mean_squared_error": np.mean((t - p) ** 2),
        "r_squared": 1 - np.sum((t - p) ** 2) / np.sum((t - t.mean()) ** 2),
        "pearson": np.corrcoef(t, p)[0, 1],
        "spearman": spearmanr(t, p).statistic,
        "top_2_accuracy": np.mean(before < 2),
        "auroc": np.mean(areas),
        "auroc_weighted": np.average(areas, weights=of_label[:3]),
        **{f"auroc/{name}": area for name, area in zip(CLASSES, areas, strict=False)},
    }
    for i, name in enumerate(CLASSES):
        found |= {f"precision/{name}": precision[i], f"recall/{name}": recall[i]}
        found |= {f"confusion_matrix/{name}/{other}": matrix[i, j] for j, other in enumerate(CLASSES)}
    return {name: float(value) for name, value in found.items()}


def of_pairs(of: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of each pair, whether the first scores higher; one half where they are equal, up to rounding."""
    apart = of[:, None] - others
    return np.where(np.abs(apart) < 1e-12, 0.5, apart > 0)


def summed(metric: Metric, parts: list[dict[str, Any]]) -> Any:
    sums = metric.zero
    for part in parts:
        sums = jax.tree.map(np.add, sums, jax.jit(metric.statistics)(part))
    return sums


@pytest.mark.parametrize("seed", [0, 1])
def test_every_metric_is_that_of_the_formula_in_float64_and_has_the_names_that_its_spec_gives(seed: int) -> None:
    predictions, found = drawn(seed), {}
    for spec in specs():
        (metric,) = build_metrics([spec], classes_of(spec)).values()
        values = values_of(metric, [of_kind(spec, predictions)])
        absent = {"auroc/d"}  # there is no item of class d
        assert tuple(values) == tuple(name for name in spec.names(classes_of(spec)) if name not in absent)
        found |= values
        assert not metric.values({} if isinstance(metric, GatheredMetric) else metric.zero), "no items have no value"
    assert found == pytest.approx(by_the_book(predictions), rel=1e-6, abs=1e-12)


def test_eight_devices_and_a_ragged_last_batch_give_the_same_sums_to_the_last_bit() -> None:
    mesh = make_mesh(data=8, fsdp=1)
    for listed, predictions in ((specs(), drawn(2)), (set_specs(), drawn_sets(2))):
        filled = {name: np.pad(array, [(0, 3)] + [(0, 0)] * (array.ndim - 1)) for name, array in predictions.items()}
        metrics = [(spec, build_metrics([spec], classes_of(spec))[spec.label]) for spec in listed]
        sharded = {name: jax.device_put(array[None], batch_sharding(mesh)) for name, array in filled.items()}

        def of_rows(rows: dict[str, Any], metrics: list[tuple[MetricSpec, Metric]] = metrics) -> list[Any]:
            alone = {name: array[0] for name, array in rows.items()}
            return [metric.statistics(of_kind(spec, alone)) for spec, metric in metrics]

        on_eight = jax.device_get(jax.jit(of_rows, out_shardings=replicated_sharding(mesh))(sharded))
        halves = [{name: array[None, rows] for name, array in filled.items()} for rows in np.split(np.arange(64), 2)]
        on_one = jax.tree.map(np.add, *map(jax.jit(of_rows), halves))
        for (spec, metric), sharded_sums, sums in zip(metrics, on_eight, on_one, strict=True):
            if isinstance(metric, GatheredMetric):
                parts = [of_kind(spec, {name: array[0] for name, array in half.items()}) for half in halves]
                assert values_of(metric, parts) == values_of(metric, [of_kind(spec, predictions)]), spec.type
            else:
                assert metric.values(sharded_sums) == metric.values(sums), spec.type


@pytest.mark.parametrize("seed", [0, 1])
def test_metrics_of_sets_ranks_and_several_numbers_are_those_of_scikit_learn(seed: int, reference: Reference) -> None:
    if not reference.has("sklearn"):
        pytest.skip("no scikit-learn in .venv-torch")
    sets, classes, chance = drawn_sets(seed), drawn(seed), np.random.default_rng(seed)
    numbers = {
        "target": chance.normal(0, 2, (50, 3)).astype(np.float32),
        "predicted": chance.integers(-3, 3, (50, 3)).astype(np.float32),
        "weights": (chance.random(50) < 0.7).astype(np.float32),
    }
    found: dict[str, float] = {}
    for spec in set_specs():
        (metric,) = build_metrics([spec], CLASSES).values()
        found |= {f"sets/{name}": value for name, value in values_of(metric, [sets]).items()}
    for spec in specs():
        (metric,) = build_metrics([spec], CLASSES[:3]).values()
        if spec.predictions == NUMBERS:
            found |= {f"numbers/{name}": value for name, value in values_of(metric, [numbers]).items()}
        elif spec.type in ("auroc", "top-k-accuracy"):
            three = classes | {"scores": classes["scores"][:, :3]}
            found |= {f"classes/{name}": value for name, value in values_of(metric, [three]).items()}
    asked = {
        group: {name: array[arrays["weights"] > 0].tolist() for name, array in arrays.items()}
        for group, arrays in (("sets", sets), ("classes", classes), ("numbers", numbers))
    }
    expected = reference.metrics(**asked)
    assert found.keys() >= expected.keys()
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_areas_do_not_depend_on_probabilities_that_round_to_one() -> None:
    scores = np.array([[40.0, 0, -1], [41, 0, -1], [42, 0, -1], [43, 0, -1]], np.float64)
    assert mean_ranks(log_odds(scores)[:, 0]).tolist() == [1, 2, 3, 4]


@pytest.mark.filterwarnings("error")
def test_areas_of_items_without_probabilities_are_no_numbers() -> None:
    spec = next(spec for spec in METRICS if type_of(spec) == "auroc").model_validate({"type": "auroc"})
    (metric,) = build_metrics([spec], ("a", "b", "c")).values()
    assert isinstance(metric, GatheredMetric)
    items = {"label": np.array([0, 1, 2, 0]), "scores": np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]}
    items["scores"][3, 2] = -np.inf
    assert np.isfinite(metric.values(items)["auroc"])
    for value in (np.inf, np.nan):
        items["scores"][3, 2] = value
        assert np.isnan(metric.values(items)["auroc"])


def test_an_average_of_two_classes_may_be_that_of_the_second() -> None:
    spec = next(spec for spec in METRICS if type_of(spec) == "f1").model_validate({"type": "f1", "average": "binary"})
    (metric,) = build_metrics([spec], ("no", "yes")).values()
    label, predicted = np.array([1, 1, 1, 0, 0], np.int32), np.array([1, 0, 1, 1, 0], np.int32)
    sums = metric.statistics({"label": label, "predicted": predicted, "weights": np.ones(5, np.float32)})
    assert metric.values(sums)["f1"] == pytest.approx(2 / 3)


def test_sums_of_products_have_no_rounding_over_the_whole_range_of_float32() -> None:
    chance = np.random.default_rng(0)
    bits = chance.integers(0, 2**32, (2, 500), dtype=np.uint32).view(np.float32)
    tiny = np.float32(2.0**-149)
    x, y = np.where(np.isfinite(bits), bits, tiny)
    x[:3], y[:3] = tiny, [tiny, -np.finfo(np.float32).max, 0]
    counted = chance.random(500) < 0.9
    parts = [jax.jit(exact_dot)(x[rows], y[rows], counted[rows]) for rows in (slice(0, 7), slice(7, 500))]
    total = jax.tree.map(np.add, *parts)
    exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b, here in zip(x, y, counted, strict=True) if here)
    assert total.fraction() == exact
    infinite = exact_sum(np.array([1, np.inf], np.float32), np.ones(2, bool))
    assert infinite.fraction() is None
    assert exact_sum(np.array([1, np.inf], np.float32), np.array([True, False])).fraction() == 1
    assert ExactSum.zero().fraction() == 0


def test_a_running_sum_does_not_lose_what_is_below_its_last_digit() -> None:
    add = jax.jit(add_compensated)
    sums = lost = {"weight": jnp.float32(0), "count": jnp.int32(0)}
    more = {"weight": jnp.float32(2**24), "count": jnp.int32(2**24)}
    for _ in range(2):
        sums, lost = add(sums, lost, more)
    for _ in range(100):
        sums, lost = add(sums, lost, {"weight": jnp.float32(1), "count": jnp.int32(1)})
    assert float(sums["weight"]) - float(lost["weight"]) == int(sums["count"]) == 2**25 + 100
    assert abs(float(sums["weight"]) - (2**25 + 100)) <= 2


def test_the_f1_of_entities_is_that_of_seqeval(reference: Reference) -> None:
    if not reference.has("seqeval"):
        pytest.skip("no seqeval to compare with: .ci/run has not installed it for the Python of the reference")
    classes = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    chance = np.random.default_rng(0)
    texts = [chance.integers(0, 5, chance.integers(1, 9)) for _ in range(40)]
    guesses = [np.where(chance.random(len(text)) < 0.8, text, chance.integers(0, 5, len(text))) for text in texts]
    label, predicted = ([[classes[n] for n in text] for text in some] for some in (texts, guesses))
    expected = reference.entities(label, predicted)
    begins = np.concatenate([np.arange(len(text)) == 0 for text in texts])
    # a token without a label between each two is in no entity
    flat = {"label": np.concatenate(texts), "predicted": np.concatenate(guesses), "begins": begins}
    spaced = {name: np.stack([array, np.zeros_like(array)], 1).reshape(-1) for name, array in flat.items()}
    spaced["weights"] = np.tile([1.0, 0.0], len(begins)).astype(np.float32)
    for average in ("micro", "macro"):
        spec = SpanF1(type="span-f1", average=average, per_type=True)
        (metric,) = build_metrics([spec], classes).values()
        parts = [{name: array[rows] for name, array in spaced.items()} for rows in (slice(0, 31), slice(31, None))]
        found_values = values_of(metric, parts)
        assert tuple(found_values) == spec.names(classes)
        wanted = {
            "span_f1": expected[f"{average} avg"],
            **{f"span_f1/{kind}": expected[kind] for kind in ("PER", "LOC")},
        }
        assert found_values == pytest.approx(wanted)


def test_entities_need_classes_and_labels_of_whole_words() -> None:
    spec = SpanF1(type="span-f1")
    with pytest.raises(ValueError, match='the class "PER" begins or continues no entity'):
        spec.check_classes(("O", "PER"))
    with pytest.raises(ValueError, match='write subwords = "first"'):
        spec.check_documents([Tagged(type="tagged", subwords="all")])


def test_a_text_begins_at_its_first_token_with_a_label() -> None:
    class Model:
        def hidden_and_penalty(self, tokens_BT: Any, **_: Any) -> Any:
            return jax.nn.one_hot(tokens_BT, 2), 0.0

        def scores(self, hidden_BTD: Any, segments_BT: Any) -> Any:
            return hidden_BTD

    task = TokenClassificationTask(TokenClassification(type="token-classification", classes=2))
    batch = {
        "tokens": jnp.zeros((2, 6), jnp.int32),
        "second": jnp.zeros((2, 6), jnp.uint8),
        "segments": jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 3, 3]]),
        "labels": jnp.array([[-1, 0, 1, 0, 1, -1], [0, -1, -1, -1, -1, 1]]),
    }
    begins = task.predict(Model(), batch)[1]["begins"].reshape(2, 6)
    assert begins.astype(int).tolist() == [[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]
