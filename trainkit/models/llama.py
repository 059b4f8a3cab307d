"""Llama (Touvron et al. 2023), as the Hugging Face checkpoints of the family mean it. Shapes as in `attention.py`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.models.attention import KeyValues, attention
from trainkit.models.layers import Linear, RmsNorm, rotate
from trainkit.models.pointwise import gated_silu
from trainkit.models.remat import block_input, rematerialised
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.model import Llama as LlamaSpec
from trainkit.recipe.train import Remat


class Attention(eqx.Module):
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int = eqx.field(static=True)
    kv_heads: int = eqx.field(static=True)
    rope_theta: float = eqx.field(static=True)
    implementation: AttentionName = eqx.field(static=True)

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        b, t, d = x_BTD.shape
        q, k, v = (
            project(x_BTD).reshape(b, t, heads, -1)
            for project, heads in ((self.query, self.heads), (self.key, self.kv_heads), (self.value, self.kv_heads))
        )
        q, k = (rotate(x, positions_BT, theta=self.rope_theta) for x in (q, k))
        y_BTHK, cache = attention(q, k, v, positions_BT, segments_BT, cache, implementation=self.implementation)
        return self.output(y_BTHK.reshape(b, t, d)), cache


class Block(eqx.Module):
    attention_norm: RmsNorm
    attention: Attention
    mlp_norm: RmsNorm
    gate: Linear
    up: Linear
    down: Linear

    @staticmethod
    def init(spec: LlamaSpec, key: PRNGKeyArray, *, implementation: AttentionName, fp8: bool) -> Block:
        d, f, kv = spec.hidden, spec.intermediate, spec.kv_width
        keys = iter(jax.random.split(key, 7))

        def linear(inputs: int, outputs: int, *, scale: float = 0.02) -> Linear:
            return Linear.init(next(keys), inputs, outputs, scale=scale, bias=False, fp8=fp8)

        # as in GPT-2: what is added to the residual stream starts smaller the deeper the model
        residual = 0.02 / (2 * spec.layers) ** 0.5
        return Block(
            RmsNorm.init(d, epsilon=spec.rms_norm_eps),
            Attention(
                linear(d, d),
                linear(d, kv),
                linear(d, kv),
                linear(d, d, scale=residual),
                spec.heads,
                spec.groups,
                spec.rope_theta,
                implementation,
            ),
            RmsNorm.init(d, epsilon=spec.rms_norm_eps),
            linear(d, f),
            linear(d, f),
            linear(f, d, scale=residual),
        )

    def __call__(
        self, x_BTD: Array, positions_BT: Array, segments_BT: Array | None, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        y_BTD, cache = self.attention(self.attention_norm(x_BTD), positions_BT, segments_BT, cache)
        x_BTD = x_BTD + y_BTD
        inner = self.mlp_norm(x_BTD)
        return x_BTD + self.down(gated_silu(self.gate(inner), self.up(inner))), cache


class Llama(eqx.Module):
    token_embedding: Float[Array, "V D"]
    blocks: Block
    """All blocks in one, every leaf with a leading axis of layers: compiled once, run by scan."""
    final_norm: RmsNorm
    output: Float[Array, "V D"] | None
    """None where it is the token embedding."""
    context_length: int = eqx.field(static=True)
    remat: Remat = eqx.field(static=True)

    @staticmethod
    def init(
        spec: LlamaSpec,
        *,
        vocab_size: int,
        sequence_length: int,
        implementation: AttentionName,
        remat: Remat,
        fp8: bool,
        key: PRNGKeyArray,
    ) -> Llama:
        tokens, blocks, output = jax.random.split(key, 3)
        d = spec.hidden
        return Llama(
            token_embedding=jax.random.normal(tokens, (vocab_size, d)) * 0.02,
            blocks=jax.vmap(lambda k: Block.init(spec, k, implementation=implementation, fp8=fp8))(
                jax.random.split(blocks, spec.layers)
            ),
            final_norm=RmsNorm.init(d, epsilon=spec.rms_norm_eps),
            output=None if spec.tied else jax.random.normal(output, (vocab_size, d)) * 0.02,
            context_length=spec.context_length or sequence_length,
            remat=remat,
        )

    def hidden(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """As `Gpt2.hidden`."""
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

    def empty_cache(self, batch: int, length: int) -> KeyValues:
        """Room for `length` positions of `batch` sequences, in the dtype of the embeddings."""
        attention = self.blocks.attention
        layers, _, width = attention.key.weight.shape
        shape = (layers, batch, length, attention.kv_heads, width // attention.kv_heads)
        zeros = jnp.zeros(shape, self.token_embedding.dtype)
        return KeyValues(zeros, zeros)
