"""[evaluate]: when and on how much of the validation sets the model is evaluated, and by which metrics."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import get_args

from pydantic import Field, field_validator, model_validator

from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.metric_spec import GENERATED, Metric
from trainkit.recipe.sections.outputs import Best
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.spec import Count, Number, Spec, Width, type_of
from trainkit.recipe.union import members_of

_NAME = re.compile(r"[A-Za-z0-9_.@-]+")


class Generate(Spec):
    """Write targets for the sources of each validation set, or answers to its prompts, and compare them with those in
    the set."""

    max_items: Width = 100
    """Largest number of sources or prompts of each set: the first ones that are evaluated."""
    max_tokens: Count = 128
    """Largest number of tokens of a target or an answer that is written."""
    beams: Width = 1
    """How many candidate targets the search keeps for each source. With 1, it takes the likeliest token each time, as
    it always does for answers."""
    length_penalty: Number = 1.0
    """With beams: a target's log-likelihood is divided by its length to this power. Above 0 favours longer targets."""
    early_stopping: bool = False
    """With beams: whether a search ends as soon as it has found as many targets as beams."""

    @model_validator(mode="after")
    def _keys_need_beams(self) -> Generate:
        if self.beams == 1 and (self.length_penalty != 1.0 or self.early_stopping):
            raise ValueError("length_penalty and early_stopping change nothing with beams = 1: set beams = 2 or more")
        return self


