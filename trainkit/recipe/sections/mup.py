"""[mup]: learning rates and random weights that follow the model's width, so that a rate tuned narrow fits wide models.

The maximal update parametrisation of Yang et al. 2022 (Tensor Programs V, arXiv:2203.03466) in the form of its table 3,
relative to a base width: only rates and initial weights change, so that an exported model computes what it computed.
"""

from __future__ import annotations

from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.optimizers.parameters import Shape, is_hidden_matrix
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.spec import Spec, Width


class Mup(Spec):
    """Learning rates and random weights that follow `model.hidden`, so that rates need no new tuning for another width
    (Yang et al. 2022). Keep the width of a head and the ratio of all widths to `hidden`: a wider model has more heads.
    """

    base_width: Width
    """The `hidden` of the model whose rates and weights stay as they are: the one that rates were tuned for."""

    def check(self, model: ModelSpec, optimizer: OptimizerSpec, *, positions: int, begins_with: str | None) -> None:
        """Raise ValueError if no scaling is published for the model or for one of the rules of its parameters, or if
        its weights are not random but those that the recipe's key `begins_with` names."""
        if not isinstance(model, Transformer) or model.kind != "causal" or not model.predicts_tokens:
            raise ValueError(f'[mup] is for decoders that predict tokens, and not for model.type = "{model.type}"')
        if model.has_experts:
            raise ValueError(f'[mup] is not published for experts, which model.type = "{model.type}" has')
        if model.tied:
            raise ValueError(
                "model.tied = true: [mup] gives the output matrix smaller weights and rates than the embedding,"
                " so they cannot be one matrix; write tied = false"
            )
        if begins_with is not None:
            raise ValueError(
                f"mup.base_width scales random weights, and this run begins with {begins_with}: leave [mup] out"
            )
        shapes = model.leaf_shapes(vocab_size=1, sequence_length=positions)
        for rule in (optimizer.owner(name, shape) for name, shape in shapes.items()):
            if rule.scaled_by_width is None:
                raise ValueError(
                    f'[mup] has no published scaling for optimizer.type = "{rule.type}": use adamw or another rule that'
                    " treats every number by itself, or sgd"
                )


def width_ratio(mup: Mup | None, model: ModelSpec) -> float:
    """Return how many times as wide as the base of [mup] the model is; 1 where nothing is scaled."""
    return model.hidden / mup.base_width if mup and isinstance(model, Transformer) else 1.0


def rate_factor(rule: OptimizerSpec, name: str, shape: Shape, *, wider: float) -> float:
    """Return the factor of the learning rate of a parameter in a model `wider` times as wide as the base (table 3)."""
    if rule.scaled_by_width == "entrywise":
        return 1 / wider if _takes_width(name, shape) else 1.0
    if name == "output":
        return 1 / wider
    return 1.0 if is_hidden_matrix(name, shape) else wider


def weight_factor(name: str, shape: Shape, *, wider: float) -> float:
    """Return the factor of the random weights of a parameter in a model `wider` times as wide as the base (table 3).

    Random weights have the same deviation at every width otherwise; embeddings, norms and biases stay as they are.
    """
    if name == "output":
        return 1 / wider
    return wider**-0.5 if is_hidden_matrix(name, shape) else 1.0


def _takes_width(name: str, shape: Shape) -> bool:
    """Return whether the inputs of a matrix are more in a wider model."""
    return name == "output" or is_hidden_matrix(name, shape)
