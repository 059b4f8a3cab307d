"""[sweep]: which values of other keys `trainkit sweep` tries. It is no part of a run's recipe."""

from __future__ import annotations

import json
import math
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.evaluate import Evaluate
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.sections.train import Train
from trainkit.recipe.spec import Integer, Number, Seed, Spec, Width
from trainkit.redaction import redact

SweptValue: TypeAlias = bool | Integer | Number | str | tuple[bool | Integer | Number | str, ...]

#: The most runs of a grid.
MOST_TRIALS = 100_000
#: Keys that a sweep gives each trial itself, and tables that are no part of a trial.
_OWN = ("run.name", "run.directory", "sweep", "mode", "extends", "schema")


class SweptKey(Spec):
    """The values of one key: a list of them, or a range."""

    values: Annotated[tuple[SweptValue, ...], Field(min_length=1)] | None = None
    """The values to try. Without them, give `low` and `high`."""
    low: Integer | Number | None = None
    """Lowest value of a range. If it and `high` are whole numbers, so are all values."""
    high: Integer | Number | None = None
    """Highest value of a range."""
    log: bool = False
    """Whether a range is divided by factors rather than by differences, as learning rates are."""
    points: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    """How many values of the range a grid tries, from `low` to `high`. If absent, it tries every whole number."""

    @model_validator(mode="after")
    def _is_a_list_or_a_range(self) -> SweptKey:
        if self.values is not None:
            if self.model_fields_set - {"values"}:
                raise ValueError("values is a list and low, high, log and points are a range: give one of the two")
            if len(set(map(repr, self.values))) < len(self.values):
                raise ValueError("values has the same value twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give values = [...], or low and high")
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be less than high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log = true needs a range above 0, found low = {self.low}")
        return self

    @property
    def count(self) -> int:
        """Return how many values a grid tries."""
        if self.values is not None:
            return len(self.values)
        assert self.low is not None and self.high is not None
        return self.points or int(self.high) - int(self.low) + 1

    @property
    def is_whole(self) -> bool:
        """Return whether this is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


class Sweep(Spec):
    """What `trainkit sweep` tries: values of any keys, in runs of this recipe that are otherwise the same."""

    parameters: dict[str, SweptKey]
    """For each key of the recipe, in quotes, its values: `"optimizer.learning_rate" = { low = 1e-4, high = 1e-2, log =
    true }` or `"run.seed" = { values = [0, 1, 2] }`."""
    method: Literal["grid", "random", "tpe"] = "grid"
    """`grid` tries every combination; `random` draws each value from its list or range (Bergstra & Bengio 2012); `tpe`
    draws values like those of the best trials so far (tree-structured Parzen estimator, Bergstra et al. 2011), and
    needs the extra `optuna`."""
    trials: Width | None = None
    """How many runs `random` and `tpe` make. It may be raised later to continue the sweep."""
    seed: Seed = 0
    """Seed of `random` and `tpe`; `run.seed` of the trials does not depend on it."""
    startup: Width = 10
    """How many trials `tpe` draws at random before it learns from them, and how many must have ended before `median`
    stops one."""
    prune: Literal["median", "hyperband"] | None = None
    """How `tpe` stops trials that look bad at an evaluation on the way, or at a tenth of the steps where trials are
    ranked by the training loss. `median`: worse than the median of the earlier trials there. `hyperband`: not among the
    best third at one of its rungs (Li et al. 2018). If absent, all trials run to their end."""
    metric: str | None = None
    """What the trials are ranked by, at the end of each: `validation/SET/NAME` or `train/loss`. If absent, that of
    `checkpoint.best`, or the loss of the first validation set, or without one the training loss."""
    mode: Literal["min", "max"] | None = None
    """Whether the lowest or the highest value is the best. If absent, that of `checkpoint.best`, or the lowest."""
    at_once: Width = 1
    """How many trials run at the same time. They divide the GPUs of this machine; CPUs they share."""

    @field_validator("parameters", mode="before")
    @classmethod
    def _quotes_keys(cls, parameters: Any) -> Any:
        for section, keys in parameters.items() if isinstance(parameters, dict) else ():
            is_section = isinstance(keys, dict) and "." not in section
            if is_section and keys and not keys.keys() & SweptKey.model_fields.keys():
                key = next(iter(keys))
                raise ValueError(
                    f"sweep.parameters.{section}.{key}: write a swept key in quotes:"
                    f' "{section}.{key}" = {{ values = [...] }}'
                )
        return parameters

    @field_validator("parameters")
    @classmethod
    def _names_keys(cls, parameters: dict[str, SweptKey]) -> dict[str, SweptKey]:
        if not parameters:
            raise ValueError('there is nothing to sweep: add [sweep.parameters."optimizer.learning_rate"]')
        for key in parameters:
            if any(key == own or key.startswith(f"{own}.") for own in _OWN):
                raise ValueError(f'sweep.parameters: "{key}" cannot be swept: each trial has its own')
        for key, swept in parameters.items():
            pairs = (f"{key.rpartition('.')[2]} = {json.dumps(value)}" for value in swept.values or ())
            if any(pair != redact(pair) for pair in pairs):
                raise ValueError(f'sweep.parameters: a value of "{key}" holds a secret, which the sweep would record')
        return parameters

    @model_validator(mode="after")
    def _the_method_fits(self) -> Sweep:
        if self.method == "grid" and self.trials is not None:
            raise ValueError('trials goes with method = "random" or "tpe": a grid tries every combination')
        if self.method != "grid" and self.trials is None:
            raise ValueError(f'method = "{self.method}" needs trials, the number of runs')
        for key in ("startup", "prune"):
            if self.method != "tpe" and key in self.model_fields_set:
                raise ValueError(f'{key} goes with method = "tpe", found method = "{self.method}"')
        for key, swept in self.parameters.items():
            if self.method != "grid" and swept.points is not None:
                raise ValueError(f'sweep.parameters: points of "{key}" goes with method = "grid"')
            listed = swept.values is not None or swept.points is not None or (swept.is_whole and not swept.log)
            if self.method == "grid" and not listed:
                raise ValueError(
                    f'sweep.parameters: a grid needs to know how many values of "{key}" to try: give points'
                )
        if (
            self.method == "grid"
            and (trials := math.prod(swept.count for swept in self.parameters.values())) > MOST_TRIALS
        ):
            raise ValueError(
                f"sweep.parameters: a grid of {trials:,} runs is more than {MOST_TRIALS:,}: give points, or a method of"
                " fewer trials"
            )
        return self

    def check_metric(self, evaluate: Evaluate, task: TaskSpec, data: Data, train: Train) -> None:
        """Raise ValueError if the trials never compute the metric, or `prune` finds nothing to compare on the way."""
        known = ["train/loss", *evaluate.metric_names(task, data)]
        if self.metric is not None and self.metric not in known:
            near = ", ".join(get_close_matches(self.metric, known, n=5, cutoff=0.0))
            raise ValueError(f'sweep.metric = "{self.metric}" is never computed: the trials compute {near}')
        by_validation = self.metric != "train/loss" if self.metric else bool(data.validation_names)
        if self.prune is not None and by_validation and evaluate.every is None:
            raise ValueError(
                f'sweep.prune = "{self.prune}" compares trials at evaluations on the way, and there are none: set'
                " evaluate.every"
            )
        if self.prune is not None and not by_validation and train.is_timed:
            raise ValueError(
                f'sweep.prune = "{self.prune}" compares trials by train/loss at tenths of the steps, and how many these'
                " are is unknown with train.until and train.duration: rank the trials by a validation set"
            )
