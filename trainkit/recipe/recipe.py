"""A whole recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.families.transformer import Pretrained, Transformer
from trainkit.recipe.optimizers.spec import Optimizer
from trainkit.recipe.sections.adapter import Adapter, check_adapter, trained_shapes
from trainkit.recipe.sections.average import Average
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.document_spec import ChatTemplateChoice
from trainkit.recipe.sections.evaluate import Evaluate
from trainkit.recipe.sections.guard import Guard
from trainkit.recipe.sections.model import Model
from trainkit.recipe.sections.mup import Mup
from trainkit.recipe.sections.outputs import Checkpoint, Export, Sample, Statistics, Track
from trainkit.recipe.sections.run import Plugins, Run
from trainkit.recipe.sections.schedule import Cosine
from trainkit.recipe.sections.schedule_spec import Schedule
from trainkit.recipe.sections.schedules import Schedules
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.stages import Stages
from trainkit.recipe.sections.sweep import Sweep
from trainkit.recipe.sections.task import CausalLM, Task
from trainkit.recipe.sections.tokenizer import Tokenizer
from trainkit.recipe.sections.train import Parallel, Precision, Train
from trainkit.recipe.spec import MissingKey, Spec
from trainkit.recipe.union import members_at

#: Keys that came after fingerprints were first recorded, with their defaults, which change no fingerprint: a sweep that
#: an earlier version began can be continued.
_LATER: dict[str, dict[str, Any]] = {
    "evaluate": {"tags": {}},
    "run": {"average_from": False},
    "optimizer": {"compute": "float32"},
    "schedules": dict.fromkeys(("momentum", "beta2", "batch_size", "batch_tokens", "sequence_length", "mixture")),
    "task": {"likelihood_of_prompt": False},
    "tokenizer": {"new_tokens": []},
}
#: Tables that came later; with their defaults they change no fingerprint.
_LATER_TABLES = ("guard",)


class Recipe(Spec):
    """A whole recipe: its tables as specs. Two equal recipes ask for the same training."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    """Version of the recipe language."""
    plugins: Plugins | None = None
    """If the section is absent, only trainkit's own types are known."""
    run: Run = Run.model_construct()
    model: Model
    adapter: Adapter | None = None
    """If the section is absent, the whole model is trained."""
    tokenizer: Tokenizer | None = None
    """Needed where documents are text."""
    task: Task = CausalLM.model_construct()
    data: Data
    train: Train
    optimizer: Optimizer
    mup: Mup | None = None
    """If the section is absent, learning rates and random weights do not depend on the model's width."""
    schedule: Schedule = Cosine.model_construct()
    schedules: Schedules | None = None
    """If the section is absent, only the learning rate has a schedule."""
    average: Average | None = None
    """If the section is absent, parameters are not averaged."""
    precision: Precision = Precision.model_construct()
    parallel: Parallel = Parallel.model_construct()
    guard: Guard = Guard.model_construct()
    checkpoint: Checkpoint = Checkpoint.model_construct()
    export: Export | None = None
    """If the section is absent, nothing is exported during training."""
    evaluate: Evaluate = Evaluate.model_construct()
    sample: Sample | None = None
    """If the section is absent, there are no samples."""
    statistics: Statistics = Statistics.model_construct()
    track: Track = Track.model_construct()
    sweep: Annotated[Sweep | None, Field(exclude=True)] = None
    """What `trainkit sweep` tries. It is no part of a run: a run's own recipe and its fingerprint omit it."""

    @model_validator(mode="after")
    def _text_has_a_tokenizer(self) -> Recipe:
        if self.data.is_text and self.tokenizer is None:
            raise MissingKey("tokenizer", "the documents are text")
        if not self.data.is_text and self.train.tokens is not None:
            raise ValueError("train.tokens counts tokens, and the documents have none: give steps or epochs")
        return self

    @model_validator(mode="after")
    def _a_timed_run_can_end_in_time(self) -> Recipe:
        self.train.check_schedules(self.schedule, self.optimizer_schedules)
        return self

    @model_validator(mode="after")
    def _the_optimizer_has_what_is_scheduled(self) -> Recipe:
        if self.schedules is not None:
            self.schedules.check_optimizer(self.optimizer, partial(members_at, type(self), "optimizer"))
        return self

    @model_validator(mode="after")
    def _the_batches_can_change(self) -> Recipe:
        if self.schedules is not None:
            self.schedules.check_batches(self.train, self.data, shifted=self.task.shifted)
        return self

    @model_validator(mode="after")
    def _conversations_have_a_chat_template(self) -> Recipe:
        """A tokenizer that the run trains has none beside it; whether another has one is known once it is read."""
        if self.tokenizer is None or self.tokenizer.train is None:
            return self
        found = False
        for name, sources in (("train", self.data.train), ("validation", self.data.validation)):
            for number, source in enumerate(sources):
                document = document_of(source)
                if document and document.chat_template and document.chat_template == ChatTemplateChoice():
                    raise ValueError(
                        f'data.{name}.{number}.document: type = "{document.type}" needs a chat template, which'
                        ' tokenizer.train does not make: name a file that holds one with template = "chat.jinja"'
                    )
                found = found or bool(name == "train" and document and document.chat_template)
        if self.sample is not None:
            self.sample.check_template(found)
        return self

    @model_validator(mode="after")
    def _examples_fit_the_model(self) -> Recipe:
        positions = self.model.context_length if isinstance(self.model, Transformer) else None
        length = self.data.positions
        if positions is not None and positions < length:
            raise ValueError(
                f"data.sequence_length = {length} is more than model.context_length = {positions}:"
                f" make the first at most {positions} or the second at least {length}"
            )
        return self

    @model_validator(mode="after")
    def _the_adapter_fits_the_model(self) -> Recipe:
        if self.adapter is not None:
            self.run.check_adapter()
            check_adapter(self.adapter, self.model)
            if self.tokenizer is not None and self.tokenizer.new_tokens:
                raise ValueError(
                    "tokenizer.new_tokens need rows of the embedding that learn, and [adapter] trains none: all of them"
                    " would mean the same; leave out one of the two"
                )
        return self

    @model_validator(mode="after")
    def _the_task_fits(self) -> Recipe:
        models = partial(members_at, type(self), "model")
        self.task.check_model(self.model, models)
        self.task.check_tokenizer(self.tokenizer)
        if "task" in self.model_fields_set:  # without a [task] section, documents for another task can still be cached
            try:
                self.task.check_documents(self.data.train)
            except TrainkitError as error:
                raise ValueError(f"{error.where}: {error.problem}; {error.hint}") from None
            self.task.check_sizes(self.model, self.data)
        head = self.task.head(self.data)
        self.task.check_head(head, self.model, models)
        if self.sample is not None:
            self.sample.check_model(self.model, head, self.task)
        self.__dict__["model"] = self.model.with_head(head)  # a part of no recipe, and so not set by anybody else
        return self

    @model_validator(mode="after")
    def _metrics_fit_the_task(self) -> Recipe:
        self.evaluate.check_tags(self.data)
        self.evaluate.check_metrics(self.task, self.data)
        self.evaluate.check_best(self.checkpoint.best, self.task, self.data)
        return self

    @model_validator(mode="after")
    def _statistics_fit_the_model(self) -> Recipe:
        self.statistics.check_model(self.model)
        return self

    @model_validator(mode="after")
    def _the_sweep_has_a_metric(self) -> Recipe:
        if self.sweep is not None:
            self.sweep.check_metric(self.evaluate, self.task, self.data, self.train)
        return self

    @model_validator(mode="after")
    def _the_optimizer_fits_the_parameters(self) -> Recipe:
        if self.optimizer.groups or self.optimizer.depends_on_shapes:
            shapes = trained_shapes(self.model, self.adapter, vocab_size=1, sequence_length=self.data.positions)
            self.optimizer.check_parameters(shapes)
        return self

    @model_validator(mode="after")
    def _the_adapter_scales_no_rate_that_belongs_to_a_rule(self) -> Recipe:
        if self.adapter is not None and self.adapter.learning_rate_ratio != 1:
            shapes = trained_shapes(self.model, self.adapter, vocab_size=1, sequence_length=self.data.positions)
            self.adapter.check_rates(self.optimizer.owner(name, shape) for name, shape in shapes.items())
        return self

    @model_validator(mode="after")
    def _the_average_fits(self) -> Recipe:
        if self.average is not None:
            self.average.check(self.train, self.optimizer)
        return self

    @model_validator(mode="after")
    def _mup_fits_the_model_and_the_optimizer(self) -> Recipe:
        if self.mup is not None:
            keys = {
                "[adapter]": self.adapter,
                "model.pretrained": self.base_checkpoint,
                "run.parameters_from": self.run.parameters_from,
            }
            begins = next((key for key, value in keys.items() if value is not None), None)
            self.mup.check(self.model, self.optimizer, positions=self.data.positions, begins_with=begins)
        return self

    @model_validator(mode="after")
    def _the_export_is_of_what_there_is(self) -> Recipe:
        if self.export is not None:
            self.export.check(self.model, self.adapter, written_as=self.export_format)
        return self

    @model_validator(mode="after")
    def _the_precision_fits(self) -> Recipe:
        self.precision.check(self.model, self.adapter, compares=self.needs_exact_gradients)
        return self

    @property
    def language_model(self) -> Transformer:
        """Return the model, which has been checked to be one of text."""
        assert isinstance(self.model, Transformer), self.model.type
        return self.model

    @property
    def text_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of a recipe whose documents are text."""
        assert self.tokenizer is not None
        return self.tokenizer

    @property
    def base_checkpoint(self) -> str | None:
        """Return the checkpoint that the model's weights begin with; None if they begin at random."""
        return self.model.pretrained if isinstance(self.model, Pretrained) else None

    @property
    def evaluates_average(self) -> bool:
        """Return whether evaluations, samples and exports use the averages of the parameters."""
        if self.average is None:
            return self.optimizer.averages_itself is not None
        return self.average.evaluate

    @property
    def keeps_average(self) -> bool:
        """Return whether the state has averages of the parameters."""
        return self.average is not None or self.optimizer.averages_itself is not None

    @property
    def export_format(self) -> Literal["hf", "peft"]:
        """Return the export format, with `auto` resolved."""
        if self.export is None or self.export.format == "auto":
            return "hf" if self.adapter is None or self.model.head.kind != "tokens" else "peft"
        return self.export.format

    @property
    def needs_exact_gradients(self) -> str | None:
        """Return the rule, wrapper or statistic that compares gradients at parameters too near to one another for 16
        bits; None if there is none."""
        return self.optimizer.needs_exact_gradients or ("hessian" if "hessian" in self.statistics.in_step else None)

    @property
    def optimizer_schedules(self) -> dict[str, Schedule]:
        """Return the schedules that scale values of the optimizer beside its learning rate, by those values' names."""
        return self.schedules.of_optimizer if self.schedules else {}

    @property
    def batch_sizes(self) -> Stages:
        """Return the sequences of each step."""
        staged = self.schedules.batch_sizes(self.data.positions) if self.schedules else None
        return Stages(staged or ((0, self.train.batch_size),))

    @property
    def step_lengths(self) -> Stages:
        """Return the length of the sequences of each step."""
        staged = self.schedules.sequence_length if self.schedules else None
        return Stages(staged or ((0, self.data.positions),))

    def check_lengths(self, steps: int) -> None:
        """Raise TrainkitError if the phases of a schedule are longer than the run of `steps`."""
        self.schedule.check_lengths(steps)
        if self.schedules is not None:
            self.schedules.check_lengths(steps, self.data.positions)

    def fingerprint(self) -> str:
        """Return a hash of every value; two recipes with the same fingerprint ask for the same training."""
        import hashlib  # loads OpenSSL, which `trainkit check` does not need

        values = self.model_dump(mode="json", by_alias=True)
        for section, later in _LATER.items():
            if values[section]:
                values[section] = _without(later, values[section])
        for group in values["optimizer"].get("groups", ()):
            if group["optimizer"]:
                group["optimizer"] = _without(_LATER["optimizer"], group["optimizer"])
        for table in _LATER_TABLES:
            if getattr(self, table) == type(self).model_fields[table].default:
                del values[table]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(later: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a section, less those of `later` that are as they are there."""
    return {key: value for key, value in values.items() if key not in later or value != later[key]}
