"""Metrics of an evaluation: the values of the textbook formulas in float64, whatever the parts that they come from."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit.evaluation.evaluator import add_compensated
from trainkit.parallel.mesh import batch_sharding, make_mesh, replicated_sharding
from trainkit.recipe.sections.metric import METRICS
from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.sections.text_metric import TEXT_METRICS
from trainkit.recipe.spec import type_of
from trainkit.tasks.exact_sums import ExactSum, exact_dot, exact_sum
from trainkit.tasks.metric import Metric, build_metrics

CLASSES = ("a", "b", "c", "d")
KEYS: dict[str, list[dict[str, Any]]] = {
    "f1": [{"average": average, "name": f"f1_{average}"} for average in ("macro", "micro", "weighted")],
    "precision": [{"per_class": True}],
    "recall": [{"average": "weighted", "per_class": True}],
}


def specs() -> list[MetricSpec]:
    return [
        spec.model_validate({"type": type_of(spec), **keys})
        for spec in METRICS
        if spec not in TEXT_METRICS  # see test_text_metrics.py
        for keys in KEYS.get(type_of(spec), [{}])
    ]


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
        "weights": weights,
    }


def of_kind(metric: MetricSpec, predictions: dict[str, Any]) -> dict[str, Any]:
    numbers = "target" in metric.predictions
    return predictions | {"predicted": predictions["number"]} if numbers else predictions


def by_the_book(predictions: dict[str, np.ndarray]) -> dict[str, float]:
    counted = predictions["weights"] > 0
    label, predicted = predictions["label"][counted], predictions["predicted"][counted]
    matrix = np.array([[np.sum((label == i) & (predicted == j)) for j in range(4)] for i in range(4)], np.float64)
    right, of_label, of_predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    precision, recall = right / np.maximum(of_predicted, 1), right / np.maximum(of_label, 1)
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros(4), where=precision + recall > 0)
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
    }
    for i, name in enumerate(CLASSES):
        found |= {f"precision/{name}": precision[i], f"recall/{name}": recall[i]}
        found |= {f"confusion_matrix/{name}/{other}": matrix[i, j] for j, other in enumerate(CLASSES)}
    return {name: float(value) for name, value in found.items()}


def summed(metric: Metric, parts: list[dict[str, Any]]) -> Any:
    sums = metric.zero
    for part in parts:
        sums = jax.tree.map(np.add, sums, jax.jit(metric.statistics)(part))
    return sums


@pytest.mark.parametrize("seed", [0, 1])
def test_every_metric_is_that_of_the_formula_in_float64_and_has_the_names_that_its_spec_gives(seed: int) -> None:
    predictions, found = drawn(seed), {}
    for spec in specs():
        (metric,) = build_metrics([spec], CLASSES).values()
        values = metric.values(summed(metric, [of_kind(spec, predictions)]))
        assert tuple(values) == spec.names(CLASSES)
        found |= values
        assert not metric.values(metric.zero), "no items have no value"
    assert found == pytest.approx(by_the_book(predictions), rel=1e-6, abs=1e-12)


def test_eight_devices_and_a_ragged_last_batch_give_the_same_sums_to_the_last_bit() -> None:
    predictions = drawn(2, 61)
    filled = {name: np.concatenate([array, np.zeros(3, array.dtype)]) for name, array in predictions.items()}
    mesh = make_mesh(data=8, fsdp=1)
    for spec in specs():
        (metric,) = build_metrics([spec], CLASSES).values()
        whole = of_kind(spec, filled)
        sharded = {name: jax.device_put(array[None], batch_sharding(mesh)) for name, array in whole.items()}

        def of_rows(rows: dict[str, Any], metric: Metric = metric) -> Any:
            return metric.statistics({name: array[0] for name, array in rows.items()})

        found = jax.jit(of_rows, out_shardings=replicated_sharding(mesh))(sharded)
        halves = [{name: array[rows] for name, array in whole.items()} for rows in (slice(0, 16), slice(16, 64))]
        once = metric.values(summed(metric, [of_kind(spec, predictions)]))
        assert metric.values(jax.device_get(found)) == once == metric.values(summed(metric, halves)), spec.type


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
