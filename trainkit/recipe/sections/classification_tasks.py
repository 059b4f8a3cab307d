"""Tasks that learn labels: classes or numbers of a text, and classes of its tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.families.model import Head, Kind, ModelSpec
from trainkit.recipe.sections.data import Data, Pad
from trainkit.recipe.sections.source import Source, document_of
from trainkit.recipe.sections.task_spec import TaskSpec, check_last_token
from trainkit.recipe.spec import MissingKey, Positive, Width
from trainkit.text import plural


class Classification(TaskSpec):
    """What tasks with classes have in common."""

    classes: Width | tuple[str, ...] | None = None
    """How many classes there are, or their names in the order of their numbers. If absent, those of the documents."""
    class_weights: tuple[Positive, ...] = ()
    """How much each class counts in the loss, in the order of their numbers. If absent, all count the same."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread evenly over all classes (Szegedy et al. 2016, section 7)."""
    new_head: bool = False
    """Whether the last layer of the head starts from random weights although `model.pretrained` has one. Set it if the
    checkpoint has another number of classes."""

    models: ClassVar[frozenset[Kind]] = frozenset({"encoder", "causal"})
    shifted: ClassVar[bool] = False
    predictions: ClassVar[frozenset[str]] = frozenset({"label", "predicted", "scores"})
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "accuracy"})

    def class_names(self, data: Data) -> tuple[str, ...]:
        """Return the names of the classes, or their numbers if they have no names."""
        count, names = self.known_classes(data)
        return names or tuple(map(str, range(count)))

    def known_classes(self, data: Data) -> tuple[int, tuple[str, ...]]:
        """Return how many classes there are, and their names if they have any.

        Raises ValueError if that is unknown, or if the documents contradict the task.
        """
        sources = (*data.train, *data.validation)
        named = dict.fromkeys(document.label_names if (document := document_of(one)) else () for one in sources)
        if len(named) > 1:
            raise ValueError("all sources must have the same document.classes, in the same order")
        names = next(iter(named))
        if isinstance(self.classes, tuple):
            if names and names != self.classes:
                raise ValueError("task.classes and document.classes differ: leave one of them out")
            names = self.classes
        count = self.classes if isinstance(self.classes, int) else len(names)
        if not count:
            raise MissingKey("task.classes", "how many classes there are follows from nothing else")
        if names and count != len(names):
            raise ValueError(f"task.classes = {count}, but document.classes names {len(names)}: leave one of them out")
        if count < 2:
            found = f'"{names[0]}"' if names else str(count)
            raise ValueError(
                f"there must be at least two classes, found {found}: add to task.classes or document.classes"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"two classes have the same name: {', '.join(names)}")
        if self.class_weights and len(self.class_weights) != count:
            raise ValueError(f"task.class_weights has {plural(len(self.class_weights), 'number')} for {count} classes")
        return count, names


#: problem -> the types of labels that it learns from, and its name in transformers.
_PROBLEMS = {
    "multi-class": (("class",), "single_label_classification"),
    "multi-label": (("classes", "flags"), "multi_label_classification"),
    "regression": (("number",), "regression"),
}


