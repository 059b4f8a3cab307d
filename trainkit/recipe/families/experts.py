"""Mixtures of experts: what the families that have them share, and their keys and tensors in checkpoints.

An expert's matrices are tensors of their own there.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from trainkit.recipe.families.decoder import Decoder
from trainkit.recipe.families.decoder_checkpoints import BLOCK
from trainkit.recipe.families.hugging_face import Config, Part, TensorName, Unsupported
from trainkit.recipe.families.sizes import Shape, linear
from trainkit.recipe.spec import Count, NotNegative


class Sparse(Decoder):
    """A decoder whose MLPs are mixtures of experts, of which each token goes through a few (Shazeer et al. 2017)."""

    has_experts: ClassVar[bool] = True

    experts: Count
    """MLPs in each block."""
    experts_per_token: Count = 2
    """How many of them a token goes through."""
    router_loss: NotNegative = 0.001
    """Coefficient of the loss that keeps experts evenly busy (Fedus et al. 2021); 0: none. They are counted within a
    micro-batch, so with it a step is not quite the same in micro-batches of another size."""

    @model_validator(mode="after")
    def _enough_experts(self) -> Sparse:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token = {self.experts_per_token} is more than experts = {self.experts}")
        return self

    @property
    def normalised(self) -> bool:
        """Whether the weights of a token's experts are made to add up to 1."""
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
        # what goes into each expert as well, in blocks of which a third may hold nothing; what comes out; the router
        in_blocks = 3 * (super()._mlp_floats() + self.hidden) // 2
        return self.experts_per_token * (in_blocks + self.hidden) + 2 * self.experts

    def _mlp_dots(self) -> int:
        return self.experts  # products of experts are no plain matrix products: they are made again


def expert_names(block: str, gate: str, up: str, down: str) -> tuple[TensorName, ...]:
    """Return the names of a router's tensor and of three for each expert."""
    expert = f"{BLOCK}.{block}.experts.{{expert}}"
    return (
        TensorName("blocks.mlp.router.weight", f"{BLOCK}.{block}.gate.weight", transposed=True),
        TensorName("blocks.mlp.gate", f"{expert}.{gate}.weight", transposed=True),
        TensorName("blocks.mlp.up", f"{expert}.{up}.weight", transposed=True),
        TensorName("blocks.mlp.down", f"{expert}.{down}.weight", transposed=True),
    )


ROUTER_DEFAULTS = {"router_aux_loss_coef": 0.001, "output_router_logits": False}


def _read_router_loss(config: Config) -> dict[str, Any]:
    """Their library adds the loss of the router only where it also returns the router's logits."""
    coefficient, on = config["router_aux_loss_coef"], config["output_router_logits"]
    if coefficient is None:
        raise Unsupported("router_aux_loss_coef", None, "it must say something")
    if not isinstance(on, bool):
        raise Unsupported("output_router_logits", on, "it must be true or false")
    return {"router_loss": coefficient if on else 0.0}


def _write_router_loss(values: dict[str, Any]) -> Config:
    # with the logits, transformers fails to generate from an attention mask
    return {"router_aux_loss_coef": values["router_loss"], "output_router_logits": False}


ROUTER_LOSS = Part(tuple(ROUTER_DEFAULTS), _read_router_loss, _write_router_loss)


def router_notes(model: Sparse, config: Config) -> list[str]:
    """Return a warning where training leaves out the router's loss because the checkpoint's config turns it off."""
    coefficient = config["router_aux_loss_coef"]
    if model.router_loss or not coefficient or config["output_router_logits"]:
        return []
    return [
        "training does not balance experts: the checkpoint has output_router_logits = false, with which"
        f" transformers does not either; [model] router_loss = {coefficient} does"
    ]
