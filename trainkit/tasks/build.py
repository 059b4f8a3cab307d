"""From spec to task, and what the loop asks of every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxtyping import Array, Float

from trainkit.models.build import LanguageModel
from trainkit.recipe import task as spec
from trainkit.tasks.causal_lm import CausalLM


class Task(Protocol):
    def loss(self, model: LanguageModel, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sum of the weighted losses, in nats, and sum of the weights; float32. The step divides once, at the end."""

    def report(self, *, loss: float, tokens: int, bytes: int) -> dict[str, float]:
        """What an evaluation shows, by the last part of the metric's name.

        `loss` is the weighted mean; `tokens` and `bytes` are those of the set's documents.
        """


def build(task: spec.Task) -> Task:
    match task:
        case spec.CausalLM():
            return CausalLM()
