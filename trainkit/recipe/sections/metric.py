"""[[evaluate.metrics]]: what an evaluation computes from the predictions of the task, beside what the task reports.

The module that a spec names as `implementation` computes the metric; see `tasks/metric.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.sections.text_metric import TEXT_METRICS
from trainkit.recipe.spec import Width

#: The values of a confusion matrix are metrics in the log: there must not be too many.
_MOST_CELLS = 1024
#: What tasks with classes, with sets of classes and with numbers predict.
CLASSES, NUMBERS = frozenset({"label", "predicted"}), frozenset({"target", "predicted"})
SETS = frozenset({"labels", "predicted_labels"})


class ClassMetricSpec(MetricSpec):
    """What metrics of items with one class have in common."""

    predictions: ClassVar[frozenset[str]] = CLASSES


class PerClassSpec(MetricSpec):
    """What metrics with a number for each class have in common."""

    per_class: bool = False
    """Whether every class has a value too: `validation/SET/NAME/CLASS`."""

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return self.with_parts(classes if self.per_class else ())


class Accuracy(ClassMetricSpec):
    """The share of items whose predicted class is their label."""

    type: Literal["accuracy"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:AccuracyMetric"


class ClassAverage(PerClassSpec):
    """What precision, recall and F1 have in common: a number for each class, and an average of them.

    A class for which the number is 0 / 0 has 0."""

    average: Literal["macro", "micro", "weighted", "binary", "samples"] = "macro"
    """`"macro"`: the mean over the classes that occur as label or prediction; of sets of classes, over all classes.
    `"weighted"`: the mean weighted by how often each is the label. `"micro"`: of the counts of all classes together,
    which is the accuracy where each item has one class. `"binary"`: that of the second of two classes. `"samples"`: the
    mean over the items, which have sets of classes."""

    predictions: ClassVar[frozenset[str]] = CLASSES

    @classmethod
    def fits(cls, predicted: frozenset[str]) -> bool:
        return predicted >= CLASSES or predicted >= SETS

    @model_validator(mode="after")
    def _items_have_no_classes_apart(self) -> ClassAverage:
        if self.per_class and self.average == "samples":
            raise ValueError('average = "samples" is over items, and per_class over classes: list the metric twice')
        return self

    def check_predictions(self, predicted: frozenset[str]) -> None:
        for average, needed, what in (("samples", SETS, "sets of classes"), ("binary", CLASSES, "one class")):
            if self.average == average and not predicted >= needed:
                raise ValueError(f'average = "{average}" is for items that have {what} each: write "macro"')

    def check_classes(self, classes: tuple[str, ...]) -> None:
        if self.average == "binary" and len(classes) != 2:
            raise ValueError(f'average = "binary" is for two classes, and there are {len(classes)}: write "macro"')


class PrecisionScore(ClassAverage):
    """Of the items predicted as a class, the share whose label it is."""

    type: Literal["precision"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:PrecisionMetric"


class RecallScore(ClassAverage):
    """Of the items whose label is a class, the share predicted as it."""

    type: Literal["recall"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:RecallMetric"


class F1Score(ClassAverage):
    """The harmonic mean of precision and recall."""

    type: Literal["f1"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:F1Metric"


class Mcc(ClassMetricSpec):
    """The correlation of labels and predictions (Matthews 1975; of several classes, Gorodkin 2004)."""

    type: Literal["mcc"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:MccMetric"


class ConfusionMatrix(ClassMetricSpec):
    """How many items of each label were predicted as each class: `validation/SET/NAME/LABEL/PREDICTED`."""

    type: Literal["confusion-matrix"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:ConfusionMetric"

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{self.label}/{label}/{predicted}" for label in classes for predicted in classes)

    def check_classes(self, classes: tuple[str, ...]) -> None:
        if len(classes) > _MOST_CELLS**0.5:
            raise ValueError(
                f"{len(classes)} classes give it {len(classes) ** 2:,} values, and {_MOST_CELLS:,} are allowed:"
                ' list "f1" with per_class = true instead'
            )


class TopKAccuracy(MetricSpec):
    """The share of items whose label is among the classes with the largest scores."""

    type: Literal["top-k-accuracy"]
    k: Width = 5
    """How many classes that is. Among equal scores the class with the smaller number comes first."""

    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:TopKMetric"
    predictions: ClassVar[frozenset[str]] = frozenset({"label", "scores"})

    @property
    def label(self) -> str:
        return f"top_{self.k}_accuracy" if self.name is None else self.name

    def check_classes(self, classes: tuple[str, ...]) -> None:
        if self.k >= len(classes):
            raise ValueError(f"k = {self.k} of {len(classes)} classes always gives 1: make k less than {len(classes)}")


class SubsetAccuracy(MetricSpec):
    """The share of items whose predicted set of classes is exactly their label."""

    type: Literal["subset-accuracy"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:SubsetAccuracyMetric"
    predictions: ClassVar[frozenset[str]] = SETS


class HammingLoss(MetricSpec):
    """The share of wrong decisions, one for each item and class."""

    type: Literal["hamming-loss"]
    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:HammingMetric"
    predictions: ClassVar[frozenset[str]] = SETS


class Auroc(PerClassSpec):
    """The area under the ROC curve: for each class, the probability that an item of the class scores higher than an
    item of another class. It is exact: the host compares all items.

    A class that all items have, or none, has no value."""

    type: Literal["auroc"]
    average: Literal["macro", "weighted", "micro"] = "macro"
    """`"macro"`: the mean over the classes that have a value; two classes have the same. `"weighted"`: the mean
    weighted by how often each is the label. `"micro"`: of all decisions of items with sets of classes together."""

    implementation: ClassVar[str] = "trainkit.tasks.gathered_metrics:AurocMetric"
    predictions: ClassVar[frozenset[str]] = frozenset({"label", "scores"})

    @classmethod
    def fits(cls, predicted: frozenset[str]) -> bool:
        return "scores" in predicted and ("label" in predicted or "labels" in predicted)

    def check_predictions(self, predicted: frozenset[str]) -> None:
        if self.average == "micro" and "labels" not in predicted:
            raise ValueError('average = "micro" is for items that have sets of classes: write "macro"')


class SpanF1(MetricSpec):
    """The F1 of entities of one or several words. An entity is right if both its words and its type are.

    The classes are `O`, and `B-TYPE` and `I-TYPE` of each type (IOB2, Tjong Kim Sang & Veenstra 1999). As in seqeval,
    an `I-TYPE` that continues nothing begins an entity. Entities are those of whole documents, even if `data.encoding`
    divides them between windows; `evaluate.max_batches` may leave out a part of one."""

    type: Literal["span-f1"]
    average: Literal["micro", "macro"] = "micro"
    """`"micro"`: of the counts of all types together. `"macro"`: the mean over the types that occur."""
    per_type: bool = False
    """Whether every type has a value too: `validation/SET/NAME/TYPE`."""

    implementation: ClassVar[str] = "trainkit.tasks.gathered_metrics:SpanF1Metric"
    predictions: ClassVar[frozenset[str]] = CLASSES | {"begins"}

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return self.with_parts(types_of(classes) if self.per_type else ())

    def check_classes(self, classes: tuple[str, ...]) -> None:
        for name in classes:
            if name != "O" and (name[:2] not in ("B-", "I-") or len(name) < 3):
                raise ValueError(
                    f'the class "{name}" begins or continues no entity: classes are "O", "B-TYPE", "I-TYPE"'
                )

    def check_documents(self, documents: Iterable[DocumentSpec | None]) -> None:
        if any(getattr(document, "subwords", "first") == "all" for document in documents):
            raise ValueError(
                'each token of a word would begin an entity where document.subwords = "all": write subwords = "first"'
            )


def types_of(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the types of entities that classes begin or continue, in the order of the classes."""
    return tuple(dict.fromkeys(name[2:] for name in classes if name != "O"))


