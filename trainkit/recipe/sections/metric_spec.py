"""The interface of metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, TypeAlias

from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.spec import Spec
from trainkit.recipe.union import OneOf

#: What metrics of generated texts need, which no task predicts: an evaluation generates it.
GENERATED = frozenset({"generated"})


class MetricSpec(Spec):
    """What every metric has, and what the rest of trainkit asks of it."""

    type: str
    name: str | None = None
    """Its name in `validation/SET/NAME`. If absent, it is the type, with underscores."""

    implementation: ClassVar[str]
    """The module, or the class in it, whose `build(spec, classes)` returns the metric."""
    predictions: ClassVar[frozenset[str]]
    """What it needs of `Task.predict`, beside `weights`."""

    @classmethod
    def fits(cls, predicted: frozenset[str]) -> bool:
        """Return whether it can be computed from what a task predicts."""
        return cls.predictions <= predicted

    @property
    def label(self) -> str:
        """Return the name under which its value is reported."""
        return self.type.replace("-", "_") if self.name is None else self.name

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of its values: its label, or `LABEL/PART` for each of several parts.

        Args:
            classes: the names of the task's classes; empty if it has none.
        """
        return (self.label,)

    def with_parts(self, parts: Iterable[str]) -> tuple[str, ...]:
        """Return the label and the names of values of these parts."""
        return (self.label, *(f"{self.label}/{part}" for part in parts))

    def check_predictions(self, predicted: frozenset[str]) -> None:
        """Raise ValueError if its keys do not fit the predictions of the task, from which it can be computed."""

    def check_documents(self, documents: Iterable[DocumentSpec | None]) -> None:
        """Raise ValueError if it does not fit the labels of the documents."""

    def check_classes(self, classes: tuple[str, ...]) -> None:
        """Raise ValueError if it does not fit the classes."""


#: Any metric of the recipe language.
Metric: TypeAlias = Annotated[MetricSpec, OneOf("", "trainkit.recipe.sections.metric:METRICS")]
