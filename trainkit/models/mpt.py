"""MPT (MosaicML 2023), as transformers computes it. Shapes as in `attention.py`; V vocabulary, D hidden."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.attention import KeyValues, attention
from trainkit.models.layers import Linear, logits
from trainkit.models.pointwise import exact_gelu, layer_norm
from trainkit.models.remat import block_input, rematerialised
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.mpt import Mpt as MptSpec
from trainkit.recipe.train import Remat


def slopes(heads: int) -> Float[np.ndarray, " H"]:
    """What each head takes off a score for every position that it looks back (Press et al. 2022): 2^(-8 i / n).

    For n heads, i counts them from 1. Where n is no power of two, these are of the next: first those of even i, then
    those of odd i, as many as there are heads. (The paper would take all those of the power before it first.)
    """
    power = 1 << (heads - 1).bit_length()
    all_of_them = 2.0 ** (-8 / power * np.arange(1, power + 1))
    if power == heads:
        return all_of_them.astype(np.float32)
    return np.concatenate([all_of_them[1::2], all_of_them[::2]])[:heads].astype(np.float32)


class ScaleNorm(eqx.Module):
    """Layer normalisation over the last axis, without a bias."""

    weight: Float[Array, " D"]
    epsilon: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        return layer_norm(x, self.weight, jnp.zeros_like(self.weight), self.epsilon)


class Attention(eqx.Module):
    qkv: Linear
    output: Linear
    heads: int = eqx.field(static=True)
    clip: float | None = eqx.field(static=True)
    scale: float | None = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        b, t, d = x_BTD.shape
        qkv = self.qkv(x_BTD)
        if self.clip is not None:
            qkv = jnp.clip(qkv, -self.clip, self.clip)
        q, k, v = (a.reshape(b, t, self.heads, d // self.heads) for a in jnp.split(qkv, 3, axis=-1))
        y_BTHK, cache = attention(
            q,
            k,
            v,
            positions_BT,
            segments_BT,
            cache,
            implementation=self.implementation,
            scale=self.scale,
            slopes_H=jnp.asarray(slopes(self.heads)),
        )
        return self.output(y_BTHK.reshape(b, t, d)), cache


class Block(eqx.Module):
    attention_norm: ScaleNorm
    attention: Attention
    mlp_norm: ScaleNorm
    mlp_in: Linear
    mlp_out: Linear

    @staticmethod
    def init(spec: MptSpec, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> Block:
        d, f = spec.hidden, spec.mlp_width
        keys = iter(jax.random.split(key, 4))

        def linear(inputs: int, outputs: int, scale: float) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=False, fp8=fp8)

        # as in GPT-2: what is added to the residual stream starts smaller the deeper the model
        residual = 0.02 / (2 * spec.layers) ** 0.5
        return Block(
            ScaleNorm(jnp.ones(d), spec.layer_norm_eps),
            Attention(
                linear(d, 3 * d, 0.02),
                linear(d, d, residual),
                spec.heads,
                spec.clip_qkv,
                spec.softmax_scale,
                implementation,
            ),
            ScaleNorm(jnp.ones(d), spec.layer_norm_eps),
            linear(d, f, 0.02),
            linear(f, d, residual),
        )

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        y_BTD, cache = self.attention(self.attention_norm(x_BTD), positions_BT, segments_BT, cache)
        x_BTD = x_BTD + y_BTD
        inner = exact_gelu(self.mlp_in(self.mlp_norm(x_BTD)))
        return x_BTD + self.mlp_out(inner), cache


class Mpt(eqx.Module):
    token_embedding: Float[Array, "V D"]
    blocks: Block
    """All blocks in one, every leaf with a leading axis of layers: compiled once, run by scan."""
    final_norm: ScaleNorm
    output: Float[Array, "V D"] | None
    """None where it is the token embedding."""
    context_length: int = eqx.field(static=True)
    remat: Remat = eqx.field(static=True)

    @staticmethod
    def init(
        spec: MptSpec,
        *,
        vocab_size: int,
        sequence_length: int,
        implementation: AttentionName,
        remat: Remat,
        fp8: bool,
        key: PRNGKeyArray,
    ) -> Mpt:
        tokens, blocks, output = jax.random.split(key, 3)
        d = spec.hidden
        return Mpt(
            token_embedding=jax.random.normal(tokens, (vocab_size, d)) * 0.02,
            blocks=jax.vmap(lambda k: Block.init(spec, k, implementation=implementation, fp8=fp8))(
                jax.random.split(blocks, spec.layers)
            ),
            final_norm=ScaleNorm(jnp.ones(d), spec.layer_norm_eps),
            output=None if spec.tied else jax.random.normal(output, (vocab_size, d)) * 0.02,
            context_length=spec.context_length or sequence_length,
            remat=remat,
        )

    @property
    def final_softcap(self) -> None:
        return None

    def hidden(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """As `Gpt2.hidden`. Without a cache only distances in the row count, whatever the positions are called."""
        assert segments_BT is None or cache is None
        if positions_BT is None:
            positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)

        def layer(x_BTD: Array, block_and_cache: tuple[Block, KeyValues | None]):
            block, cache = block_and_cache
            return block(block_input(x_BTD), positions_BT, segments_BT, cache)

        x_BTD = self.token_embedding[tokens_BT]
        x_BTD, cache = jax.lax.scan(rematerialised(layer, self.remat), x_BTD, (self.blocks, cache))
        return self.final_norm(x_BTD), cache

    def unembedding(self) -> Float[Array, "V D"]:
        """The matrix whose products with a hidden state are its logits."""
        return self.token_embedding if self.output is None else self.output

    def logits(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        return logits(hidden_BTD, self.unembedding())

    def empty_cache(self, batch: int, length: int) -> KeyValues:
        """Room for `length` positions of `batch` sequences, in the dtype of the embeddings."""
        layers, d = self.blocks.attention_norm.weight.shape
        heads = self.blocks.attention.heads
        zeros = jnp.zeros((layers, batch, length, heads, d // heads), self.token_embedding.dtype)
        return KeyValues(zeros, zeros)
