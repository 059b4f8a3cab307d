"""GPT-2 (Radford et al. 2019) and families like it (`recipe/families/gpt2.py`). Shapes as in `layers.py`."""

from __future__ import annotations

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.attention import AttentionSpec, KeyValues, attention
from trainkit.models.build import BuildArguments
from trainkit.models.custom_vjps import exact_gelu, gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import LayerNorm, Linear
from trainkit.models.master_weights import add, lookup
from trainkit.models.probe import report_units
from trainkit.models.stack import LanguageModel, parts, positions, residual_scale
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.transformer import GptDecoder


def slopes(heads: int) -> Float[np.ndarray, " H"]:
    """Return how much each head subtracts from a score per position of distance (ALiBi, Press et al. 2022): 2^(-8 i /
    n), (H,).

    For n heads, i counts them from 1. If n is not a power of two, the slopes are those of the next power: first those
    of even i, then those of odd i, as many as there are heads. (The paper would first take all slopes of the power
    below.)
    """
    power = 1 << (heads - 1).bit_length()
    all_of_them = 2.0 ** (-8 / power * np.arange(1, power + 1))
    if power == heads:
        return all_of_them.astype(np.float32)
    return np.concatenate([all_of_them[1::2], all_of_them[::2]])[:heads].astype(np.float32)


class GptAttention(eqx.Module):
    """Causal attention whose queries, keys and values come from one matrix."""

    qkv: Linear
    output: Linear
    dropout: Dropout
    """Of the probabilities."""
    kv_heads: int = eqx.field(static=True)
    """All heads: none of them shares keys and values."""
    key_width: int = eqx.field(static=True)
    clip: float | None = eqx.field(static=True)
    scale: float | None = eqx.field(static=True)
    alibi: bool = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        b, t, d = x_BTD.shape
        qkv = self.qkv(x_BTD)
        if self.clip is not None:
            qkv = jnp.clip(qkv, -self.clip, self.clip)
        q, k, v = (a.reshape(b, t, self.kv_heads, self.key_width) for a in jnp.split(qkv, 3, axis=-1))
        y_BTHK, cache = attention(
            q,
            k,
            v,
            positions_BT,
            segments_BT,
            cache,
            implementation=self.implementation,
            spec=AttentionSpec(
                scale=self.scale,
                slopes_H=jnp.asarray(slopes(self.kv_heads)) if self.alibi else None,
                dropout=self.dropout,
            ),
        )
        return self.output(y_BTHK.reshape(b, t, d)), cache


class GptBlock(eqx.Module):
    """Attention and an MLP with GELU, each after a layer norm."""

    attention_norm: LayerNorm
    attention: GptAttention
    attention_dropout: Dropout
    """Of the output of attention."""
    mlp_norm: LayerNorm
    mlp_in: Linear
    mlp_out: Linear
    mlp_dropout: Dropout
    exact_gelu: bool = eqx.field(static=True)

    @staticmethod
    def init(spec: GptDecoder, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> GptBlock:
        """Return a block with random weights."""
        d, f = spec.hidden, spec.mlp_width
        scale, residual = spec.initializer_range, residual_scale(spec)
        keys = iter(jax.random.split(key, 4))

        def linear(inputs: int, outputs: int, scale: float) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=spec.biased, fp8=fp8)

        return GptBlock(
            _norm(spec),
            GptAttention(
                linear(d, 3 * d, scale),
                linear(d, d, residual),
                Dropout(spec.attention_dropout),
                spec.heads,
                spec.key_width,
                spec.clip,
                spec.score_scale,
                not spec.learned_positions,
                implementation,
            ),
            Dropout(spec.dropout),
            _norm(spec),
            linear(d, f, scale),
            linear(f, d, residual),
            Dropout(spec.dropout),
            spec.exact_gelu,
        )

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        y_BTD, cache = self.attention(self.attention_norm(x_BTD), positions_BT, segments_BT, cache)
        x_BTD = x_BTD + self.attention_dropout(y_BTD)
        inner = self.mlp_in(self.mlp_norm(x_BTD))
        report_units(inner)
        y_BTD = self.mlp_out(exact_gelu(inner) if self.exact_gelu else gelu(inner))
        return x_BTD + self.mlp_dropout(y_BTD), cache


class GptModel(LanguageModel):
    """A GPT-like decoder: layer norms, and learned positions or ALiBi."""

    position_embedding: Float[Array, "P D"] | None
    """None where positions are known by ALiBi's slopes."""
    embedding_dropout: Dropout

    @staticmethod
    def init(spec: GptDecoder, **given: Unpack[BuildArguments]) -> GptModel:
        """Return a model with random weights."""
        # the key for positions is the second one, used only if they are learned
        tokens, *learned, blocks, output = jax.random.split(given["key"], 4 if spec.learned_positions else 3)

        def block(key: PRNGKeyArray) -> GptBlock:
            return GptBlock.init(spec, key, implementation=given["implementation"], fp8=given["fp8"])

        common = parts(spec, block, given, keys=(tokens, blocks, output))
        places = (common["context_length"], spec.hidden)
        return GptModel(
            **common,
            final_norm=_norm(spec),
            final_softcap=None,
            position_embedding=jax.random.normal(learned[0], places) * (spec.initializer_range / 2)
            if learned
            else None,
            embedding_dropout=Dropout(spec.embedding_dropout),
        )

    def hidden_states(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """As `LanguageModel.hidden_states`. Slopes without a cache go by distances in the row, whatever the positions
        are called."""
        assert segments_BT is None or cache is None
        x_BTD = self.embedding_noise(lookup(self.token_embedding, tokens_BT))
        if self.position_embedding is not None:
            # positions from 0 are a slice instead of a lookup, so that their gradient needs no scatter
            if positions_BT is None:
                x_BTD = add(x_BTD, jax.tree.map(lambda rows_PD: rows_PD[: tokens_BT.shape[1]], self.position_embedding))
            else:
                x_BTD = x_BTD + lookup(self.position_embedding, positions_BT)
        at_BT = positions(tokens_BT) if positions_BT is None else positions_BT

        def layer(x_BTD: Array, block_and_cache: tuple[GptBlock, KeyValues | None]) -> tuple[Array, KeyValues | None]:
            block, cache = block_and_cache
            return block(x_BTD, at_BT, segments_BT, cache)

        return self._through(layer, self.embedding_dropout(x_BTD), (self.blocks, cache), segments_BT)


def _norm(spec: GptDecoder) -> LayerNorm:
    return LayerNorm.init(spec.hidden, epsilon=spec.norm_epsilon, bias=spec.biased)


build = GptModel.init
