"""What every family of transformers is asked, so that a plan needs neither jax nor the model itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from trainkit.recipe.families.model import Kind
from trainkit.recipe.families.pretrained import Pretrained
from trainkit.recipe.spec import Count, NotNegative


class Transformer(Pretrained):
    """A stack of blocks with attention and an MLP each. The sizes are in closed form; a test holds them against the
    real pytree."""

    kind: ClassVar[Kind] = "causal"
    has_experts: ClassVar[bool] = False
    """Whether most of its weights are those of experts, which are neither quantised nor multiplied in 8 bit."""

    layers: Count
    """Number of transformer blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Attention heads; must divide `hidden`."""
    context_length: Count | None = None
    """The longest text that it is meant for; `data.sequence_length` where not given."""
    tied: bool
    """Whether the output matrix is the token embedding."""
    initializer_range: NotNegative = 0.02
    """Standard deviation of random weights; of matrices that add to the residual stream less, the deeper the model."""

    @property
    @abstractmethod
    def key_width(self) -> int:
        """Width of one head."""

    @property
    @abstractmethod
    def mlp_width(self) -> int:
        """Width inside the MLP, or inside one expert."""

    @property
    def score_scale(self) -> float | None:
        """What scores are multiplied with; None: one by the root of `key_width`."""
        return None

    @property
    @abstractmethod
    def special_attention(self) -> str | None:
        """What of its attention no flash attention has, in the plural; None where any will do."""
