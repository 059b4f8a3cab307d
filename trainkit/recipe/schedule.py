"""[schedule]: the learning rate over the run, as a factor of `optimizer.learning_rate`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from trainkit.recipe.spec import Fraction, Spec, by_type

Span = Annotated[int, Field(ge=0)] | Fraction
"""An integer is steps, a float a fraction of the run."""


class Warmup(Spec):
    warmup: Span = 0.02
    """Linear from 0; an integer is steps, a float a fraction of the run."""


class Cosine(Warmup):
    """Half a cosine from 1 to `min_ratio` (Loshchilov & Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    min_ratio: Fraction = 0.1
    """Where it ends, as a share of the peak."""


class Linear(Warmup):
    """A straight line from 1 to `min_ratio`."""

    type: Literal["linear"]
    min_ratio: Fraction = 0.1
    """Where it ends, as a share of the peak."""


class Constant(Warmup):
    type: Literal["constant"]


Schedule = Annotated[
    Annotated[Cosine, Tag("cosine")] | Annotated[Linear, Tag("linear")] | Annotated[Constant, Tag("constant")],
    by_type("cosine"),
]
