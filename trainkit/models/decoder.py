"""The rotary decoder shared by its families (`recipe/families/`). Shapes as in `attention.py`."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import KERNELS, AttentionSpec, KeyValues, Window, attention
from trainkit.models.build import BuildArguments
from trainkit.models.custom_vjps import gated_silu, gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import Linear, RmsNorm
from trainkit.models.master_weights import lookup
from trainkit.models.moe import Experts, Routing
from trainkit.models.rope import RotaryTables, rotary_tables, rotate, stack_tables
from trainkit.models.stack import LanguageModel, parts, positions, residual_scale, scan_kinds
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families import decoder as recipe
from trainkit.recipe.families.moe import Sparse
from trainkit.recipe.families.rope import Rope


class LayerContext(NamedTuple):
    """The positions of the tokens in their texts, and what a layer's attention sees."""

    positions_BT: Int[Array, "B T"]
    segments_BT: Int[Array, "B T"] | None
    window: Window
    rotary: RotaryTables
    counted_BT: Bool[Array, "B T"] | None
    """The tokens that are no padding; None where all are."""


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
            return None if spec.qk_norm is None else _norm(spec, spec.key_width if spec.qk_norm == "head" else width)

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
        before = _norm(spec, spec.hidden) if spec.norms != "after" else None
        after = _norm(spec, spec.hidden) if spec.norms != "before" else None
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


class DecoderModel(LanguageModel):
    """A decoder with rotary positions, RMS norms and gated MLPs."""

    windows: tuple[int | None, ...] = eqx.field(static=True)
    ropes: tuple[Rope, ...] = eqx.field(static=True)
    embedding_scale: float | None = eqx.field(static=True)
    router_loss: float = eqx.field(static=True)
    """Coefficient of `Routing.balance_loss`; 0 where there are no experts."""

    @staticmethod
    def init(spec: recipe.Decoder, **given: Unpack[BuildArguments]) -> DecoderModel:
        """Return a model with random weights."""

        def block(key: PRNGKeyArray) -> DecoderBlock:
            return DecoderBlock.init(spec, key, implementation=given["implementation"], fp8=given["fp8"])

        tokens, blocks, output = jax.random.split(given["key"], 3)
        common = parts(spec, block, given, keys=(tokens, blocks, output))
        return DecoderModel(
            **common,
            final_norm=_norm(spec, spec.hidden),
            final_softcap=spec.softcap_of_logits,
            windows=spec.windows,
            ropes=spec.ropes,
            embedding_scale=spec.hidden**0.5 if spec.scaled_embedding else None,
            router_loss=spec.router_loss if isinstance(spec, Sparse) else 0.0,
        )

    def hidden_states(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """As `LanguageModel.hidden_states`."""
        hidden_BTD, cache, _ = self._run(tokens_BT, positions_BT, segments_BT, cache)
        return hidden_BTD, cache

    def hidden_and_penalty(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        counted_BT: Bool[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, ""]]:
        """As `LanguageModel.hidden_and_penalty`: how unevenly the experts were busy with these tokens."""
        with probe.mark_tokens(counted_BT):
            hidden_BTD, _, routing = self._run(tokens_BT, positions_BT, segments_BT, None, counted_BT)
        if routing is None or not self.router_loss:
            return hidden_BTD, jnp.float32(0)
        return hidden_BTD, self.router_loss * routing.balance_loss()

    def _run(
        self,
        tokens_BT: Array,
        positions_BT: Array | None,
        segments_BT: Array | None,
        cache: KeyValues | None,
        counted_BT: Array | None = None,
    ) -> tuple[Array, KeyValues | None, Routing | None]:
        assert segments_BT is None or cache is None
        at_BT = positions(tokens_BT) if positions_BT is None else positions_BT
        if counted_BT is None and segments_BT is not None:
            counted_BT = segments_BT > 0
        x_BTD = self.embedding_noise(lookup(self.token_embedding, tokens_BT))
        if self.embedding_scale is not None:
            x_BTD = x_BTD * jnp.asarray(self.embedding_scale, x_BTD.dtype)
        width, attention = self.blocks.attention.key_width, self.blocks.attention

        def through(
            x_BTD: Array, block: DecoderBlock, cache: KeyValues | None, window: Window, rotary: RotaryTables
        ) -> tuple[Array, tuple[KeyValues | None, Routing | None]]:
            place = LayerContext(at_BT, segments_BT, window, rotary, counted_BT)
            x_BTD, cache, routing = block(x_BTD, place, cache)
            return x_BTD, (cache, routing)

        if len(set(self.windows)) > 1 and cache is None and attention.implementation in KERNELS:

            def layer_of_kind(x_BTD: Array, block: DecoderBlock, kind: tuple[int | None, Rope]) -> tuple[Array, Any]:
                window, rope = kind
                return through(x_BTD, block, None, window, rotary_tables(rope, width))

            # fast attention supports windows that are constants
            kinds = tuple(zip(self.windows, self.ropes, strict=True))
            x_BTD, (_, routing) = scan_kinds(
                layer_of_kind, kinds, x_BTD, self.blocks, remat=self.remat, segments_BT=segments_BT
            )
            return self.final_norm(x_BTD), None, routing

        # what is the same in all layers is a constant; what differs is scanned over
        window_L = None if len(set(self.windows)) == 1 else jnp.asarray([w or 0 for w in self.windows], jnp.int32)
        rotary_L = (
            None if len(set(self.ropes)) == 1 else stack_tables([rotary_tables(rope, width) for rope in self.ropes])
        )

        def layer(x_BTD: Array, of_layer: tuple[DecoderBlock, KeyValues | None, Array | None, RotaryTables | None]):
            block, cache, window, rotary = of_layer
            visible_window = self.windows[0] if window is None else window
            return through(x_BTD, block, cache, visible_window, rotary or rotary_tables(self.ropes[0], width))

        x_BTD, (cache, routing) = self._through(layer, x_BTD, (self.blocks, cache, window_L, rotary_L), segments_BT)
        return x_BTD, cache, routing


def _normalize(norm: RmsNorm | None, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    return x_BTD if norm is None else norm(x_BTD)


def _norm(spec: recipe.Decoder, width: int) -> RmsNorm:
    return RmsNorm.init(width, epsilon=spec.rms_norm_eps, offset=spec.norm_offset)


build = DecoderModel.init
