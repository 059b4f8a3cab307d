"""The blocks of encoder-decoders.

Shapes as in `layers.py`; S positions that queries look at, N buckets of distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import AttentionSpec, KeyValues, causal_attention
from trainkit.models.blockwise_attention import default_scale
from trainkit.models.custom_vjps import exact_gelu, gelu
from trainkit.models.dropout import Dropout
from trainkit.models.layers import LayerNorm, Linear, RmsNorm
from trainkit.models.master_weights import Weight, exact
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.encoder_decoder import DistanceBuckets, EncoderDecoder

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "gelu": gelu, "exact-gelu": exact_gelu}


class EncoderDecoderAttention(eqx.Module):
    """Attention of a stack to itself, or of the decoder to the encoder's output."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    dropout: Dropout
    """Of the probabilities."""
    heads: int = eqx.field(static=True)
    scale: float | None = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    @staticmethod
    def init(
        spec: EncoderDecoder, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool
    ) -> EncoderDecoderAttention:
        """Return a fresh one."""
        d, width = spec.hidden, spec.heads * spec.key_width
        keys = iter(jax.random.split(key, 4))

        def linear(inputs: int, outputs: int, scale: float) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=spec.biased, fp8=fp8)

        return EncoderDecoderAttention(
            query=linear(d, width, spec.query_scale),
            key=linear(d, width, spec.weight_scale(d)),
            value=linear(d, width, spec.weight_scale(d)),
            output=linear(width, d, spec.weight_scale(width)),
            dropout=Dropout(spec.probability_dropout),
            heads=spec.heads,
            scale=spec.score_scale,
            implementation=implementation,
        )

    def key_values(self, x_BSD: Float[Array, "B S D"]) -> KeyValues:
        """Return the keys and values of positions."""
        return KeyValues(self._by_head(self.key(x_BSD)), self._by_head(self.value(x_BSD)))

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        over: KeyValues,
        *,
        visible_BTS: Bool[Array, "#B #T S"] | None = None,
        bias_HTS: Float[Array, "H T S"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "B T D"]:
        """Return the attention of these positions to those of `over` that they see. The softmax is in float32."""
        q_BTHK = self._by_head(self.query(x_BTD))
        if self.dropout.is_on:
            y_BTHK = self._attend_with_dropout(q_BTHK, over, visible_BTS, bias_HTS, causal=causal)
        elif causal and bias_HTS is None:
            spec = AttentionSpec(scale=self.scale)
            y_BTHK = causal_attention(q_BTHK, *over, None, implementation=self.implementation, spec=spec)
        else:
            probe.report_scores(lambda: self._scores(q_BTHK, over.k_BSGK, visible_BTS, bias_HTS, causal=causal))
            y_BTHK = jax.nn.dot_product_attention(
                q_BTHK,
                *over,
                bias=None if bias_HTS is None else bias_HTS[None],
                mask=None if visible_BTS is None else visible_BTS[:, None],
                scale=self.scale,
                is_causal=causal,
                implementation="xla",
            )
        return self.output(y_BTHK.reshape(*x_BTD.shape[:2], -1))

    def _attend_with_dropout(
        self, q_BTHK: Array, over: KeyValues, visible_BTS: Array | None, bias_HTS: Array | None, *, causal: bool
    ) -> Float[Array, "B T H K"]:
        """Return attention with dropout of its probabilities. No kernel supports that, so all of them are computed."""
        scores_BHTS = self._scores(q_BTHK, over.k_BSGK, visible_BTS, bias_HTS, causal=causal)
        probe.report_scores(lambda: scores_BHTS)
        p_BHTS = self.dropout(jax.nn.softmax(scores_BHTS)).astype(q_BTHK.dtype)
        return jnp.einsum("bhts,bshk->bthk", p_BHTS, over.v_BSGK)

    def _scores(
        self, q_BTHK: Array, k_BSHK: Array, visible_BTS: Array | None, bias_HTS: Array | None, *, causal: bool
    ) -> Float[Array, "B H T S"]:
        scale = default_scale(q_BTHK) if self.scale is None else self.scale
        scores_BHTS = jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK, preferred_element_type=jnp.float32) * scale
        if bias_HTS is not None:
            scores_BHTS += bias_HTS
        if causal:
            visible_BTS = jnp.tri(q_BTHK.shape[1], dtype=bool)[None]
        if visible_BTS is not None:
            scores_BHTS = jnp.where(visible_BTS[:, None], scores_BHTS, -1e30)
        return scores_BHTS

    def _by_head(self, x_BTD: Array) -> Float[Array, "B T H K"]:
        return x_BTD.reshape(*x_BTD.shape[:2], self.heads, -1)


