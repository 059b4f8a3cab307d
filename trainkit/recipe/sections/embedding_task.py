"""The task that learns vectors of texts."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.families.model import Kind, ModelSpec
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.spec import Count, Positive, Temperature
from trainkit.text import plural


class Embedding(TaskSpec):
    """Give texts that belong together similar vectors: each query has to find its positive among those of all queries
    in the batch (van den Oord et al. 2018, InfoNCE; Henderson et al. 2017, in-batch negatives).

    The negatives of a query are the other positives of a micro-batch on all devices, and all hard negatives of
    documents that have them, so make train.micro_batch_size large.
    """

    type: Literal["embedding"]
    pooling: Literal["mean", "first", "last"] = "mean"
    """How to compute the vector of a text from its last hidden states: their mean, or the first or the last one."""
    temperature: Temperature = 0.05
    """What cosine similarities are divided by before the softmax."""
    symmetric: bool = False
    """Whether positives also have to find their queries; the loss is then the mean of both."""
    dimensions: tuple[Count, ...] = ()
    """Lengths to which vectors may be cut: their first numbers are trained as vectors too (Kusupati et al. 2022,
    Matryoshka). If absent, only the whole vector is trained."""
    dimension_weights: tuple[Positive, ...] = ()
    """How much the loss of each of `dimensions` counts. If absent, 1 each."""

    implementation: ClassVar[str] = "trainkit.tasks.embedding"
    documents: ClassVar[frozenset[str]] = frozenset({"positive-pair"})
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder", "causal"})
    shifted: ClassVar[bool] = False
    least_rows: ClassVar[int] = 2
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "recall_at_1", "recall_at_10", "mrr"})

    @model_validator(mode="after")
    def _each_dimension_has_a_weight(self) -> Embedding:
        if self.dimension_weights and len(self.dimension_weights) != len(self.dimensions):
            raise ValueError(
                f"task.dimension_weights has {plural(len(self.dimension_weights), 'number')} for"
                f" {plural(len(self.dimensions), 'dimension')}: give one for each, or leave it out"
            )
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ValueError("task.dimensions names a length twice: name each once")
        return self

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if vectors are shorter than requested, or a decoder's would mean nothing or differ from
        transformers'."""
        hidden = getattr(model, "hidden", None)
        if hidden is not None and any(size > hidden for size in self.dimensions):
            raise ValueError(
                f"task.dimensions has {max(self.dimensions)}, and model.hidden is {hidden}: name at most {hidden}"
            )
        if model.kind != "causal":
            return
        if self.pooling == "first":
            raise ValueError(
                'task.pooling = "first" is for encoders: the first token of a decoder sees no other. Write "last" or'
                ' "mean"'
            )
        if data.encoding.eos:
            raise ValueError(
                "a decoder's vectors come from the tokens of the text alone, as in transformers:"
                " write eos = false into data.encoding"
            )
