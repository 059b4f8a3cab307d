"""A trainkit plugin: regression on tables, by a multilayer perceptron, and a metric of it.

The recipe beside this file, `tabular.toml`, names it. Shapes: B rows of a batch, F features, H units.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

from trainkit.recipe.families.model import Kind, ModelSpec
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.document import Columns
from trainkit.recipe.sections.metric import MetricSpec
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.task import TaskSpec
from trainkit.recipe.spec import Count, Positive


class Regression(TaskSpec):
    """Predict the target of a row of numbers, with the mean squared error as the loss."""

    type: Literal["regression"]

    documents: ClassVar[frozenset[str]] = frozenset({"columns"})
    models: ClassVar[frozenset[Kind]] = frozenset({"plain"})
    shifted: ClassVar[bool] = False
    predictions: ClassVar[frozenset[str]] = frozenset({"target", "predicted"})
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "mean_absolute_error"})

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        document = document_of(data.train[0])
        if isinstance(model, MLP) and isinstance(document, Columns) and model.inputs != len(document.features):
            raise ValueError(
                f"model.inputs = {model.inputs}, but document.features are {len(document.features)}: make them equal"
            )

    def build(self, tokenizer: None) -> Any:
        """Return the task."""
        return _code().task()


class Within(MetricSpec):
    """The share of the rows whose prediction is near the target."""

    type: Literal["within"]
    tolerance: Positive
    """How far a prediction may be from its target, in the unit of the target."""

    predictions: ClassVar[frozenset[str]] = frozenset({"target", "predicted"})

    def build(self, classes: tuple[str, ...]) -> Any:
        """Return the metric."""
        return _code().metric(self)


class MLP(ModelSpec):
    """A multilayer perceptron with one output."""

    type: Literal["mlp"]
    inputs: Count
    """Numbers in a row: as many as `document.features`."""
    hidden: tuple[Count, ...] = (64, 64)
    """Units of each hidden layer."""

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (inputs, outputs) in enumerate(self._layers()):
            shapes[f"layers.{number}.weight"] = (inputs, outputs)
            shapes[f"layers.{number}.bias"] = (outputs,)
        return shapes

    def matmul_parameters(self, *, vocab_size: int) -> int:
        return sum(inputs * outputs for inputs, outputs in self._layers())

    def activation_floats_per_token(self, *, sequence_length: int, remat: str, flash: bool = False) -> int:
        return self.inputs + 2 * sum(self.hidden)

    def _layers(self) -> list[tuple[int, int]]:
        return list(pairwise((self.inputs, *self.hidden, 1)))

    def build(self, *, key: Any, **_: Any) -> Any:
        """Return a model with random weights: normal with variance 2 / inputs (He et al. 2015, equation 10)."""
        import jax
        import jax.numpy as jnp

        layers = self._layers()
        weights = [
            jax.random.normal(one, shape) * (2 / shape[0]) ** 0.5
            for one, shape in zip(jax.random.split(key, len(layers)), layers, strict=True)
        ]
        return _code().model([_code().layer(weight, jnp.zeros(weight.shape[1])) for weight in weights])


class _Code(NamedTuple):
    layer: Any
    model: Any
    task: Any
    metric: Any


@cache
def _code() -> _Code:
    """Return the classes that need jax, which `trainkit check` and `explain` do without."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trainkit.tasks import Loss, Task
    from trainkit.tasks.metric import Metric, count, counted_items
    from trainkit.tasks.statistics import Ratio

    class Layer(eqx.Module):
        weight: jax.Array
        bias: jax.Array

    class Perceptron(eqx.Module):
        layers: list[Layer]

        def __call__(self, features_BF: jax.Array) -> jax.Array:
            hidden_BH = features_BF.astype(self.layers[0].weight.dtype)
            for layer in self.layers[:-1]:
                hidden_BH = jax.nn.gelu(hidden_BH @ layer.weight + layer.bias)
            output_B1 = hidden_BH @ self.layers[-1].weight + self.layers[-1].bias
            return output_B1[:, 0].astype(jnp.float32)

    class RegressionTask(Task):
        metrics: ClassVar = {"mean_absolute_error": Ratio.zero()}

        def loss(self, model: Any, batch: Mapping[str, Any], *, key: Any = None) -> Loss:
            return self.predict(model, batch)[0]

        def predict(self, model: Any, batch: Mapping[str, Any], *, key: Any = None) -> tuple[Loss, Mapping[str, Any]]:
            target_B, weights_B = batch["target"], batch["weights"]
            predicted_B = model(batch["features"])
            error_B, weight = predicted_B - target_B, weights_B.sum()
            absolute = Ratio((weights_B * jnp.abs(error_B)).sum(), weight)
            loss = Loss((weights_B * error_B**2).sum(), weight, {"mean_absolute_error": absolute})
            return loss, {"target": target_B, "predicted": predicted_B, "weights": weights_B}

    class WithinMetric(Metric):
        zero = np.zeros(2, np.int32)

        def __init__(self, spec: Within) -> None:
            self._spec = spec

        def statistics(self, predictions: Mapping[str, Any]) -> Any:
            counted_N = counted_items(predictions)
            near_N = jnp.abs(predictions["predicted"] - predictions["target"]) <= self._spec.tolerance
            return jnp.stack([count(counted_N & near_N), count(counted_N)])

        def values(self, sums: Any) -> Mapping[str, float]:
            near, rows = map(int, sums)
            return {self._spec.label: near / rows} if rows else {}

    return _Code(Layer, Perceptron, RegressionTask, WithinMetric)
