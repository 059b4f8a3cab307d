"""A trainkit plugin: regression on tables, by a multilayer perceptron.

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
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.task import TaskSpec
from trainkit.recipe.spec import Count


class Regression(TaskSpec):
    """Predict the target of a row of numbers, with the mean squared error as the loss."""

    type: Literal["regression"]

    documents: ClassVar[frozenset[str]] = frozenset({"columns"})
    models: ClassVar[frozenset[Kind]] = frozenset({"plain"})
    shifted: ClassVar[bool] = False

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        document = document_of(data.train[0])
        if isinstance(model, MLP) and isinstance(document, Columns) and model.inputs != len(document.features):
            raise ValueError(
                f"model.inputs = {model.inputs}, but document.features are {len(document.features)}: make them equal"
            )

    def build(self, tokenizer: None) -> Any:
        """Return the task."""
        return _code().task()


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


@cache
def _code() -> _Code:
    """Return the classes that need jax, which `trainkit check` and `explain` do without."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trainkit.tasks import Loss, Task
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

    class RSquared(NamedTuple):
        """The share of the target's variance that is explained. Its four sums are those of any part of the data, and
        add up; for a target whose mean is large they lose digits, so centre it."""

        weight: Any
        target: Any
        square: Any
        residual: Any

        def value(self) -> float | None:
            weight, target, square, residual = map(float, self)
            total = square - target * target / weight if weight else 0.0
            return 1 - residual / total if total > 0 else None

    class RegressionTask(Task):
        metrics: ClassVar = {"r_squared": RSquared(*[np.float32(0)] * 4), "mean_absolute_error": Ratio.zero()}

        def loss(self, model: Any, batch: Mapping[str, Any], *, key: Any = None) -> Loss:
            target_B, weights_B = batch["target"], batch["weights"]
            error_B = model(batch["features"]) - target_B
            weight, residual = weights_B.sum(), (weights_B * error_B**2).sum()
            explained = RSquared(weight, (weights_B * target_B).sum(), (weights_B * target_B**2).sum(), residual)
            absolute = Ratio((weights_B * jnp.abs(error_B)).sum(), weight)
            return Loss(residual, weight, {"r_squared": explained, "mean_absolute_error": absolute})

    return _Code(Layer, Perceptron, RegressionTask)