class EncoderDecoderBlock(eqx.Module):
    """Attention, in the decoder also attention to the source, and an MLP; each with a norm before it or
    after its sum."""

    attention: EncoderDecoderAttention
    attention_norm: LayerNorm | RmsNorm
    cross: EncoderDecoderAttention | None
    """To the source; None in the encoder."""
    cross_norm: LayerNorm | RmsNorm | None
    mlp_in: Linear | None
    """None where the MLP is gated."""
    mlp_gate: Linear | None
    mlp_up: Linear | None
    mlp_out: Linear
    mlp_norm: LayerNorm | RmsNorm
    attention_dropout: Dropout
    """Of the output of attention; the next two are similar."""
    cross_dropout: Dropout
    mlp_dropout: Dropout
    inner_dropout: Dropout
    """Of the numbers inside the MLP."""
    norms: Literal["before", "after"] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    @staticmethod
    def init(
        spec: EncoderDecoder, key: PRNGKeyArray, *, cross: bool, implementation: AttentionName, fp8: bool
    ) -> EncoderDecoderBlock:
        """Return a fresh one; `cross` says whether it is of the decoder."""
        d, f, gated = spec.hidden, spec.mlp_width, spec.gated_mlp
        keys = iter(jax.random.split(key, 5))

        def linear(inputs: int, outputs: int) -> Linear:
            scale = spec.weight_scale(inputs)
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=spec.biased, fp8=fp8)

        def attention() -> EncoderDecoderAttention:
            return EncoderDecoderAttention.init(spec, next(keys), implementation=implementation, fp8=fp8)

        return EncoderDecoderBlock(
            attention=attention(),
            attention_norm=norm_of(spec),
            cross=attention() if cross else None,
            cross_norm=norm_of(spec) if cross else None,
            mlp_in=None if gated else linear(d, f),
            mlp_gate=linear(d, f) if gated else None,
            mlp_up=linear(d, f) if gated else None,
            mlp_out=linear(f, d),
            mlp_norm=norm_of(spec),
            attention_dropout=Dropout(spec.dropout),
            cross_dropout=Dropout(spec.dropout),
            mlp_dropout=Dropout(spec.dropout),
            inner_dropout=Dropout(spec.inner_dropout),
            norms=spec.norms,
            activation=spec.activation,
        )

    def encode(
        self, x_BSD: Float[Array, "B S D"], visible_BSS: Bool[Array, "B S S"], bias_HSS: Float[Array, "H S S"] | None
    ) -> Float[Array, "B S D"]:
        """Return the positions of a source after this block."""
        inner_BSD = self._before(self.attention_norm, x_BSD)
        own = self.attention.key_values(inner_BSD)
        y_BSD = self.attention(inner_BSD, own, visible_BTS=visible_BSS, bias_HTS=bias_HSS)
        return self._mlp(self._after(self.attention_norm, x_BSD, self.attention_dropout(y_BSD)))

    def decode(
        self,
        x_BTD: Float[Array, "B T D"],
        memory: KeyValues,
        memory_visible_NS: Bool[Array, "N S"],
        bias_HTS: Float[Array, "H T S"] | None,
        *,
        cache: KeyValues | None = None,
        at_T: Int[Array, " T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues]:
        """Return the positions of a target after this block, and their own keys and values.

        With a `cache`, these positions are at `at_T` in it, and the cache with them is returned.
        The memory may have fewer rows, N: then B / N rows that follow one another read the same source.
        """
        assert self.cross is not None and self.cross_norm is not None
        inner_BTD = self._before(self.attention_norm, x_BTD)
        own, visible_1TS = self.attention.key_values(inner_BTD), None
        if cache is not None:
            assert at_T is not None
            own = KeyValues(
                *(jax.lax.dynamic_update_slice_in_dim(*both, at_T[0], axis=1) for both in zip(cache, own, strict=True))
            )
            visible_1TS = (jnp.arange(own.k_BSGK.shape[1]) <= at_T[:, None])[None]
        y_BTD = self.attention(inner_BTD, own, visible_BTS=visible_1TS, bias_HTS=bias_HTS, causal=cache is None)
        x_BTD = self._after(self.attention_norm, x_BTD, self.attention_dropout(y_BTD))
        # what a position takes from the source depends on no other position: those of B / N rows are like those of one
        inner_NTD = self._before(self.cross_norm, x_BTD).reshape(len(memory_visible_NS), -1, x_BTD.shape[-1])
        with probe.attention_named("cross"):
            y_BTD = self.cross(inner_NTD, memory, visible_BTS=memory_visible_NS[:, None]).reshape(x_BTD.shape)
        return self._mlp(self._after(self.cross_norm, x_BTD, self.cross_dropout(y_BTD))), own

    def _mlp(self, x_BTD: Array) -> Array:
        inner_BTD, activation = self._before(self.mlp_norm, x_BTD), _ACTIVATIONS[self.activation]
        if self.mlp_in is not None:
            units_BTF = self.mlp_in(inner_BTD)
            wide_BTF = activation(units_BTF)
        else:
            assert self.mlp_gate is not None and self.mlp_up is not None
            units_BTF = self.mlp_gate(inner_BTD)
            wide_BTF = activation(units_BTF) * self.mlp_up(inner_BTD)
        probe.report_units(units_BTF)
        y_BTD = self.mlp_out(self.inner_dropout(wide_BTF))
        return self._after(self.mlp_norm, x_BTD, self.mlp_dropout(y_BTD))

    def _before(self, norm: LayerNorm | RmsNorm, x_BTD: Array) -> Array:
        return norm(x_BTD) if self.norms == "before" else x_BTD

    def _after(self, norm: LayerNorm | RmsNorm, x_BTD: Array, y_BTD: Array) -> Array:
        return x_BTD + y_BTD if self.norms == "before" else norm(x_BTD + y_BTD)


def norm_of(spec: EncoderDecoder) -> LayerNorm | RmsNorm:
    """Return a fresh norm of the family's kind."""
    if spec.mean_norms:
        return LayerNorm.init(spec.hidden, epsilon=spec.norm_epsilon)
    return RmsNorm.init(spec.hidden, epsilon=spec.norm_epsilon)


def distance_bias(
    table_NH: Float[Array, "N H"] | Weight,
    queries_T: Int[Array, " T"],
    keys_S: Int[Array, " S"],
    distances: DistanceBuckets,
    *,
    causal: bool,
) -> Float[Array, "H T S"]:
    """Return what is added to the scores of these positions, in float32 (Raffel et al. 2020, section 2.1)."""
    steps_TS = jnp.clip(keys_S - queries_T[:, None], -distances.longest, distances.longest)
    buckets_TS = jnp.asarray(buckets(distances, causal=causal))[steps_TS + distances.longest]
    return jnp.moveaxis(exact(table_NH)[buckets_TS], -1, 0)


def buckets(distances: DistanceBuckets, *, causal: bool) -> Int[np.ndarray, " 2*longest+1"]:
    """Return the bucket of every step from a query to a key, from -longest to longest.

    The nearer half of the buckets have a distance each, the others share all distances up to `longest`, in equal parts
    of its logarithm. Without `causal`, one half of all is for keys before the query and the other for those after it.
    """
    count, longest = distances.buckets if causal else distances.buckets // 2, distances.longest
    single, distance = count // 2, np.arange(longest + 1, dtype=np.float32)
    # in float32, as in T5's training, because rounding decides the bucket of distances near a bound
    parts = np.log(np.maximum(distance, 1) / np.float32(single)) / np.float32(math.log(longest / single))
    shared = np.minimum(single + (parts * np.float32(count - single)).astype(np.int32), count - 1)
    back = np.where(distance < single, distance, shared).astype(np.int32)
    forth = np.zeros(longest, np.int32) if causal else back[1:] + count
    return np.concatenate([back[::-1], forth])
