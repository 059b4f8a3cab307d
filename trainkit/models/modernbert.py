"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, norms before sublayers and gated units, in which
most layers see a window around each position.

Shapes as in `layers.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from trainkit.models.attention import AttentionSpec, Window, causal_attention
from trainkit.models.build import BuildArguments
from trainkit.models.custom_vjps import exact_gelu
from trainkit.models.dropout import Dropout
from trainkit.models.encoder import EncoderModel, encoder_norm, encoder_parts
from trainkit.models.layers import LayerNorm, Linear
from trainkit.models.probe import report_units
from trainkit.models.rope import RotaryTables, rotary_tables, rotate, stack_tables
from trainkit.models.stack import residual_scale, scan_kinds, scan_layers
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.families.rope import Rope


class EncoderContext(NamedTuple):
    """The position of every token, and which others a layer sees."""

    positions_BT: Array
    segments_BT: Array | None
    window: Window
    rotary: RotaryTables


class ModernBertAttention(eqx.Module):
    """Attention of every position to its segment, or to a window around it."""

    qkv: Linear
    output: Linear
    dropout: Dropout
    """Of the probabilities."""
    heads: int = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(self, x_BTD: Array, place: EncoderContext) -> Float[Array, "B T D"]:
        b, t, d = x_BTD.shape
        q, k, v = (x.reshape(b, t, self.heads, d // self.heads) for x in jnp.split(self.qkv(x_BTD), 3, axis=-1))
        q, k = (rotate(x, place.positions_BT, place.rotary) for x in (q, k))
        spec = AttentionSpec(place.window, causal=False, dropout=self.dropout)
        y_BTHK = causal_attention(q, k, v, place.segments_BT, implementation=self.implementation, spec=spec)
        return self.output(y_BTHK.reshape(b, t, d))


class ModernBertBlock(eqx.Module):
    """Attention, whose norm is not part of the block, and a gated MLP with a norm before it."""

    attention: ModernBertAttention
    attention_dropout: Dropout
    """Of the output of attention."""
    mlp_norm: LayerNorm
    mlp_in: Linear
    """Computes the input of the GELU and the gate."""
    mlp_dropout: Dropout
    mlp_out: Linear

    @staticmethod
    def init(spec: ModernBert, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> ModernBertBlock:
        """Return a block with random weights."""
        d, f, scale, residual = spec.hidden, spec.mlp_width, spec.initializer_range, residual_scale(spec)
        keys = iter(jax.random.split(key, 4))

        def linear(inputs: int, outputs: int, scale: float) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=False, fp8=fp8)

        rate = Dropout(spec.attention_dropout)
        return ModernBertBlock(
            ModernBertAttention(linear(d, 3 * d, scale), linear(d, d, residual), rate, spec.heads, implementation),
            rate,
            encoder_norm(spec),
            linear(d, 2 * f, scale),
            Dropout(spec.mlp_dropout),
            linear(f, d, residual),
        )

    def __call__(self, x_BTD: Array, normed_BTD: Array, place: EncoderContext) -> Float[Array, "B T D"]:
        x_BTD = x_BTD + self.attention_dropout(self.attention(normed_BTD, place))
        inner, gate = jnp.split(self.mlp_in(self.mlp_norm(x_BTD)), 2, axis=-1)
        report_units(inner)
        return x_BTD + self.mlp_out(self.mlp_dropout(exact_gelu(inner) * gate))


class ModernBertModel(EncoderModel):
    """ModernBERT: see the module."""

    attention_norm: LayerNorm
    """The norms before attention, (L - 1, D): the first layer has none, since the embeddings have one."""
    final_norm: LayerNorm
    windows: tuple[int | None, ...] = eqx.field(static=True)
    ropes: tuple[Rope, ...] = eqx.field(static=True)

    def encode(self, x_BTD: Array, at_BT: Array, segments_BT: Array | None) -> Float[Array, "B T D"]:
        """Return the last hidden states, from embeddings of tokens at these positions."""
        width = x_BTD.shape[-1] // self.blocks.attention.heads
        first_L = jnp.arange(len(self.windows)) == 0
        # the scan needs a norm for the first layer too, which does not use it
        norm_L = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:1], leaf]), self.attention_norm)

        def through(x_BTD: Array, of_layer: Any, window: Window, rotary: RotaryTables) -> tuple[Array, None]:
            block, norm, is_first = of_layer
            normed_BTD = jnp.where(is_first, x_BTD, norm(x_BTD))
            return block(x_BTD, normed_BTD, EncoderContext(at_BT, segments_BT, window, rotary)), None

        each = (self.blocks, norm_L, first_L)
        if self.blocks.attention.implementation == "pallas":  # it supports windows that are constants

            def layer_of_kind(x_BTD: Array, of_layer: Any, kind: tuple[int | None, Rope]) -> tuple[Array, None]:
                return through(x_BTD, of_layer, kind[0], rotary_tables(kind[1], width))

            kinds = tuple(zip(self.windows, self.ropes, strict=True))
            x_BTD, _ = scan_kinds(layer_of_kind, kinds, x_BTD, each, remat=self.remat, segments_BT=segments_BT)
            return self.final_norm(x_BTD)

        def layer(x_BTD: Array, of_layer: Any) -> tuple[Array, None]:
            return through(x_BTD, *of_layer)

        window_L = jnp.asarray([window or 0 for window in self.windows], jnp.int32)
        rotary_L = stack_tables([rotary_tables(rope, width) for rope in self.ropes])
        x_BTD, _ = scan_layers(layer, x_BTD, (each, window_L, rotary_L), remat=self.remat, segments_BT=segments_BT)
        return self.final_norm(x_BTD)


def build(spec: ModernBert, **given: Unpack[BuildArguments]) -> ModernBertModel:
    """Return a fresh encoder, in float32."""

    def block(key: PRNGKeyArray) -> ModernBertBlock:
        return ModernBertBlock.init(spec, key, implementation=given["implementation"], fp8=given["fp8"])

    norms = jax.tree.map(lambda leaf: jnp.tile(leaf, (spec.layers - 1, 1)), encoder_norm(spec))
    return ModernBertModel(
        **encoder_parts(spec, block, given),
        attention_norm=norms,
        final_norm=encoder_norm(spec),
        windows=spec.windows,
        ropes=spec.ropes,
    )
