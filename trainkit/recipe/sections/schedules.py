"""[schedules]: what changes over the run beside the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from trainkit.errors import TrainkitError
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.data import Concatenate, Data, Pad
from trainkit.recipe.sections.schedule_spec import Schedule
from trainkit.recipe.sections.stages import (
    Points,
    StageList,
    check_begins,
    check_mixture,
    check_stages,
    mixture_stages,
    token_stages,
)
from trainkit.recipe.sections.train import Train
from trainkit.recipe.spec import Spec, type_of


class Schedules(Spec):
    """What changes over the run, beside the learning rate."""

    weight_decay: Schedule | None = None
    """Scales every weight decay at each step, as `[schedule]` scales the learning rate: warm-up and all, so give
    `warmup = 0` for one that begins at its peak."""
    momentum: Schedule | None = None
    """Scales the decay of the average of the gradients at each step, in the same way: `momentum` of the optimizer, or
    the first of its `betas`. Corrections of an average's start at zero use the value of the step, as in torch."""
    beta2: Schedule | None = None
    """Scales the decay of the average of squares at each step, in the same way: usually the second of `betas`."""
    batch_size: StageList | None = None
    """The sequences of a step, by the steps after which they change: `[[0, 8], [1000, 16]]` begins with 8, and has 16
    after 1,000 steps. The largest is `train.batch_size`. No document is left out or seen twice where it changes."""
    batch_tokens: StageList | None = None
    """In place of `batch_size`, the tokens of a step, by the tokens after which they change: `[[0, 4096], [1000000,
    8192]]`. They are multiples of `data.sequence_length`, and the largest is that times `train.batch_size`. A change
    waits for the end of a step, and each stage has one at least. Only for `data.encoding.type = "concatenate"`, whose
    sequences have no padding."""
    sequence_length: StageList | None = None
    """The length of sequences, in steps as `batch_size`: `[[0, 64], [500, 256]]`. The largest is
    `data.sequence_length`, which the others divide: until then each example is cut into sequences so long, so that a
    step has the same tokens in the same order, and the same padding. Only for tasks that predict the next token, and
    without `data.encoding.buckets`."""
    mixture: dict[str, Points] | None = None
    """Factors of the weights of sources, by their names, as points of straight lines: `web = [[0, 1.0], [5000, 0.2]]`
    lets the weight of `web` fall to a fifth in 5,000 steps. Sources that are not named keep their weights."""

    @property
    def of_optimizer(self) -> dict[str, Schedule]:
        """Return the schedules that scale values of the optimizer, by the names of these values."""
        found = {"weight_decay": self.weight_decay, "momentum": self.momentum, "beta2": self.beta2}
        return {name: schedule for name, schedule in found.items() if schedule is not None}

    @property
    def batch_size_key(self) -> str | None:
        """Return the key that changes the size of batches; None if it does not change."""
        given = [key for key in ("batch_size", "batch_tokens") if getattr(self, key) is not None]
        return f"schedules.{given[0]}" if given else None

    def batch_sizes(self, length: int) -> StageList | None:
        """Return the sequences of `length` in a step, by the updates before they change; None if they do not."""
        return self.batch_size or (self.batch_tokens and token_stages(self.batch_tokens, length))

    def check_lengths(self, steps: int, length: int) -> None:
        """Raise TrainkitError if something changes after the last of so many steps with sequences of `length`."""
        for name, schedule in self.of_optimizer.items():
            schedule.check_lengths(steps, at=f"schedules.{name}")
        sizes = "batch_tokens" if self.batch_tokens else "batch_size"
        stages = {sizes: self.batch_sizes(length) or (), "sequence_length": self.sequence_length or ()}
        changes = {name: [begin + 1 for begin, _ in staged] for name, staged in stages.items()}
        changes |= {f"mixture.{name}": [step for step, _ in points] for name, points in (self.mixture or {}).items()}
        for name, at in changes.items():
            if at and at[-1] > steps:
                raise TrainkitError(
                    f"schedules.{name} changes at step {at[-1]:,}, and the run has {steps:,}",
                    where=f"schedules.{name}",
                    hint="fewer tokens, or a longer run"
                    if name == "batch_tokens"
                    else f"steps up to {steps:,}, or a longer run",
                )

    def check_batches(self, train: Train, data: Data, *, shifted: bool) -> None:
        """Raise ValueError if the batches of the recipe cannot change as this says.

        Args:
            shifted: whether the targets of the task are the next tokens.
        """
        self._check_batch_size(train, data)
        self._check_sequence_length(data, shifted=shifted)
        self._check_mixture(data)

    def _check_batch_size(self, train: Train, data: Data) -> None:
        if self.batch_size_key is None:
            return
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError("schedules.batch_size and schedules.batch_tokens contradict each other: give one of them")
        if isinstance(data.encoding, Pad) and data.encoding.buckets:
            raise ValueError(
                f"{self.batch_size_key}: with data.encoding.buckets examples are divided into batches of one size"
                " before training: leave one of them out"
            )
        if self.batch_size is not None:
            check_stages("batch_size", self.batch_size, largest=train.batch_size, of="train.batch_size")
        if self.batch_tokens is not None:
            self._check_batch_tokens(self.batch_tokens, train, data)

    def _check_batch_tokens(self, stages: StageList, train: Train, data: Data) -> None:
        if not (data.is_text and isinstance(data.encoding, Concatenate) and data.sequences == 1):
            raise ValueError(
                "schedules.batch_tokens: how many tokens a batch has is known beforehand only for"
                ' data.encoding.type = "concatenate", as other examples have padding: count sequences, with'
                " schedules.batch_size"
            )
        check_begins("batch_tokens", stages, unit="token")
        length = data.positions
        if wrong := [tokens for _, tokens in stages if tokens % length]:
            near = [n for n in (wrong[0] // length * length, -(-wrong[0] // length) * length) if n]
            raise ValueError(
                f"schedules.batch_tokens: {wrong[0]} is no multiple of data.sequence_length = {length}: write"
                f" {' or '.join(map(str, near))}"
            )
        most = max(tokens for _, tokens in stages)
        if most != train.batch_size * length:
            raise ValueError(
                f"schedules.batch_tokens reaches {most}, which is {most // length} sequences, and train.batch_size ="
                f" {train.batch_size}, for which memory is planned: make them the same"
            )

    def _check_sequence_length(self, data: Data, *, shifted: bool) -> None:
        if self.sequence_length is None:
            return
        if isinstance(data.encoding, Pad) and data.encoding.buckets:
            raise ValueError(
                "schedules.sequence_length: with data.encoding.buckets batches have several lengths already: leave one"
                ' of them out, or write data.encoding = { type = "pack" }'
            )
        if not (data.is_text and data.sequences == 1 and shifted):
            raise ValueError(
                "schedules.sequence_length cuts sequences into parts, from which only tasks that predict the next token"
                ' of single sequences can learn, such as task.type = "causal-lm": leave it out'
            )
        check_stages("sequence_length", self.sequence_length, largest=data.positions, of="data.sequence_length")
        if wrong := [length for _, length in self.sequence_length if data.positions % length]:
            raise ValueError(
                f"schedules.sequence_length: {wrong[0]} does not divide data.sequence_length = {data.positions}"
            )

    def check_optimizer(self, optimizer: OptimizerSpec, rules: Callable[[], Sequence[type[OptimizerSpec]]]) -> None:
        """Raise ValueError if the optimizer lacks a value to scale, or if a scaled average would take in nothing.

        Args:
            rules: returns the specs of all optimizers.
        """
        for name, schedule in self.of_optimizer.items():
            if not optimizer.scheduled_values(name):
                having = (rule for rule in rules() if name == "weight_decay" or name in rule.schedulable)
                why = f": {optimizer.unscheduled[name]}" if name in optimizer.unscheduled else ""
                raise ValueError(
                    f'schedules.{name}: optimizer.type = "{optimizer.type}" has nothing to scale{why}; those that have'
                    f" are {', '.join(map(type_of, having))}"
                )
            _check_scaled(name, schedule, optimizer.scheduled_values(name))

    def _check_mixture(self, data: Data) -> None:
        names = [source.name for source in data.train if source.name is not None]
        for name, points in (self.mixture or {}).items():
            if name not in names:
                raise ValueError(
                    f'schedules.mixture.{name}: no [[data.train]] has name = "{name}" and a weight; those that have are'
                    f" {', '.join(names) or 'none'}"
                )
            steps = [step for step, _ in points]
            if any(after <= before for before, after in pairwise(steps)):
                raise ValueError(f"schedules.mixture.{name} must list its steps in rising order, found {steps}")
        if self.mixture:
            check_mixture(mixture_stages(data.train, self.mixture), key=f"schedules.mixture.{next(iter(self.mixture))}")


def _check_scaled(name: str, schedule: Schedule, values: Mapping[str, float]) -> None:
    """Raise ValueError if all values are 0, or if the decay of an average would reach 1."""
    if not any(values.values()):
        raise ValueError(f"schedules.{name} scales optimizer.{next(iter(values))}, which is 0: set it too")
    greatest = schedule.greatest_ratio
    for key, value in values.items():
        if name != "weight_decay" and greatest * value >= 1:
            raise ValueError(
                f"schedules.{name} multiplies optimizer.{key} = {value:g} by up to {greatest:g}, and the product must"
                f" stay below 1: {greatest:g} x {value:g} = {greatest * value:g}"
            )