class NumberMetricSpec(MetricSpec):
    """What metrics of numbers have in common. If a label is several numbers, each also has a value of its own,
    `validation/SET/NAME/NUMBER`, and the metric is the mean of the values that are defined."""

    predictions: ClassVar[frozenset[str]] = NUMBERS

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return self.with_parts(classes)


class MeanAbsoluteError(NumberMetricSpec):
    """The mean distance of prediction and target, in the unit of the target."""

    type: Literal["mean-absolute-error"]
    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:AbsoluteErrorMetric"


class MeanSquaredError(NumberMetricSpec):
    """The mean squared distance of prediction and target."""

    type: Literal["mean-squared-error"]
    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:SquaredErrorMetric"


class RSquared(NumberMetricSpec):
    """The share of the target's variance that the predictions explain; it has none where all targets are equal."""

    type: Literal["r-squared"]
    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:RSquaredMetric"


class Pearson(NumberMetricSpec):
    """The linear correlation of predictions and targets; it has none where either are all equal."""

    type: Literal["pearson"]
    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:PearsonMetric"


class Spearman(NumberMetricSpec):
    """The correlation of the ranks of predictions and targets, equal ones sharing their mean rank; it has none where
    either are all equal. All items are ranked on the host."""

    type: Literal["spearman"]
    implementation: ClassVar[str] = "trainkit.tasks.gathered_metrics:SpearmanMetric"


#: Every metric of the recipe language, for `Metric` in `metric_spec.py`.
METRICS = (
    Accuracy,
    PrecisionScore,
    RecallScore,
    F1Score,
    Mcc,
    ConfusionMatrix,
    TopKAccuracy,
    SubsetAccuracy,
    HammingLoss,
    Auroc,
    SpanF1,
    MeanAbsoluteError,
    MeanSquaredError,
    RSquared,
    Pearson,
    Spearman,
    *TEXT_METRICS,
)
