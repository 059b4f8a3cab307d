"""From spec to task, and what the loop asks of every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxtyping import Array, Float

from trainkit.errors import TrainkitError
from trainkit.models.stack import LanguageModel
from trainkit.recipe.sections import task as spec
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.document import Image, Labelled
from trainkit.recipe.sections.source import RowSource
from trainkit.tasks.causal_lm import CausalLMTask


class Task(Protocol):
    def loss(self, model: LanguageModel, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sum of the weighted losses, in nats, and sum of the weights; float32. The step divides once, at the end."""

    def report(self, *, loss: float, targets: int, bytes: int) -> dict[str, float]:
        """What an evaluation shows, by the last part of the metric's name.

        `loss` is the weighted mean; `targets` (tokens to be predicted) and `bytes` are those of the set's documents.
        """


def check_learnable(task: spec.Task, data: Data) -> None:
    """Raises TrainkitError where the task cannot learn from documents of the recipe's kind."""
    for number, source in enumerate(data.train):
        document = source.document if isinstance(source, RowSource) else None
        if isinstance(document, Labelled | Image):
            raise TrainkitError(
                f"the task {task.type} learns from text; the documents of type {document.type} have labels",
                where=f"data.train.{number}.document",
                hint="they can be cached and inspected; to train on them, give them as text: a template or a prompt",
            )


def build(task: spec.Task) -> Task:
    match task:
        case spec.CausalLM():
            return CausalLMTask()
