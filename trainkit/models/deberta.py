"""DeBERTa (He et al. 2021), versions 2 and 3: attention to content and to relative positions.

Shapes as in `layers.py`; S positions that queries see, R relative positions, each with an embedding.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.build import BuildArguments
from trainkit.models.custom_vjps import exact_gelu
from trainkit.models.dropout import Dropout, without_keys
from trainkit.models.encoder import EncoderModel, encoder_norm, encoder_parts
from trainkit.models.layers import LayerNorm, Linear
from trainkit.models.master_weights import exact
from trainkit.models.probe import report_scores, report_units
from trainkit.models.stack import scan_layers
from trainkit.recipe.families.deberta_v3 import Deberta


def relative_rows(length: int, *, buckets: int, furthest: int) -> Int[np.ndarray, "T S"]:
    """Return which row of the embeddings of relative positions belongs to each query and key.

    Distances below half of `buckets` have a row each, longer ones share rows whose widths grow geometrically, up to
    `furthest` (He et al. 2023, DeBERTa-v3's code). The middle rows are those of the distance 0. Computed in float32, in
    which the rows of checkpoints were chosen.
    """
    apart = np.arange(length)[:, None] - np.arange(length)
    middle, one = buckets // 2, np.float32(1)
    # with the logarithm of what is at least `middle`, so that it is not negative
    ratio = np.maximum(abs(apart), middle).astype(np.float32) / np.float32(middle)
    of_furthest = np.log(np.float32((furthest - 1) / middle))
    bucket = np.ceil(np.log(ratio) / of_furthest * np.float32(middle - one)) + middle
    signed = np.where(abs(apart) <= middle, apart, np.sign(apart) * bucket)
    return np.clip(signed.astype(np.int64) + buckets, 0, 2 * buckets - 1).astype(np.int32)


class RelativePositions(NamedTuple):
    """The relative positions of a row."""

    table_RD: Float[Array, "R D"]
    """The embeddings of relative positions."""
    rows_TS: Int[np.ndarray, "T S"]


class DisentangledAttention(eqx.Module):
    """Attention of every position to its segment, with scores of content to content, content to position, and position
    to content (He et al. 2021, section 3.1)."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    position_dropout: Dropout
    """Of the embeddings of relative positions."""
    dropout: Dropout
    """Of the probabilities."""
    heads: int = eqx.field(static=True)

    def __call__(self, x_BTD: Array, segments_BT: Array | None, relative: RelativePositions) -> Float[Array, "B T D"]:
        b, t, d = x_BTD.shape

        def heads(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], self.heads, d // self.heads)

        q_BTHK, k_BSHK, v_BSHK = (heads(project(x_BTD)) for project in (self.query, self.key, self.value))
        table_RD = self.position_dropout(relative.table_RD.astype(x_BTD.dtype))
        # positions share the projections of content, without adapter dropout, which needs rows of the batch
        query, key = without_keys((self.query, self.key))
        of_query_RHK, of_key_RHK = heads(query(table_RD)), heads(key(table_RD))
        rows_11TS = jnp.asarray(relative.rows_TS)[None, None]
        to_positions_BHTS = jnp.take_along_axis(_scores("bthk,rhk->bhtr", q_BTHK, of_key_RHK), rows_11TS, axis=-1)
        # with key and query exchanged, so that each key has a row of scores to choose from
        from_positions_BHST = jnp.take_along_axis(
            _scores("bshk,rhk->bhsr", k_BSHK, of_query_RHK), rows_11TS.swapaxes(-1, -2), axis=-1
        )
        scores_BHTS = _scores("bthk,bshk->bhts", q_BTHK, k_BSHK) + to_positions_BHTS
        scores_BHTS = (scores_BHTS + from_positions_BHST.swapaxes(-1, -2)) * (3 * d // self.heads) ** -0.5
        if segments_BT is not None:
            same_B1TS = (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
            scores_BHTS = jnp.where(same_B1TS, scores_BHTS, -1e30)
        report_scores(lambda: scores_BHTS)
        p_BHTS = self.dropout(jax.nn.softmax(scores_BHTS, axis=-1)).astype(x_BTD.dtype)
        return self.output(jnp.einsum("bhts,bshk->bthk", p_BHTS, v_BSHK).reshape(b, t, d))


class DebertaBlock(eqx.Module):
    """Attention and an MLP, each followed by a layer norm over its sum with the residual stream."""

    attention: DisentangledAttention
    attention_dropout: Dropout
    """Of the output of attention."""
    attention_norm: LayerNorm
    mlp_in: Linear
    mlp_out: Linear
    mlp_dropout: Dropout
    mlp_norm: LayerNorm

    @staticmethod
    def init(spec: Deberta, key: PRNGKeyArray, *, fp8: bool) -> DebertaBlock:
        """Return a block with random weights."""
        d, f, rate = spec.hidden, spec.mlp_width, Dropout(spec.dropout)
        keys = iter(jax.random.split(key, 6))

        def linear(inputs: int, outputs: int) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=spec.initializer_range, fp8=fp8)

        projections = (linear(d, d), linear(d, d), linear(d, d), linear(d, d))
        drops = (Dropout(spec.dropout, of_rows=False), Dropout(spec.attention_dropout))
        attention = DisentangledAttention(*projections, *drops, spec.heads)
        return DebertaBlock(attention, rate, encoder_norm(spec), linear(d, f), linear(f, d), rate, encoder_norm(spec))

    def __call__(self, x_BTD: Array, segments_BT: Array | None, relative: RelativePositions) -> Float[Array, "B T D"]:
        x_BTD = self.attention_norm(x_BTD + self.attention_dropout(self.attention(x_BTD, segments_BT, relative)))
        inner = self.mlp_in(x_BTD)
        report_units(inner)
        y_BTD = self.mlp_out(exact_gelu(inner))
        return self.mlp_norm(x_BTD + self.mlp_dropout(y_BTD))


class DebertaModel(EncoderModel):
    """DeBERTa: see the module."""

    relative_embedding: Float[Array, "R D"]
    relative_norm: LayerNorm
    furthest: int = eqx.field(static=True)
    """The distance from which on all positions have the same embedding."""

    def encode(self, x_BTD: Array, at_BT: Array, segments_BT: Array | None) -> Float[Array, "B T D"]:
        """Return the last hidden states, from embeddings of tokens. Positions do not matter beyond their distances."""
        buckets = self.relative_embedding.shape[0] // 2
        # float32, since its gradient is a sum over layers
        table_RD = self.relative_norm(exact(self.relative_embedding))
        rows_TS = relative_rows(x_BTD.shape[1], buckets=buckets, furthest=self.furthest)

        def layer(x_BTD: Array, block: DebertaBlock) -> tuple[Array, None]:
            return block(x_BTD, segments_BT, RelativePositions(table_RD, rows_TS)), None

        return scan_layers(layer, x_BTD, self.blocks, remat=self.remat, segments_BT=segments_BT)[0]


def _scores(equation: str, left: Array, right: Array) -> Float[Array, ...]:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def build(spec: Deberta, **given: Unpack[BuildArguments]) -> DebertaModel:
    """Return a fresh encoder, in float32. No kernel has its attention, so `implementation` changes nothing."""

    def block(key: PRNGKeyArray) -> DebertaBlock:
        return DebertaBlock.init(spec, key, fp8=given["fp8"])

    rows = (2 * spec.position_buckets, spec.hidden)
    fields = encoder_parts(spec, block, given)
    return DebertaModel(
        **fields,
        relative_embedding=jax.random.normal(jax.random.fold_in(given["key"], 0), rows) * spec.initializer_range,
        relative_norm=encoder_norm(spec),
        furthest=spec.furthest_position or fields["context_length"],
    )