class SequenceClassification(Classification):
    """Predict the class of a text or of a pair of texts, several classes, or numbers."""

    type: Literal["sequence-classification"]
    problem: Literal["multi-class", "multi-label", "regression"] = "multi-class"
    """What to predict. `"multi-class"`: the one class of a text, by cross-entropy. `"multi-label"`: which classes it
    has, by binary cross-entropy. `"regression"`: one number or several, by mean squared error."""
    positive_weights: tuple[Positive, ...] = ()
    """For `"multi-label"`: how much more a text counts in the loss of a class that it has. A usual value is the number
    of texts without the class divided by the number with it."""

    implementation: ClassVar[str] = "trainkit.tasks.sequence_classification"
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder", "causal", "encoder-decoder"})
    documents: ClassVar[frozenset[str]] = frozenset({"labelled"})

    @property
    def predicted(self) -> frozenset[str]:
        """Return what it predicts: classes, sets of classes or numbers."""
        names = {
            "multi-class": ("label", "predicted", "scores"),
            "multi-label": ("labels", "predicted_labels", "scores"),
            "regression": ("target", "predicted"),
        }
        return frozenset(names[self.problem])

    def reports_on(self, sources: Iterable[Source], data: Data) -> frozenset[str]:
        """Return the names of its values; it reports the accuracy only if each text has one class."""
        return self.reports if self.problem == "multi-class" else frozenset({"loss"})

    def head(self, data: Data) -> Head:
        """Return a head with a score for each class, or for each number."""
        count, names = self.known_classes(data)
        return Head("sequence", count, names, self.new_head, _PROBLEMS[self.problem][1])

    def class_names(self, data: Data) -> tuple[str, ...]:
        """Return the names of the classes, or of several numbers; empty for one number."""
        names = super().class_names(data)
        return names if self.problem != "regression" or len(names) > 1 else ()

    def known_classes(self, data: Data) -> tuple[int, tuple[str, ...]]:
        """Return how many classes, or numbers, there are, and their names if they have any.

        Raises ValueError as `Classification.known_classes`.
        """
        if self.problem != "regression":
            count, names = super().known_classes(data)
            if self.positive_weights and len(self.positive_weights) != count:
                weights = plural(len(self.positive_weights), "number")
                raise ValueError(f"task.positive_weights has {weights} for {count} classes")
            return count, names
        documents = [document_of(source) for source in (*data.train, *data.validation)]
        known = {(getattr(d, "numbers_in_label", 1), d.label_names if d else ()) for d in documents}
        if len(known) > 1:
            raise ValueError("all sources must have labels of the same numbers: see document.label and label_width")
        return known.pop()

    @model_validator(mode="after")
    def _keys_fit_the_problem(self) -> SequenceClassification:
        of = {
            "classes": ("multi-class", "multi-label"),
            "class_weights": ("multi-class", "multi-label"),
            "label_smoothing": ("multi-class",),
            "positive_weights": ("multi-label",),
        }
        for key, problems in of.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.problem not in problems:
                named = " or ".join(f'"{name}"' for name in problems)
                raise ValueError(
                    f'task.{key} changes nothing with task.problem = "{self.problem}": leave it out, or use {named}'
                )
        return self

    def _check_labels(self, data: Data) -> None:
        allowed, _ = _PROBLEMS[self.problem]
        for source in (*data.train, *data.validation):
            found = getattr(document_of(source), "label_type", "class")
            if found not in allowed:
                fitting = next(name for name, (types, _) in _PROBLEMS.items() if found in types)
                wanted = " or ".join(f'"{name}"' for name in allowed)
                raise ValueError(
                    f'task.problem = "{self.problem}" learns from labels of type {wanted}, and document.label_type ='
                    f' "{found}": change it, or write task.problem = "{fitting}"'
                )

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if the labels have another type, a row of a batch may hold several texts, or a decoder would
        be scored at another token than in transformers."""
        self._check_labels(data)
        if not isinstance(data.encoding, Pad):
            raise ValueError(
                f'a text with a label is a row of its own, which data.encoding.type = "{data.encoding.type}" does not'
                ' give: data.encoding = { type = "pad" }'
            )
        check_last_token(model, data)


class TokenClassification(Classification):
    """Predict the class of each token that has a label, such as the first of each word."""

    type: Literal["token-classification"]

    implementation: ClassVar[str] = "trainkit.tasks.token_classification"
    predictions: ClassVar[frozenset[str]] = frozenset({"label", "predicted", "scores", "begins"})
    documents: ClassVar[frozenset[str]] = frozenset({"tagged"})

    def head(self, data: Data) -> Head:
        """Return a head with a score for each class at each token."""
        count, names = self.known_classes(data)
        return Head("token", count, names, self.new_head)


#: Those of this file; `Task` in `task.py` lists the files.
TASKS = (SequenceClassification, TokenClassification)
