"""GPT-2 (Radford et al. 2019). Shapes as in `layers.py`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.attention import KeyValues, attention
from trainkit.models.layers import LayerNorm, Linear, logits
from trainkit.models.pointwise import gelu
from trainkit.models.remat import block_input, rematerialised
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.model import Gpt2 as Gpt2Spec
from trainkit.recipe.train import Remat


class Attention(eqx.Module):
    qkv: Linear
    output: Linear
    heads: int = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        b, t, d = x_BTD.shape
        q, k, v = (a.reshape(b, t, self.heads, d // self.heads) for a in jnp.split(self.qkv(x_BTD), 3, axis=-1))
        y_BTHK, cache = attention(q, k, v, positions_BT, segments_BT, cache, implementation=self.implementation)
        return self.output(y_BTHK.reshape(b, t, d)), cache


class Block(eqx.Module):
    attention_norm: LayerNorm
    attention: Attention
    mlp_norm: LayerNorm
    mlp_in: Linear
    mlp_out: Linear

    @staticmethod
    def init(spec: Gpt2Spec, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> Block:
        d, f = spec.hidden, spec.mlp_width
        qkv, output, mlp_in, mlp_out = jax.random.split(key, 4)
        # the paper: what is added to the residual stream starts smaller the deeper the model
        residual = 0.02 / (2 * spec.layers) ** 0.5
        return Block(
            LayerNorm.init(d),
            Attention(
                Linear.init(qkv, d, 3 * d, scale=0.02, fp8=fp8),
                Linear.init(output, d, d, scale=residual, fp8=fp8),
                spec.heads,
                implementation,
            ),
            LayerNorm.init(d),
            Linear.init(mlp_in, d, f, scale=0.02, fp8=fp8),
            Linear.init(mlp_out, f, d, scale=residual, fp8=fp8),
        )

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        y_BTD, cache = self.attention(self.attention_norm(x_BTD), positions_BT, segments_BT, cache)
        x_BTD = x_BTD + y_BTD
        inner = gelu(self.mlp_in(self.mlp_norm(x_BTD)))
        return x_BTD + self.mlp_out(inner), cache


class Gpt2(eqx.Module):
    token_embedding: Float[Array, "V D"]
    position_embedding: Float[Array, "P D"]
    blocks: Block
    """All blocks in one, every leaf with a leading axis of layers: compiled once, run by scan."""
    final_norm: LayerNorm
    output: Float[Array, "V D"] | None
    """None where it is the token embedding: a tied weight is stored once, so it cannot come apart."""
    remat: Remat = eqx.field(static=True)

    @staticmethod
    def init(
        spec: Gpt2Spec,
        *,
        vocab_size: int,
        sequence_length: int,
        implementation: AttentionName,
        remat: Remat,
        fp8: bool,
        key: PRNGKeyArray,
    ) -> Gpt2:
        tokens, positions, blocks, output = jax.random.split(key, 4)
        d = spec.hidden
        return Gpt2(
            token_embedding=jax.random.normal(tokens, (vocab_size, d)) * 0.02,
            position_embedding=jax.random.normal(positions, (spec.context_length or sequence_length, d)) * 0.01,
            blocks=jax.vmap(lambda k: Block.init(spec, k, implementation=implementation, fp8=fp8))(
                jax.random.split(blocks, spec.layers)
            ),
            final_norm=LayerNorm.init(d),
            output=None if spec.tied else jax.random.normal(output, (vocab_size, d)) * 0.02,
            remat=remat,
        )

    @property
    def context_length(self) -> int:
        return self.position_embedding.shape[0]

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
        """Final hidden states, and the cache with these positions in it where one was given.

        Positions count from 0 where not given. With a cache, `positions_BT` says where in it these tokens stand. With
        `segments_BT`, a position attends to its own segment only; a cache holds one text, so it goes with no segments.
        """
        assert segments_BT is None or cache is None
        if positions_BT is None:
            positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
            x_BTD = self.token_embedding[tokens_BT] + self.position_embedding[: tokens_BT.shape[1]]
        else:
            x_BTD = self.token_embedding[tokens_BT] + self.position_embedding[positions_BT]

        def layer(x_BTD: Array, block_and_cache: tuple[Block, KeyValues | None]):
            block, cache = block_and_cache
            return block(block_input(x_BTD), positions_BT, segments_BT, cache)

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
