"""[train], [precision] and [parallel]: how long, in what batches, in which numbers and on which devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.schedule_spec import NEVER, Schedule
from trainkit.recipe.spec import Count, LargeCount, NotNegative, Positive, Spec, Width

#: The hours, minutes and seconds of a duration; all are optional, but it must have one of them.
_DURATION = re.compile(r"(?=.)(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
#: How `until` is stored.
_MINUTES, _SECONDS = "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"


class Train(Spec):
    """How long the run trains, and in what batches."""

    steps: Count | None = None
    """Length of the run in steps (optimiser updates); beside `until` or `duration`, the most that it may take."""
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Length of the run in passes over the training data, which may be a fraction."""
    tokens: LargeCount | None = None
    """Length of the run in tokens, rounded up to whole steps. Padding does not count: if examples are padded (every
    encoding except `concatenate`), the average batch is used, so all data is tokenised before the first step."""
    until: str | None = None
    """When the run ends, in local time: `"08:00"` (the next one, which the run keeps when it is resumed) or
    `"2030-01-31 08:00"`. The decay of the schedule `wsd` begins early enough, by the measured speed, to end then.
    `steps` is needed too."""
    duration: str | None = None
    """How long the run trains, such as `"9h"`, `"90m"` or `"1h30m"`; otherwise like `until`. Attempts count from their
    first step to their end or, if they were killed, to their newest checkpoint."""
    batch_size: Count
    """Sequences per step on all devices together."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    """Sequences that one device processes at once; the rest is accumulated. `auto` is the largest number that fits."""
    remat: Literal["auto"] | Remat = "auto"
    """What the backward pass recomputes to save memory: nothing (`none`); everything except products with parameters
    (`dots`); each block from its input (`blocks`); the same with the inputs in host memory (`offload`, for GPU and
    TPU). `auto` is the fastest one that fits."""
    max_grad_norm: NotNegative = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns this off."""

    @field_validator("until")
    @classmethod
    def _is_a_time(cls, until: str | None) -> str | None:
        return None if until is None else _date_and_time(until, after=datetime.now())

    @field_validator("duration")
    @classmethod
    def _is_a_duration(cls, duration: str | None) -> str | None:
        if duration is not None and not _seconds(duration) > 0:
            raise ValueError(
                'expected a duration above 0 in hours, minutes and seconds, such as "9h", "90m" or "1h30m"'
            )
        return duration

    @property
    def is_timed(self) -> bool:
        """Whether the run ends at a time rather than after a number of steps."""
        return self.until is not None or self.duration is not None

    def with_steps(self, steps: int) -> Train:
        """Return the same for a run of so many steps, however its length is given."""
        others = dict.fromkeys(("epochs", "tokens", "until", "duration"))
        return self.model_copy(update={"steps": steps, **others})

    def seconds_left(self, *, now: datetime, spent: float) -> float:
        """Return the seconds until the end of a timed run that has trained for `spent` seconds."""
        if self.until is not None:
            return (datetime.fromisoformat(self.until) - now).total_seconds()
        assert self.duration is not None
        return _seconds(self.duration) - spent

    def check_time(self, now: datetime) -> None:
        """Raise TrainkitError if the time at which the run ends is over."""
        if self.until is not None and self.seconds_left(now=now, spent=0) <= 0:
            raise TrainkitError(
                f"train.until = {self.until!r} is in the past: it is {now.strftime(_SECONDS)} now",
                where="train.until",
                hint='give a later date and time, or a time alone, such as "08:00", for the next one',
            )

    def check_schedules(self, schedule: Schedule, others: Mapping[str, Schedule]) -> None:
        """Raise ValueError if the run ends at a time, and its schedule, or another one, needs a number of steps."""
        if not self.is_timed:
            return
        key = "until" if self.until is not None else "duration"
        if schedule.decay_start(2, ordered=NEVER) is None:
            raise ValueError(
                f'train.{key} needs a schedule whose decay can be moved, and schedule.type = "{schedule.type}" has'
                ' none: write [schedule] type = "wsd"'
            )
        if others:
            raise ValueError(
                f"schedules.{next(iter(others))} needs a number of steps, and train.{key} has none:"
                " leave one of them out"
            )
        if isinstance(schedule.warmup, float) and schedule.warmup:
            raise ValueError(
                f"schedule.warmup = {schedule.warmup} is a fraction of the run, whose steps are unknown with"
                f" train.{key}: give it in steps, such as warmup = 100"
            )

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        if self.is_timed:
            self._check_timed()
            return self
        given = [key for key in ("steps", "epochs", "tokens") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"give exactly one of steps, epochs and tokens; found {found}")
        return self

    def _check_timed(self) -> None:
        key = "until" if self.until is not None else "duration"
        for other in ("duration", "epochs", "tokens"):
            if other != key and getattr(self, other) is not None:
                raise ValueError(f"{key} = {getattr(self, key)!r} and {other} contradict each other: give one of them")
        if self.steps is None:
            raise ValueError(f"{key} needs steps too: the most that the run may take, such as steps = 1000000")


