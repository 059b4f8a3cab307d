"""How the frequencies of rotary positions change to reach beyond the length that a model was trained for."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.spec import Count, PositiveRatio, Spec
from trainkit.recipe.union import OneOf

Factor = Annotated[float, Field(ge=1, le=1e6)]


class LinearScaling(Spec):
    """All frequencies divided by one factor (Chen et al. 2023, position interpolation)."""

    type: Literal["linear"] = "linear"
    factor: Factor
    """The new length as a multiple of the original one."""


class Llama3(Spec):
    """Slow frequencies divided, fast ones kept, those between blended (Llama 3.1: Grattafiori et al. 2024)."""

    type: Literal["llama3"] = "llama3"
    factor: Factor
    """The new length as a multiple of the original one."""
    low_frequency_factor: PositiveRatio = 1.0
    """A frequency that turns less often than this within `original_context` is divided."""
    high_frequency_factor: PositiveRatio = 4.0
    """A frequency that turns more often than this within `original_context` is kept."""
    original_context: Count = 8192
    """Positions that the model was trained for originally."""

    @model_validator(mode="after")
    def _there_is_a_between(self) -> Llama3:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor = {self.high_frequency_factor} must be more than"
                f" low_frequency_factor = {self.low_frequency_factor}"
            )
        return self


class Yarn(Spec):
    """As `llama3` with a ramp over the dimensions, and sharper attention (Peng et al. 2023, YaRN)."""

    type: Literal["yarn"] = "yarn"
    factor: Factor
    """The new length as a multiple of the original one."""
    original_context: Count
    """Positions that the model was trained for originally."""
    beta_fast: PositiveRatio = 32.0
    """A dimension that turns more often than this within `original_context` is kept."""
    beta_slow: PositiveRatio = 1.0
    """A dimension that turns less often than this within `original_context` is divided."""
    attention_factor: PositiveRatio | None = None
    """Factor of queries and keys. If absent, 0.1 x ln(factor) + 1."""


RopeScaling: TypeAlias = Annotated[LinearScaling | Llama3 | Yarn, OneOf("linear", LinearScaling, Llama3, Yarn)]


class Rope(NamedTuple):
    """The rotary positions of a layer."""

    theta: float
    scaling: LinearScaling | Llama3 | Yarn | None
