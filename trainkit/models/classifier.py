"""A head that gives scores of classes. Shapes as in `layers.py`; C classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.custom_vjps import exact_gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import LayerNorm, Linear
from trainkit.recipe.families.model import HeadLayers
from trainkit.recipe.families.transformer import Transformer

#: What the key of a model's output is folded with for this head.
HEAD = 0x4EAD
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": exact_gelu}


class Classifier(eqx.Module):
    """The layers that `HeadLayers` describes, computed in float32 because they are small."""

    first_dropout: Dropout
    dense: Linear | None
    norm: LayerNorm | None
    dropout: Dropout
    output: Linear
    layers: HeadLayers = eqx.field(static=True)

    @staticmethod
    def init(spec: Transformer, key: PRNGKeyArray) -> Classifier | None:
        """Return a fresh head; None where that of the spec predicts tokens."""
        if spec.predicts_tokens:
            return None
        layers, d = spec.head_layers(spec.head.kind), spec.hidden
        first, second = jax.random.split(jax.random.fold_in(key, HEAD))
        scale, bias = spec.head_range, layers.dense_bias
        dense = Linear.init(first, d, d, scale=scale, bias=bias) if layers.dense else None
        norm = None if layers.norm is None else LayerNorm.init(d, epsilon=layers.norm, bias=False)
        output = Linear.init(second, d, spec.head.width, scale=scale, bias=layers.bias)
        rate = spec.head_dropout(spec.head.kind)
        first_rate = spec.first_head_dropout(spec.head.kind)
        return Classifier(Dropout(first_rate), dense, norm, Dropout(rate), output, layers)

    def __call__(self, hidden_BTD: Float[Array, "B T D"], segments_BT: Int[Array, "B T"]) -> Float[Array, "B *T C"]:
        """Return scores of every sequence, (B, C), or of every position, (B, T, C); `segments_BT` is 0 in padding."""
        x: Any = hidden_BTD.astype(jnp.float32)
        if self.layers.at == "first":
            x = x[:, 0]
        elif self.layers.at == "last":
            last_B = segments_BT.shape[1] - 1 - jnp.argmax(segments_BT[:, ::-1] > 0, axis=1)
            x = jnp.take_along_axis(x, last_B[:, None, None], axis=1)[:, 0]
        elif self.layers.at == "mean":
            counted_BT1 = (segments_BT > 0)[..., None].astype(jnp.float32)
            x = (x * counted_BT1).sum(1) / jnp.maximum(counted_BT1.sum(1), 1)
        x = self.first_dropout(x)
        if self.dense is not None:
            assert self.layers.dense is not None
            x = _ACTIVATIONS[self.layers.dense](self.dense(x))
        if self.norm is not None:
            x = self.norm(x)
        return self.output(self.dropout(x))