class Precision(Spec):
    """The dtypes of parameters and of matrix products."""

    params: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which parameters are stored."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """How updated parameters are rounded to bfloat16: `nearest` loses small updates, `stochastic` keeps them on
    average. Only for `params = "bfloat16"` without an adapter."""
    compute: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    """Dtype in which matrices are multiplied; `auto` is bfloat16 on GPU and TPU (float16 on NVIDIA's before Ampere) and
    float32 on CPU. Softmax, norms and losses are always float32. float16 adapts a scale of the loss to overflows; fp8
    is used in linear layers, with bfloat16 for everything else."""

    def check(self, model: ModelSpec, adapter: Adapter | None, *, compares: str | None) -> None:
        """Raise ValueError if fp8 is asked for, and does not reach most of the model or is too coarse.

        Args:
            compares: what compares gradients at parameters that differ little; None if nothing does.
        """
        if self.compute != "fp8":
            return
        if not isinstance(model, Transformer):
            raise ValueError(
                f'precision.compute = "fp8" is for transformers, and not for model.type = "{model.type}"'
                f' ({model.kind}): write "bfloat16"'
            )
        if model.has_experts:
            raise ValueError(
                'precision.compute = "fp8" leaves experts, most of the work, as they are: write "bfloat16"'
            )
        if adapter is not None and adapter.base == "nf4":
            raise ValueError('precision.compute = "fp8" does not work with adapter.base = "nf4": write "bfloat16"')
        if compares is not None:
            raise ValueError(
                f'precision.compute = "fp8" is too coarse for "{compares}", which compares gradients at parameters'
                ' that differ little: write "bfloat16"'
            )


class Parallel(Spec):
    """The devices that train, and how they share the batch and the state."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Devices to train on. `auto` takes the fastest kind found; any other value is an error if it is missing."""
    data: Width | Literal["auto"] = "auto"
    """Replicas of the model, each trained on a part of the batch. `auto` uses every device that `fsdp` leaves."""
    fsdp: Width = 1
    """Devices that share the parameters and optimiser state of a replica (ZeRO-3, Rajbhandari et al. 2020)."""
    zero1: bool = False
    """Whether the optimiser state is divided among replicas (ZeRO-1, the same paper): less memory for a little more
    communication."""
    peak_tflops: Positive | None = None
    """Peak speed of one device in the compute dtype, in 10^12 FLOP/s, for MFU. If absent, trainkit looks it up."""


def _seconds(duration: str) -> float:
    """Return a duration such as `1h30m` in seconds; 0 if it is none."""
    found = _DURATION.fullmatch(duration.replace(" ", ""))
    return (
        sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    )


def _date_and_time(text: str, *, after: datetime) -> str:
    """Return a date and time as it is, and a time as the next one `after` that moment. Raises ValueError."""
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            at = datetime.strptime(text, form).time()
        except ValueError:
            continue
        found = datetime.combine(after.date(), at)
        return (found if found > after else found + timedelta(days=1)).strftime(_SECONDS if at.second else _MINUTES)
    for form in (_MINUTES, _SECONDS):
        for separator in (" ", "T"):
            try:
                return datetime.strptime(text, form.replace(" ", separator)).strftime(form)
            except ValueError:
                continue
    raise ValueError('expected a local time such as "08:00", or a date and time such as "2030-01-31 08:00"')
