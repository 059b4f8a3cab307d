"""[optimizer]: the update rule, and which parameters are treated otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainkit.recipe.spec import NotNegative, Positive, Spec


class Group(Spec):
    """Parameters whose path matches; a later group overrules an earlier one. A group that matches none is an error."""

    match: str
    """A glob over parameter paths, such as `*.bias` or `blocks.*`."""
    weight_decay: NotNegative | None = None
    """Overrules the optimiser's; the way to have norms, biases or embeddings decayed after all."""
    learning_rate_factor: NotNegative = 1.0
    """Multiplies the learning rate; 0 leaves these parameters as they are."""


class AdamW(Spec):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019). Norms, biases and embeddings are not decayed."""

    type: Literal["adamw"] = "adamw"
    learning_rate: Positive
    """The peak; the schedule says what share of it each step takes."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the averages of gradients and of their squares."""
    eps: Positive = 1e-8
    """Added to the root of the second average."""
    weight_decay: NotNegative = 0.1
    """Of matrices, times the learning rate, each step."""
    moments: Literal["float32", "bfloat16", "int8"] = "float32"
    """In which both averages are kept between steps; they are computed in float32. int8 is 8 bit on a logarithmic scale
    in blocks of 32 (after Dettmers et al. 2022). Averages of fewer than 4096 numbers stay float32."""
    groups: tuple[Group, ...] = ()
    """Parameters that are treated otherwise: one `[[optimizer.groups]]` each."""

    @property
    def state_bytes_per_parameter(self) -> float:
        """Bytes kept for each parameter: the two moments, in int8 with one byte of scale for each block of 32."""
        return 2 * {"float32": 4, "bfloat16": 2, "int8": 1 + 1 / 32}[self.moments]


Optimizer = AdamW
