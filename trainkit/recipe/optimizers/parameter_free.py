"""Optimizers that find for themselves what is usually tuned: the schedule, or the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.schedulable import BETAS
from trainkit.recipe.optimizers.spec import Decay, OptimizerSpec
from trainkit.recipe.spec import Eps, LearningRate, PositiveRatio, Ratio, WeightDecay


class ScheduleFree(OptimizerSpec):
    """Averages of iterates in place of a schedule (Defazio et al. 2024, arXiv:2405.15682).

    Use it with `schedule.type = "constant"` and a warm-up. Gradients are taken between the iterates and their average;
    the average is the model that is evaluated, sampled from and exported, so there is no section `[average]`.
    """

    type: Literal["schedule-free"]
    base: Literal["adamw", "sgd"] = "adamw"
    """The rule of the iterates: gradients divided by the root of the average of their squares, or as they are."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Where gradients are taken: 0 at the iterate, near 1 near the average; and the decay of the squares (adamw)."""
    eps: Eps = 1e-8
    """Added to the root of the squares (adamw)."""
    power: Ratio = 0.0
    """Iterate t has the weight t^power in the average: above 0 later ones count more."""
    rate_power: Ratio = 2.0
    """Iterates also have the weight of the greatest learning rate so far to this power."""
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.schedule_free"
    finish: ClassVar[str | None] = "trainkit.optim.schedule_free:average"
    own_average: ClassVar[str | None] = "trainkit.optim.schedule_free:averages"
    owns_rate: ClassVar[bool] = True
    schedulable: ClassVar[Mapping[str, str]] = {"beta2": "betas.1"}
    unscheduled: ClassVar[Mapping[str, str]] = {
        "momentum": "betas.0 is where gradients are taken, and the model is computed from it, so it stays the same",
        "beta2": 'base = "sgd" divides by no squares',
    }
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "base"})

    @model_validator(mode="after")
    def _gradients_are_not_at_the_iterate(self) -> ScheduleFree:
        if self.betas[0] == 0:
            raise ValueError("optimizer.betas.0 must be above 0: the average is computed from it")
        return self

    def schedulable_key(self, name: str) -> str | None:
        return None if name == "beta2" and self.base == "sgd" else super().schedulable_key(name)

    def state_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape) * (2 if self.base == "adamw" else 1)


class EstimatingAdam(OptimizerSpec):
    """Adam that estimates its own learning rate.

    `learning_rate` multiplies the estimate: leave it at 1. The log has the estimate as `optimizer/estimated_rate`.
    """

    learning_rate: LearningRate = 1.0
    """Multiplies the estimate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-8
    """Added to the root of the second average."""
    first_estimate: Eps = 1e-6
    """The estimate before the first step: too small does little harm."""
    weight_decay: WeightDecay = 0.01

    owns_rate: ClassVar[bool] = True
    decays_itself: ClassVar[bool] = True
    schedulable: ClassVar[Mapping[str, str]] = BETAS


class Prodigy(EstimatingAdam):
    """Adam that estimates its own learning rate (Mishchenko & Defazio 2024, arXiv:2306.06101).

    `learning_rate` multiplies the estimate: leave it at 1. The log has the estimate as `optimizer/estimated_rate`.
    """

    type: Literal["prodigy"]
    growth: PositiveRatio = 1.0
    """Multiplies new estimates."""
    safeguard_warmup: bool = False
    """Whether the learning rate of a warm-up is left out of the estimate's divisor."""

    implementation: ClassVar[str] = "trainkit.optim.parameter_free:build_prodigy"

    def state_bytes(self, shape: Shape) -> int:
        return 4 * 4 * math.prod(shape)


class DAdaptAdam(EstimatingAdam):
    """AdamW that estimates its own learning rate (Defazio & Mishchenko 2023, arXiv:2301.07733).

    `learning_rate` multiplies the estimate: leave it at 1. The log has the estimate as `optimizer/estimated_rate`.
    """

    type: Literal["dadapt"]

    implementation: ClassVar[str] = "trainkit.optim.parameter_free:build_dadapt"

    def state_bytes(self, shape: Shape) -> int:
        return 3 * 4 * math.prod(shape)


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (ScheduleFree, Prodigy, DAdaptAdam)
