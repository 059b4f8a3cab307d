"""What the families of rotary decoders with mixtures of experts have in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from trainkit.recipe.families.decoder import Decoder
from trainkit.recipe.families.sizes import Shape, linear
from trainkit.recipe.spec import LossWeight, Width


class Sparse(Decoder):
    """A decoder whose MLPs are mixtures of experts; each token goes through a few of them (Shazeer et al. 2017)."""

    has_experts: ClassVar[bool] = True

    experts: Width
    """MLPs in each block."""
    experts_per_token: Width = 2
    """How many of the experts a token goes through."""
    router_loss: LossWeight = 0.001
    """Coefficient of the loss that balances the experts (Fedus et al. 2021); 0 means none. Tokens are counted within a
    micro-batch, so with this loss a step depends slightly on the size of the micro-batch."""

    @model_validator(mode="after")
    def _enough_experts(self) -> Sparse:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token = {self.experts_per_token} is more than experts = {self.experts}")
        return self

    @property
    def normalised(self) -> bool:
        """Return whether the weights of a token's experts are scaled to add up to 1."""
        return True

    def _mlp_shapes(self) -> dict[str, Shape]:
        d, f, e = self.hidden, self.mlp_width, self.experts
        experts: dict[str, Shape] = {"mlp.gate": (e, d, f), "mlp.up": (e, d, f), "mlp.down": (e, f, d)}
        return linear("mlp.router", d, e) | experts

    def _mlp_matrices(self) -> int:
        return self.hidden * self.experts + self.experts * super()._mlp_matrices()

    def _active_mlp_matrices(self) -> int:
        return self.hidden * self.experts + self.experts_per_token * super()._mlp_matrices()

    def _mlp_floats(self) -> int:
        # also the inputs of each expert (a third of their blocks may be empty), its outputs, and the router
        in_blocks = 3 * (super()._mlp_floats() + self.hidden) // 2
        return self.experts_per_token * (in_blocks + self.hidden) + 2 * self.experts

    def _mlp_dots(self) -> int:
        return self.experts  # products of experts are not plain matrix products: they are computed again