class Evaluate(Spec):
    """When and on how much of each validation set the model is evaluated."""

    every: Count | None = None
    """Steps between evaluations; there is always one at the end. If absent, there is no other."""
    batch_size: Count | None = None
    """Sequences per batch, all at once. If absent, a batch has `train.batch_size` sequences, in the parts of a step."""
    max_batches: Count | None = None
    """Largest number of batches of each set to evaluate: a random sample drawn with `run.seed`, the same throughout the
    run and after a resume. If absent, the whole set is evaluated."""
    patience: Count | None = None
    """The run ends early when so many evaluations in a row (of those by `every`) are no better than the one before them
    that is the best by `checkpoint.best`. If absent, it does not."""
    predictions: bool = False
    """Whether every evaluation also writes its metrics and every prediction, with the file and row that it is of, into
    the run's `results/SET-STEP.json` and `results/SET-STEP.parquet`."""
    metrics: tuple[Metric, ...] = ()
    """What is computed beside what the task reports: `validation/SET/NAME`."""
    generate: Generate | None = None
    """How targets or answers are written for metrics of texts, such as `bleu`. If the table is absent, none are."""
    tags: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Validation sets that are also reported together: `{ code = ["python", "c"] }` reports `validation/code/…`, the
    values of all examples of both sets. Values of texts that the model writes or finds are of single sets alone."""

    def predictable(self, task: TaskSpec) -> frozenset[str]:
        """Return what metrics can be computed from."""
        return task.predicted | (GENERATED if self.generate is not None else frozenset())

    @field_validator("metrics")
    @classmethod
    def _names_differ(cls, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        names = [metric.label for metric in metrics]
        for number, (metric, name) in enumerate(zip(metrics, names, strict=True)):
            if not _NAME.fullmatch(name):
                raise ValueError(f'metrics.{number}.name = "{name}": use letters, digits and _ . @ - alone')
            if name in names[:number]:
                raise ValueError(f'two metrics are named "{name}": give one {metric.type} another name')
        return metrics

    def check_tags(self, data: Data) -> None:
        """Raise ValueError if a tag names no sets, or has the name of one."""
        names = data.validation_names
        for tag, sets in self.tags.items():
            key = f'evaluate.tags."{tag}"'
            if not _NAME.fullmatch(tag):
                raise ValueError(f"{key}: use letters, digits and _ . @ - alone")
            if tag in names:
                raise ValueError(f"{key} is the name of a validation set too: choose another")
            if unknown := [name for name in sets if name not in names]:
                known = ", ".join(names) or "none"
                raise ValueError(f'{key} names "{unknown[0]}", which is no validation set: there are {known}')
            if not sets or len(set(sets)) < len(sets):
                raise ValueError(f"{key} = {list(sets)}: name each of its validation sets once")

    def check_metrics(self, task: TaskSpec, data: Data) -> None:
        """Raise ValueError if a metric needs what the task does not predict, or has a name that the task reports."""
        if self.generate is not None and not task.writes:
            raise ValueError(f'[evaluate.generate] writes texts, and task.type = "{task.type}" learns none: omit it')
        if self.generate is not None:
            task.check_generation(self.generate.beams, data)
        predicted = self.predictable(task)
        if self.predictions and not predicted:
            raise ValueError(f'evaluate.predictions = true, but task.type = "{task.type}" makes none: leave it out')
        if not self.metrics:
            return
        classes = task.class_names(data)
        sets = (data.train, *data.validation_sources.values())
        reported = {name for sources in sets for name in task.reports_on(sources, data)}
        for number, metric in enumerate(self.metrics):
            key = f'evaluate.metrics.{number}.type = "{metric.type}"'
            if task.writes and self.generate is None and metric.predictions == GENERATED:
                raise ValueError(f"{key} needs texts that the model writes: add [evaluate.generate]")
            if not metric.fits(predicted):
                known = members_of(get_args(type(self).model_fields["metrics"].annotation)[0])
                fitting = ", ".join(f'"{type_of(one)}"' for one in known if one.fits(predicted))
                others = f"metrics that fit are {fitting}" if fitting else "no metric fits it"
                if task.writes and self.generate is None:
                    others += " without [evaluate.generate]"
                raise ValueError(
                    f'{key} needs {" and ".join(sorted(metric.predictions))}, which task.type = "{task.type}" does not'
                    f" predict: {others}"
                )
            if metric.label in reported:
                raise ValueError(
                    f'{key}: task.type = "{task.type}" reports {metric.label} already: remove the metric,'
                    " or give it another name"
                )
            try:
                metric.check_predictions(task.predicted)
                metric.check_documents(document_of(source) for source in (*data.train, *data.validation))
                metric.check_classes(classes)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None

    def metric_names(self, task: TaskSpec, data: Data) -> list[str]:
        """Return the names of all metrics that an evaluation computes, as in the log."""
        classes, sets = task.class_names(data), data.validation_sources
        listed = [name for metric in self.metrics for name in metric.names(classes)]
        found = {name: [*sorted(task.reports_on(sources, data)), *listed] for name, sources in sets.items()}
        texts = {name for metric in self.metrics if metric.predictions == GENERATED for name in metric.names(classes)}
        if task.text_report is not None:
            texts |= {name for sources in sets.values() for name in task.reports_on(sources, data)} - task.reports
        for tag, names in self.tags.items():
            first, *others = (found[name] for name in names)
            found[tag] = [name for name in first if name not in texts and all(name in other for other in others)]
        return [f"validation/{name_of_set}/{name}" for name_of_set, names in found.items() for name in names]

    def check_best(self, best: Best | None, task: TaskSpec, data: Data) -> None:
        """Raise ValueError where no evaluation computes the metric of `checkpoint.best`, or where `patience` waits in
        vain."""
        if self.patience is not None and best is None:
            raise ValueError(
                "evaluate.patience counts evaluations that are no better than the best: set checkpoint.best"
                ' = { metric = "validation/SET/NAME", mode = "min" }'
            )
        if self.patience is not None and self.every is None:
            raise ValueError("evaluate.patience counts the evaluations of evaluate.every: set it too")
        if best is None:
            return
        known = self.metric_names(task, data)
        if best.metric not in known:
            if not known:
                raise ValueError("checkpoint.best needs a validation set: set data.held_out or add [[data.validation]]")
            near = get_close_matches(best.metric, known, n=5, cutoff=0.0)
            more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
            raise ValueError(
                f'checkpoint.best.metric = "{best.metric}" is never computed: evaluations of'
                f' task.type = "{task.type}" compute {", ".join(near)}{more}'
            )
