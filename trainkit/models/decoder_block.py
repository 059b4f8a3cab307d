"""A layer of the rotary decoder: attention and an MLP, with norms around them. Shapes as in `attention.py`."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import AttentionSpec, KeyValues, Window, attention
from trainkit.models.custom_vjps import gated_silu, gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import Linear, RmsNorm
from trainkit.models.moe import Experts, Routing
from trainkit.models.rope import RotaryTables, rotate
from trainkit.models.stack import residual_scale
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families import decoder as recipe
from trainkit.recipe.families.moe import Sparse


class LayerContext(NamedTuple):
    """The positions of the tokens in their texts, and what a layer's attention sees."""

    positions_BT: Int[Array, "B T"]
    segments_BT: Int[Array, "B T"] | None
    window: Window
    rotary: RotaryTables
    counted_BT: Bool[Array, "B T"] | None
    """True for tokens, False for padding; None without padding."""


class DecoderAttention(eqx.Module):
    """Causal attention with rotary positions and grouped queries."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    dropout: Dropout
    """Of the probabilities."""
    norm_heads: bool = eqx.field(static=True)
    """Whether queries and keys are normed head by head, not all heads of a position at once."""
    heads: int = eqx.field(static=True)
    kv_heads: int = eqx.field(static=True)
    key_width: int = eqx.field(static=True)
    scale: float | None = eqx.field(static=True)
    softcap: float | None = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    @staticmethod
    def init(
        spec: recipe.Decoder, key: PRNGKeyArray, *, residual: float, implementation: AttentionName, fp8: bool
    ) -> DecoderAttention:
        """Return attention with random weights; `residual` is the standard deviation of its output matrix."""
        d, q, kv, spread = spec.hidden, spec.query_width, spec.kv_width, spec.initializer_range
        keys = jax.random.split(key, 4)

        def linear(i: int, name: recipe.Matrix, inputs: int, outputs: int, scale: float = spread) -> Linear:
            return Linear.init(keys[i], inputs, outputs, scale=scale, bias=name in spec.biased, fp8=fp8)

        def norm(width: int) -> RmsNorm | None:
            return None if spec.qk_norm is None else rms_norm(spec, spec.key_width if spec.qk_norm == "head" else width)

        return DecoderAttention(
            linear(0, "query", d, q),
            linear(1, "key", d, kv),
            linear(2, "value", d, kv),
            linear(3, "output", q, d, residual),
            norm(q),
            norm(kv),
            Dropout(spec.attention_dropout),
            spec.qk_norm == "head",
            spec.heads,
            spec.groups,
            spec.key_width,
            spec.score_scale,
            spec.softcap_of_scores,
            implementation,
        )

    def __call__(
        self, x_BTD: Array, place: LayerContext, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        b, t, _ = x_BTD.shape

        def heads(project: Linear, norm: RmsNorm | None, count: int) -> Array:
            y = project(x_BTD)
            if norm is None or self.norm_heads:
                y_BTHK = y.reshape(b, t, count, self.key_width)
                return y_BTHK if norm is None else norm(y_BTHK)
            return norm(y).reshape(b, t, count, self.key_width)

        q_BTHK, k_BTGK = (
            rotate(x, place.positions_BT, place.rotary)
            for x in (heads(self.query, self.query_norm, self.heads), heads(self.key, self.key_norm, self.kv_heads))
        )
        y_BTHK, cache = attention(
            q_BTHK,
            k_BTGK,
            heads(self.value, None, self.kv_heads),
            place.positions_BT,
            place.segments_BT,
            cache,
            implementation=self.implementation,
            spec=AttentionSpec(place.window, self.softcap, self.scale, dropout=self.dropout),
        )
        return self.output(y_BTHK.reshape(b, t, -1)), cache


class Mlp(eqx.Module):
    """A gated unit (Shazeer 2020)."""

    gate: Linear
    up: Linear
    down: Linear
    silu: bool = eqx.field(static=True)
    """GELU by a hyperbolic tangent otherwise."""

    @staticmethod
    def init(spec: recipe.Decoder, key: PRNGKeyArray, *, residual: float, fp8: bool) -> Mlp:
        """Return an MLP with random weights; `residual` is the standard deviation of its last matrix."""
        d, f, scale = spec.hidden, spec.mlp_width, spec.initializer_range
        gate, up, down = jax.random.split(key, 3)
        return Mlp(
            Linear.init(gate, d, f, scale=scale, bias="gate" in spec.biased, fp8=fp8),
            Linear.init(up, d, f, scale=scale, bias="up" in spec.biased, fp8=fp8),
            Linear.init(down, f, d, scale=residual, bias="down" in spec.biased, fp8=fp8),
            spec.activation == "silu",
        )

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        gate, up = self.gate(x_BTD), self.up(x_BTD)
        probe.report_units(gate)
        return self.down(gated_silu(gate, up) if self.silu else gelu(gate) * up)


class DecoderBlock(eqx.Module):
    """Attention and an MLP with norms before them, after them, or both; norms that are None are omitted."""

    attention_norm: RmsNorm | None
    attention: DecoderAttention
    attention_post_norm: RmsNorm | None
    mlp_norm: RmsNorm | None
    mlp: Mlp | Experts
    mlp_post_norm: RmsNorm | None

    @staticmethod
    def init(spec: recipe.Decoder, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> DecoderBlock:
        """Return a block with random weights."""
        attention, mlp = jax.random.split(key)
        residual = residual_scale(spec)
        before = rms_norm(spec, spec.hidden) if spec.norms != "after" else None
        after = rms_norm(spec, spec.hidden) if spec.norms != "before" else None
        return DecoderBlock(
            before,
            DecoderAttention.init(spec, attention, residual=residual, implementation=implementation, fp8=fp8),
            after,
            before,
            Experts.init(spec, mlp, residual=residual)
            if isinstance(spec, Sparse)
            else Mlp.init(spec, mlp, residual=residual, fp8=fp8),
            after,
        )

    def __call__(
        self, x_BTD: Array, place: LayerContext, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None, Routing | None]:
        y_BTD, cache = self.attention(_normalize(self.attention_norm, x_BTD), place, cache)
        x_BTD = x_BTD + _normalize(self.attention_post_norm, y_BTD)
        inner_BTD, routing = _normalize(self.mlp_norm, x_BTD), None
        if isinstance(self.mlp, Experts):
            y_BTD, routing = self.mlp(inner_BTD, place.counted_BT)
        else:
            y_BTD = self.mlp(inner_BTD)
        return x_BTD + _normalize(self.mlp_post_norm, y_BTD), cache, routing


def _normalize(norm: RmsNorm | None, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    return x_BTD if norm is None else norm(x_BTD)


def rms_norm(spec: recipe.Decoder, width: int) -> RmsNorm:
    """Return a norm of this width with weights that change nothing."""
    return RmsNorm.init(width, epsilon=spec.rms_norm_eps, offset=spec.norm_offset)
