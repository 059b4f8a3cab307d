"""Bidirectional encoders: BERT (Devlin et al. 2019) and families like it.

Shapes as in `layers.py`; P learned positions, Y token types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import AttentionSpec, causal_attention
from trainkit.models.build import BuildArguments
from trainkit.models.classifier import Classifier
from trainkit.models.custom_vjps import exact_gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import LayerNorm, Linear
from trainkit.models.master_weights import Weight, lookup
from trainkit.models.stack import positions, scan_layers
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.encoder import Encoder, TextEncoder
from trainkit.recipe.families.sizes import Remat


class EncoderAttention(eqx.Module):
    """Attention of every position to its whole segment."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    dropout: Dropout
    """Of the probabilities."""
    heads: int = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(self, x_BTD: Array, segments_BT: Array | None) -> Float[Array, "B T D"]:
        b, t, d = x_BTD.shape
        q, k, v = (f(x_BTD).reshape(b, t, self.heads, d // self.heads) for f in (self.query, self.key, self.value))
        spec = AttentionSpec(causal=False, dropout=self.dropout)
        y_BTHK = causal_attention(q, k, v, segments_BT, implementation=self.implementation, spec=spec)
        return self.output(y_BTHK.reshape(b, t, d))


class EncoderBlock(eqx.Module):
    """Attention and an MLP, each followed by a layer norm over its sum with the residual stream."""

    attention: EncoderAttention
    attention_dropout: Dropout
    """Of the output of attention."""
    attention_norm: LayerNorm
    mlp_in: Linear
    mlp_out: Linear
    mlp_dropout: Dropout
    mlp_norm: LayerNorm

    @staticmethod
    def init(spec: Encoder, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> EncoderBlock:
        """Return a block with random weights."""
        d, f = spec.hidden, spec.mlp_width
        keys = iter(jax.random.split(key, 6))

        def linear(inputs: int, outputs: int) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=spec.initializer_range, fp8=fp8)

        projections = (linear(d, d), linear(d, d), linear(d, d), linear(d, d))
        return EncoderBlock(
            EncoderAttention(*projections, Dropout(spec.attention_dropout), spec.heads, implementation),
            Dropout(spec.dropout if spec.drops_attention_output else 0.0),
            encoder_norm(spec),
            linear(d, f),
            linear(f, d),
            Dropout(spec.dropout),
            encoder_norm(spec),
        )

    def __call__(self, x_BTD: Array, segments_BT: Array | None) -> Float[Array, "B T D"]:
        x_BTD = self.attention_norm(x_BTD + self.attention_dropout(self.attention(x_BTD, segments_BT)))
        inner = self.mlp_in(x_BTD)
        probe.report_units(inner)
        y_BTD = self.mlp_out(exact_gelu(inner))
        return self.mlp_norm(x_BTD + self.mlp_dropout(y_BTD))


class EncoderModel(eqx.Module):
    """An encoder with a head that predicts tokens at any position, or a head that scores classes."""

    token_embedding: Float[Array, "V D"]
    position_embedding: Float[Array, "P D"] | None
    """None where attention knows the positions."""
    type_embedding: Float[Array, "Y D"] | None
    """None where the texts of a pair are not told apart."""
    embedding_norm: LayerNorm
    embedding_dropout: Dropout
    blocks: Any
    """All blocks in one, every leaf with a leading axis of layers."""
    head: Linear | None
    head_norm: LayerNorm | None
    output_bias: Float[Array, " V"] | None
    """These three predict tokens; None where there is a classifier."""
    classifier: Classifier | None
    context_length: int = eqx.field(static=True)
    """The longest text that it is meant for, in tokens."""
    unused_positions: int = eqx.field(static=True)
    """Rows of `position_embedding` before that of the first position."""
    remat: Remat = eqx.field(static=True)

    @staticmethod
    def init(spec: Encoder, **given: Unpack[BuildArguments]) -> EncoderModel:
        """Return a fresh encoder, in float32."""

        def block(key: PRNGKeyArray) -> EncoderBlock:
            return EncoderBlock.init(spec, key, implementation=given["implementation"], fp8=given["fp8"])

        return EncoderModel(**encoder_parts(spec, block, given))

    def hidden_states(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the last hidden states.

        Args:
            positions_BT: by default from 0.
            segments_BT: every position attends to its own segment; by default to all positions.
            types_BT: token types; by default 0.
        """
        at_BT = positions(tokens_BT) if positions_BT is None else positions_BT
        x_BTD = lookup(self.token_embedding, tokens_BT)
        if self.type_embedding is not None:
            types_BT = jnp.zeros_like(tokens_BT) if types_BT is None else types_BT
            x_BTD = x_BTD + lookup(self.type_embedding, jnp.minimum(types_BT, self.type_embedding.shape[0] - 1))
        if self.position_embedding is not None:
            x_BTD = x_BTD + lookup(self.position_embedding, self.unused_positions + at_BT)
        return self.encode(self.embedding_dropout(self.embedding_norm(x_BTD)), at_BT, segments_BT)

    def encode(self, x_BTD: Array, at_BT: Array, segments_BT: Array | None) -> Float[Array, "B T D"]:
        """Return the last hidden states, from embeddings of tokens at these positions."""

        def layer(x_BTD: Array, block: EncoderBlock) -> tuple[Array, None]:
            return block(x_BTD, segments_BT), None

        return scan_layers(layer, x_BTD, self.blocks, remat=self.remat, segments_BT=segments_BT)[0]

    def hidden_and_penalty(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        counted_BT: Bool[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, ""]]:
        """Return the last hidden states, and 0 as the auxiliary loss, so that encoders can be called like language
        models."""
        with probe.mark_tokens(counted_BT):
            hidden_BTD = self.hidden_states(
                tokens_BT, positions_BT=positions_BT, segments_BT=segments_BT, types_BT=types_BT
            )
        return hidden_BTD, jnp.float32(0)

    def scores(self, hidden_BTD: Float[Array, "B T D"], segments_BT: Int[Array, "B T"]) -> Float[Array, "B *T C"]:
        """Return the scores of classes, as `Classifier` gives them."""
        assert self.classifier is not None, "the head of this model predicts tokens"
        return self.classifier(hidden_BTD, segments_BT)

    def prediction_states(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n D+1"]:
        """Return the vectors whose products with the rows of `output_matrix` are the logits: the head's states
        and a 1."""
        assert self.head is not None and self.head_norm is not None, "the head of this model gives scores of classes"
        states = self.head_norm(exact_gelu(self.head(hidden_BTD)))
        return jnp.concatenate([states, jnp.ones_like(states[..., :1])], -1)

    def output_matrix(self) -> Float[Array, "V D+1"] | Weight:
        """Return the output matrix, which is the token embedding, with its bias as a last column."""
        pair = self.token_embedding, self.output_bias
        return jax.tree.map(lambda table_VD, bias_V: jnp.concatenate([table_VD, bias_V[:, None]], -1), *pair)

    def logits(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        """Return the logits of every entry of the vocabulary, in float32."""
        states = self.prediction_states(hidden_BTD)
        rounded_VD = Weight.of(self.output_matrix()).rounded
        return jnp.einsum("...d,vd->...v", states, rounded_VD, preferred_element_type=jnp.float32)


def encoder_parts(spec: TextEncoder, block: Callable[[PRNGKeyArray], Any], given: BuildArguments) -> dict[str, Any]:
    """Return the fields of a fresh `EncoderModel`, in float32; `block` makes a block from its key."""
    d, scale, predicts = spec.hidden, spec.initializer_range, spec.predicts_tokens
    tokens, places, types, blocks, head = jax.random.split(given["key"], 5)
    length = spec.context_length or given["sequence_length"]

    def table(key: PRNGKeyArray, rows: int) -> Float[Array, "rows D"]:
        return jax.random.normal(key, (rows, d)) * scale

    return {
        "token_embedding": table(tokens, given["vocab_size"]),
        "position_embedding": table(places, spec.unused_positions + length) if spec.learned_positions else None,
        "type_embedding": table(types, spec.type_rows) if spec.type_rows else None,
        "embedding_norm": encoder_norm(spec),
        "embedding_dropout": Dropout(spec.embedding_rate),
        "blocks": jax.vmap(block)(jax.random.split(blocks, spec.layers)),
        "head": Linear.init(head, d, d, scale=scale, bias=spec.biased, fp8=given["fp8"]) if predicts else None,
        "head_norm": encoder_norm(spec) if predicts else None,
        "output_bias": jnp.zeros(given["vocab_size"]) if predicts else None,
        "classifier": Classifier.init(spec, head),
        "context_length": length,
        "unused_positions": spec.unused_positions,
        "remat": given["remat"],
    }


def encoder_norm(spec: TextEncoder) -> LayerNorm:
    """Return a fresh norm, with a bias if the family has biases."""
    return LayerNorm.init(spec.hidden, epsilon=spec.norm_epsilon, bias=spec.biased)


build = EncoderModel.init
