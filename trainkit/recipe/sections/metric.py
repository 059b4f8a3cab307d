"""[[evaluate.metrics]]: what an evaluation computes from the predictions of the task, beside what the task reports.

What a metric computes stands in the module that its spec names as `implementation`; see `tasks/metric.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.sections.text_metric import TEXT_METRICS
from trainkit.recipe.spec import union_of

#: The values of a confusion matrix are metrics in the log: there must not be too many.
_MOST_CELLS = 1024
#: What tasks with classes and tasks with numbers predict.
CLASSES, NUMBERS = frozenset({"label", "predicted"}), frozenset({"target", "predicted"})


class Accuracy(MetricSpec):
    """The share of items whose predicted class is their label."""

    type: Literal["accuracy"]

    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:AccuracyMetric"
    predictions: ClassVar[frozenset[str]] = CLASSES


class ClassAverage(MetricSpec):
    """What precision, recall and F1 have in common: a number for each class, and an average of them.

    A class for which the number is 0 / 0 has 0."""

    average: Literal["macro", "micro", "weighted", "binary"] = "macro"
    """`"macro"`: the mean over the classes that occur as label or prediction. `"weighted"`: the same, weighted by how
    often each is the label. `"micro"`: of the counts of all classes together, which is the accuracy. `"binary"`: that
    of the second of two classes."""
    per_class: bool = False
    """Whether every class has a value too: `validation/SET/NAME/CLASS`."""

    predictions: ClassVar[frozenset[str]] = CLASSES

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return (self.label, *(f"{self.label}/{name}" for name in classes if self.per_class))

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


class Mcc(MetricSpec):
    """The correlation of labels and predictions (Matthews 1975; of several classes, Gorodkin 2004)."""

    type: Literal["mcc"]

    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:MccMetric"
    predictions: ClassVar[frozenset[str]] = CLASSES


class ConfusionMatrix(MetricSpec):
    """How many items of each label were predicted as each class: `validation/SET/NAME/LABEL/PREDICTED`."""

    type: Literal["confusion-matrix"]

    implementation: ClassVar[str] = "trainkit.tasks.class_metrics:ConfusionMetric"
    predictions: ClassVar[frozenset[str]] = CLASSES

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{self.label}/{label}/{predicted}" for label in classes for predicted in classes)

    def check_classes(self, classes: tuple[str, ...]) -> None:
        if len(classes) > _MOST_CELLS**0.5:
            raise ValueError(
                f"of {len(classes)} classes it has {len(classes) ** 2} values, and may have {_MOST_CELLS}:"
                ' list "f1" with per_class = true instead'
            )


class MeanAbsoluteError(MetricSpec):
    """The mean distance of prediction and target, in the unit of the target."""

    type: Literal["mean-absolute-error"]

    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:AbsoluteErrorMetric"
    predictions: ClassVar[frozenset[str]] = NUMBERS


class MeanSquaredError(MetricSpec):
    """The mean squared distance of prediction and target."""

    type: Literal["mean-squared-error"]

    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:SquaredErrorMetric"
    predictions: ClassVar[frozenset[str]] = NUMBERS


class RSquared(MetricSpec):
    """The share of the target's variance that the predictions explain; it has none where all targets are equal."""

    type: Literal["r-squared"]

    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:RSquaredMetric"
    predictions: ClassVar[frozenset[str]] = NUMBERS


class Pearson(MetricSpec):
    """The linear correlation of predictions and targets; it has none where either are all equal."""

    type: Literal["pearson"]

    implementation: ClassVar[str] = "trainkit.tasks.number_metrics:PearsonMetric"
    predictions: ClassVar[frozenset[str]] = NUMBERS


#: Every metric of the recipe language.
METRICS = (
    Accuracy,
    PrecisionScore,
    RecallScore,
    F1Score,
    Mcc,
    ConfusionMatrix,
    MeanAbsoluteError,
    MeanSquaredError,
    RSquared,
    Pearson,
    *TEXT_METRICS,
)

if TYPE_CHECKING:
    Metric: TypeAlias = MetricSpec
else:
    Metric = union_of("", *METRICS)
