"""Optimizers that treat a matrix as a matrix, not as numbers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.spec import Decay, OptimizerSpec, Shape, WithMoments, is_stacked
from trainkit.recipe.spec import NotNegative


class Muon(WithMoments):
    """Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised by Newton-Schulz iterations.

    It updates the hidden matrices. Embeddings, the output matrix, routers, norms and biases are updated by AdamW, whose
    options are in `[optimizer.adamw]`.
    """

    type: Literal["muon"]
    momentum: Decay = 0.95
    """Decay of the average of the gradients."""
    nesterov: bool = True
    """Look ahead by one step of momentum."""
    iterations: Annotated[int, Field(ge=1, le=20)] = 5
    """Newton-Schulz iterations at each step."""
    scale: Literal["width", "rms"] = "width"
    """How updates depend on a matrix's shape. `width` multiplies them by sqrt(max(1, outputs / inputs)), as published;
    `rms` by 0.2 sqrt(max(inputs, outputs)), which makes them as large as AdamW's (Liu et al. 2025), so that a
    learning rate tuned for AdamW fits."""
    weight_decay: NotNegative = 0.1
    adamw: AdamW
    """The rule for everything that is not a hidden matrix, with its own `learning_rate`."""

    implementation: ClassVar[str] = "trainkit.optim.muon"
    averages: ClassVar[int] = 1

    @model_validator(mode="after")
    def _adamw_has_nothing_inside(self) -> Muon:
        for key in ("groups", "wrappers"):
            if getattr(self.adamw, key):
                raise ValueError(f"optimizer.adamw has no {key} of its own: list them all in [[optimizer.{key}]]")
        return self

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        return self if is_hidden_matrix(name, shape) else self.adamw

    def state_key_values(self) -> dict[str, Any]:
        inner = self.adamw.state_key_values()
        return super().state_key_values() | {f"adamw.{key}": value for key, value in inner.items()}

    def smaller(self) -> Iterator[dict[str, Any]]:
        yield from super().smaller()
        for change in self.adamw.smaller():
            yield {f"adamw.{key}": value for key, value in change.items()}


def is_hidden_matrix(name: str, shape: Shape) -> bool:
    """Whether a parameter is a matrix between hidden layers: its last two axes are inputs and outputs.

    `blocks.*` have a leading axis of layers. Embeddings, the output matrix, routers and norms are no hidden matrices.
    """
    own_axes = len(shape) - is_stacked(name)
    parts = name.split(".")
    outside = any("embedding" in part or "norm" in part or part == "router" for part in parts)
    return own_axes >= 2 and name not in ("output", "output_bias", "classifier.output.weight") and not outside


#: Those of this file, for `sections/optimizer.py` to list.
OPTIMIZERS = (Muon,)
