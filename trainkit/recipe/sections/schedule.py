"""[schedule]: the learning rate over the run, as a factor of `optimizer.learning_rate`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from trainkit.recipe.spec import Count, Fraction, Spec, by_type

Span = Annotated[int, Field(ge=0)] | Fraction
"""An integer is steps, a float a fraction of the run."""

#: Where the decay begins that nobody has ordered to begin: later than any step.
NEVER = 2**31 - 1


class Warmup(Spec):
    warmup: Span = 0.02
    """Linear from 0; an integer is steps, a float a fraction of the run."""

    def warmup_steps(self, steps: int) -> int:
        """Of a run of `steps`."""
        return min(_counted(self.warmup, steps), steps)

    def last_step(self, steps: int, *, decay_start: int) -> int:
        """Where a run of `steps` ends if its decay was ordered to begin after `decay_start`."""
        return steps


class Cosine(Warmup):
    """Half a cosine from 1 to `min_ratio` (Loshchilov & Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    min_ratio: Fraction = 0.1
    """Where it ends, as a share of the peak."""


class LinearDecay(Warmup):
    """A straight line from 1 to `min_ratio`."""

    type: Literal["linear"]
    min_ratio: Fraction = 0.1
    """Where it ends, as a share of the peak."""


class Constant(Warmup):
    type: Literal["constant"]


class Wsd(Warmup):
    """Warm-up, stable, decay: at the peak until a last phase (Hu et al. 2024, arXiv:2404.06395).

    The decay may be ordered to begin earlier, and the run is then over when it is: `trainkit send RUN decay`.
    """

    type: Literal["wsd"]
    decay: Count | Annotated[float, Field(gt=0, le=1)] = 0.2
    """The last phase: an integer is steps, a float a fraction of the run; at most what the warm-up leaves."""
    shape: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt"
    """How it falls; 1-sqrt, the fastest at first, is that of Hägele et al. 2024 (arXiv:2405.18392)."""
    min_ratio: Fraction = 0.0
    """Where it ends, as a share of the peak."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Wsd:
        if isinstance(self.warmup, float) and isinstance(self.decay, float) and self.warmup + self.decay > 1:
            raise ValueError(f"decay = {self.decay} and warmup = {self.warmup} are together more than the whole run")
        return self

    def decay_steps(self, steps: int) -> int:
        """Of a run of `steps`."""
        return min(max(_counted(self.decay, steps), 1), steps - self.warmup_steps(steps))

    def decay_start(self, steps: int, *, ordered: int) -> int:
        """Updates done before the decay begins: as planned, or earlier if it was ordered to."""
        return min(ordered, steps - self.decay_steps(steps))

    def last_step(self, steps: int, *, decay_start: int) -> int:
        return self.decay_start(steps, ordered=decay_start) + self.decay_steps(steps)


def _counted(span: int | float, steps: int) -> int:
    return span if isinstance(span, int) else round(span * steps)


Schedule = Annotated[
    Annotated[Cosine, Tag("cosine")]
    | Annotated[LinearDecay, Tag("linear")]
    | Annotated[Constant, Tag("constant")]
    | Annotated[Wsd, Tag("wsd")],
    by_type("cosine"),
]
