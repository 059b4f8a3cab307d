"""[adapter]: a few numbers beside each matrix are trained instead of the matrix."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainkit.recipe.spec import Count, Positive, Spec


class Lora(Spec):
    """Low-rank adaptation (Hu et al. 2021): to each target matrix a product of two narrow ones is added.

    The model itself stays as it was, so that checkpoints hold the narrow matrices only.
    """

    type: Literal["lora"] = "lora"
    pretrained: str | None = None
    """A directory with an adapter as PEFT keeps it, or a hub id, to begin with; a fresh one where not given. Its rank,
    alpha, targets and variant are read from its adapter_config.json, and need not be said here."""
    revision: str | None = None
    """Branch, tag or commit on the hub; a run keeps the commit that it found."""
    rank: Count = 16
    """Width of the narrow matrices."""
    alpha: Positive = 32.0
    """The product is scaled by alpha / rank; in `rslora` by alpha / sqrt(rank)."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Which linear layers, by name or glob, such as `["query", "value"]`; `all-linear` is every one in the blocks,
    routers of experts left out."""
    variant: Literal["lora", "rslora", "dora"] = "lora"
    """`rslora` keeps large ranks from learning slowly (Kalajdzievski 2023); `dora` trains the length of each column of
    a matrix apart from its direction (Liu et al. 2024)."""
    learning_rate_ratio: Positive = 1.0
    """How much faster the second matrix learns than the first (LoRA+, Hayou et al. 2024, who use 16)."""
    base: Literal["none", "nf4"] = "none"
    """How the frozen matrices are kept: as `precision.params` says, or in 4 bit (QLoRA, Dettmers et al. 2023)."""

    @model_validator(mode="after")
    def _goes_with_pretrained(self) -> Lora:
        if self.pretrained is None and self.revision is not None:
            raise ValueError('revision goes with pretrained = "…"')
        return self

    @property
    def scale(self) -> float:
        """Of the product."""
        return self.alpha / (self.rank**0.5 if self.variant == "rslora" else self.rank)


Adapter = Lora
