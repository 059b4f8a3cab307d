"""The interface of tasks in a recipe, so that the rest of trainkit knows no task by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from trainkit.errors import TrainkitError
from trainkit.recipe.families.model import TOKENS, Head, Kind, ModelSpec
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import Source, document_of
from trainkit.recipe.sections.tokenizer import Tokenizer
from trainkit.recipe.spec import Spec, type_of

#: The types of documents that become one text, `text` being rows without `document`.
TEXTS = frozenset({"text", "template", "prompt", "chat"})


class TaskSpec(Spec):
    """What every task has, and what the rest of trainkit asks of it."""

    type: str

    implementation: ClassVar[str]
    """The module whose `build(spec, tokenizer)` returns the task."""
    documents: ClassVar[frozenset[str]]
    """Types of documents that it learns from; rows without `document` are `text`. With `text` in it, it also learns
    from every other type of document that becomes one text."""
    models: ClassVar[frozenset[Kind]]
    """Kinds of models that it trains."""
    shifted: ClassVar[bool] = True
    """Whether the targets are the next tokens, which batches then hold. Without, a batch has the tokens alone."""
    writes: ClassVar[bool] = False
    """Whether it learns to write targets of sources or answers to prompts, as an evaluation then can: see
    `[evaluate.generate]`."""
    least_rows: ClassVar[int] = 1
    """How many examples a micro-batch must have over all devices, where the task compares them with each other."""
    learned_share: ClassVar[float] = 1.0
    """The share of a batch's tokens that have a backward pass; the others have a forward pass only."""
    masks: ClassVar[bool] = False
    """Whether it needs a tokenizer with a mask token."""
    predictions: ClassVar[frozenset[str]] = frozenset()
    """What it predicts of each item, beside `weights`: the names of `Task.predict`. Of classes, `label`, `predicted`
    (int32, -1 without a label) and `scores` (float32, one for each class); of sets of classes, `labels` and
    `predicted_labels` (int32, 1 or 0 for each class) and `scores`; of numbers, `target` and `predicted`,
    (N,) or (N, W). Of tokens also `begins`, whether it is the first with a label in its text."""
    text_report: ClassVar[str | None] = None
    """The function that returns what makes texts of its predictions, called as
    `trainkit.evaluation.answers:answer_report` is; None where predictions are no texts."""
    reports: ClassVar[frozenset[str]] = frozenset({"loss"})
    """Names of the values that `Task.report` gives of each validation set."""

    @property
    def predicted(self) -> frozenset[str]:
        """Return the arrays that it predicts with its present keys."""
        return self.predictions

    def reports_on(self, sources: Iterable[Source], data: Data) -> frozenset[str]:
        """Return the names of the values that `Task.report` gives for a validation set with these sources."""
        return self.reports

    @property
    def noise(self) -> float:
        """Return the alpha of the noise on token embeddings in training (NEFTune); 0 for none."""
        return 0.0

    @property
    def needs_words(self) -> bool:
        """Return whether it needs a tokenizer whose tokens show where words begin."""
        return False

    @property
    def reference(self) -> Mapping[str, tuple[int, ...]]:
        """Return the arrays that a frozen reference model gives for each example, float32: name in a batch -> shape.

        `Task.reference` computes them once, before the first step, with the parameters that the run begins with. They
        are kept in the cache; see `train/reference.py`.
        """
        return {}

    def head(self, data: Data) -> Head:
        """Return the head that the model needs. Raises ValueError if the recipe does not say how many
        outputs it has."""
        return TOKENS

    def class_names(self, data: Data) -> tuple[str, ...]:
        """Return the names of the classes that it predicts, in the order of their numbers; empty if it has none."""
        return ()

    def check_generation(self, beams: int, data: Data) -> None:
        """Raise ValueError where an evaluation cannot find in the documents what the model is to write."""

    def check_model(self, model: ModelSpec, models: Callable[[], Iterable[Any]]) -> None:
        """Raise ValueError if it does not train models of this kind.

        Args:
            models: returns the specs of all models, so that the error can name those that fit.
        """
        if model.kind not in self.models:
            fitting = ", ".join(type_of(other) for other in models() if other.kind in self.models)
            raise ValueError(
                f'task.type = "{self.type}" does not train model.type = "{model.type}", whose kind is {model.kind}:'
                f" models that fit are {fitting or 'none'}"
            )

    def check_head(self, head: Head, model: ModelSpec, models: Callable[[], Iterable[Any]]) -> None:
        """Raise ValueError if the model cannot have the head that the task needs; `models` as for `check_model`."""
        if head.kind != "tokens" and head.kind not in model.class_heads:
            fitting = ", ".join(type_of(other) for other in models() if head.kind in other.class_heads)
            raise ValueError(
                f'task.type = "{self.type}" needs a head that gives scores of classes, which'
                f' model.type = "{model.type}" cannot have: models that fit are {fitting or "none"}'
            )

    def check_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        """Raise ValueError if a tokenizer that the run trains lacks a token that the task needs."""
        trained = tokenizer and tokenizer.train
        if self.masks and trained and not trained.mask:
            raise ValueError(
                f'tokenizer.train makes a tokenizer without the mask token that task.type = "{self.type}" needs:'
                " set tokenizer.train.mask = true"
            )

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if the sizes of the model do not fit the documents."""

    @classmethod
    def learns_from(cls, source: Source) -> bool:
        """Return whether it learns from the documents of a training source."""
        document = document_of(source)
        if document is None:
            return "text" in cls.documents
        return document.type in cls.documents or (document.form == "text" and "text" in cls.documents)

    def check_documents(self, sources: Iterable[Source]) -> None:
        """Raise TrainkitError if it does not learn from the documents of a training source."""
        for number, source in enumerate(sources):
            if not self.learns_from(source):
                document = document_of(source)
                kind = "text" if document is None else document.type
                raise TrainkitError(
                    f"the task {self.type} does not learn from documents of type {kind}",
                    where=f"data.train.{number}.document",
                    hint=f"it learns from {', '.join(sorted(self.documents))}; others can be cached and inspected",
                )


def check_last_token(model: ModelSpec, data: Data) -> None:
    """Raise ValueError if a decoder would be scored at another token of a text than in transformers."""
    if model.kind == "encoder-decoder" and not data.encoding.eos:
        raise ValueError(
            "an encoder-decoder scores a text at the token that ends it: leave eos = false out of data.encoding"
        )
    if model.kind == "causal" and data.encoding.eos:
        raise ValueError(
            "a decoder scores a text at its last token, which in transformers is not the end-of-text token:"
            " write eos = false into data.encoding"
        )
