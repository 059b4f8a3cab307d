"""Encoder-decoders (Vaswani et al. 2017): T5, BART and families like them.

Shapes as in `layers.py`; S positions of the source, C positions of a cache, P learned positions, N buckets of
distances.
"""

from __future__ import annotations

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import KeyValues
from trainkit.models.build import BuildArguments
from trainkit.models.classifier import Classifier
from trainkit.models.dropout import Dropout
from trainkit.models.encoder_decoder_block import EncoderDecoderBlock, distance_bias, norm_of
from trainkit.models.layers import LayerNorm, RmsNorm, logits
from trainkit.models.master_weights import Weight, exact, lookup
from trainkit.models.stack import scan_layers
from trainkit.recipe.families.encoder_decoder import DistanceBuckets, EncoderDecoder
from trainkit.recipe.families.sizes import Remat


class StackEnds(eqx.Module):
    """The parts of the encoder, or of the decoder, around its blocks."""

    position_embedding: Float[Array, "P D"] | None
    """None where positions are known by distances."""
    distance_embedding: Float[Array, "N H"] | None
    """What scores have added by the distance of query and key, the same in all blocks."""
    embedding_norm: LayerNorm | RmsNorm | None
    final_norm: LayerNorm | RmsNorm | None
    embedding_dropout: Dropout
    final_dropout: Dropout

    @staticmethod
    def init(spec: EncoderDecoder, sequence_length: int, key: PRNGKeyArray) -> StackEnds:
        """Return fresh ones."""
        positions = distances = None
        if spec.first_position is not None:
            rows = spec.first_position + (spec.context_length or sequence_length)
            positions = jax.random.normal(key, (rows, spec.hidden)) * spec.initializer_range
        if spec.distances is not None:
            scale = spec.weight_scale(spec.hidden)
            distances = jax.random.normal(key, (spec.distances.buckets, spec.heads)) * scale
        return StackEnds(
            position_embedding=positions,
            distance_embedding=distances,
            embedding_norm=norm_of(spec) if spec.embedding_norms else None,
            final_norm=norm_of(spec) if spec.norms == "before" else None,
            embedding_dropout=Dropout(spec.dropout),
            final_dropout=Dropout(spec.dropout if spec.norms == "before" else 0.0),
        )


class Stacks(eqx.Module):
    """The blocks of both stacks: every leaf has a leading axis of layers."""

    encoder: EncoderDecoderBlock
    decoder: EncoderDecoderBlock


class DecoderCache(eqx.Module):
    """The keys and values of the tokens that the decoder has read, and of the source."""

    own: KeyValues
    """Room for C positions; the first `length` of them are in use."""
    memory: KeyValues
    """Of the N sources, each of which B / N rows read."""
    memory_visible_NS: Bool[Array, "N S"]
    length: Int[Array, ""]

    def rows(self, rows_B: Int[Array, " B"]) -> DecoderCache:
        """Return the cache of these of its rows, such as the best beams; each must have the source of the row in its
        place."""
        own = jax.tree.map(lambda x_LB: x_LB[:, rows_B], self.own)
        return DecoderCache(own, self.memory, self.memory_visible_NS, self.length)


class EncoderDecoderModel(eqx.Module):
    """An encoder that reads a source, and a decoder that predicts its target, or reads the source again to score it."""

    token_embedding: Float[Array, "V D"]
    encoder: StackEnds
    decoder: StackEnds
    blocks: Stacks
    output: Float[Array, "V D"] | None
    """None if it is the token embedding, or if there is a classifier instead."""
    output_bias: Float[Array, "1 V"] | None
    """Added to the logits; it is not trained."""
    classifier: Classifier | None
    """None where tokens are predicted."""
    embedding_scale: float | None = eqx.field(static=True)
    output_scale: float | None = eqx.field(static=True)
    first_position: int | None = eqx.field(static=True)
    distances: DistanceBuckets | None = eqx.field(static=True)
    decoder_start: int | None = eqx.field(static=True)
    """The token that the decoder begins with, where the recipe or a checkpoint says it."""
    context_length: int = eqx.field(static=True)
    """The longest source, and the longest target, that it is meant for, in tokens."""
    remat: Remat = eqx.field(static=True)

    @staticmethod
    def init(spec: EncoderDecoder, **given: Unpack[BuildArguments]) -> EncoderDecoderModel:
        """Return a fresh model, in float32."""
        tokens, source, target, encoder, decoder, output = jax.random.split(given["key"], 6)

        def stack(key: PRNGKeyArray, layers: int, *, cross: bool) -> EncoderDecoderBlock:
            def block(key: PRNGKeyArray) -> EncoderDecoderBlock:
                return EncoderDecoderBlock.init(
                    spec, key, cross=cross, implementation=given["implementation"], fp8=given["fp8"]
                )

            blocks: EncoderDecoderBlock = jax.vmap(block)(jax.random.split(key, layers))
            return blocks

        def table(key: PRNGKeyArray) -> Float[Array, "V D"]:
            return jax.random.normal(key, (given["vocab_size"], spec.hidden)) * spec.initializer_range

        return EncoderDecoderModel(
            token_embedding=table(tokens),
            encoder=StackEnds.init(spec, given["sequence_length"], source),
            decoder=StackEnds.init(spec, given["sequence_length"], target),
            blocks=Stacks(stack(encoder, spec.layers, cross=False), stack(decoder, spec.decoder_blocks, cross=True)),
            output=table(output) if spec.predicts_tokens and not spec.tied else None,
            output_bias=jnp.zeros((1, given["vocab_size"])) if spec.predicts_tokens and spec.output_biased else None,
            classifier=Classifier.init(spec, output),
            embedding_scale=spec.embedding_scale,
            output_scale=spec.output_scale,
            first_position=spec.first_position,
            distances=spec.distances,
            decoder_start=spec.decoder_start,
            context_length=spec.context_length or given["sequence_length"],
            remat=given["remat"],
        )

    def encode(self, tokens_BS: Int[Array, "B S"], segments_BS: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Return the encoder's output for sources. Every position sees its segment; segment 0 is padding."""
        at_S = jnp.arange(tokens_BS.shape[1])
        same_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
        bias_HSS = self._bias(self.encoder, at_S, at_S, causal=False)

        def layer(x_BSD: Array, block: EncoderDecoderBlock) -> tuple[Array, None]:
            return block.encode(x_BSD, same_BSS, bias_HSS), None

        x_BSD = self._embed(self.encoder, tokens_BS, at_S)
        blocks, remat = self.blocks.encoder, self.remat
        x_BSD, _ = scan_layers(layer, x_BSD, blocks, remat=remat, segments_BT=segments_BS, stack="blocks.encoder")
        return _finish(self.encoder, x_BSD)

    def decode(
        self, tokens_BT: Int[Array, "B T"], memory_BSD: Float[Array, "B S D"], memory_segments_BS: Int[Array, "B S"]
    ) -> Float[Array, "B T D"]:
        """Return the last hidden states for the decoder's input: `decoder_start`, then the target without its last
        token.

        A position sees those before it, and the positions of the source whose segment is above 0.
        """
        at_T, visible_BS = jnp.arange(tokens_BT.shape[1]), memory_segments_BS > 0
        bias_HTT = self._bias(self.decoder, at_T, at_T, causal=True)

        def layer(x_BTD: Array, block: EncoderDecoderBlock) -> tuple[Array, None]:
            assert block.cross is not None
            memory = block.cross.key_values(memory_BSD)
            return block.decode(x_BTD, memory, visible_BS, bias_HTT)[0], None

        x_BTD = self._embed(self.decoder, tokens_BT, at_T)
        blocks, remat = self.blocks.decoder, self.remat
        x_BTD, _ = scan_layers(layer, x_BTD, blocks, remat=remat, segments_BT=None, stack="blocks.decoder")
        return _finish(self.decoder, x_BTD)

    def start(
        self, memory_NSD: Float[Array, "N S D"], memory_segments_NS: Int[Array, "N S"], length: int, *, beams: int = 1
    ) -> DecoderCache:
        """Return a cache with room for `length` positions of the targets of these sources.

        Each source has `beams` targets, whose rows follow one another.
        """

        def layer(_: None, block: EncoderDecoderBlock) -> tuple[None, KeyValues]:
            assert block.cross is not None
            return None, block.cross.key_values(memory_NSD)

        _, memory = jax.lax.scan(layer, None, self.blocks.decoder)
        layers, rows, _, *rest = memory.k_BSGK.shape
        room = jnp.zeros((layers, rows * beams, length, *rest), memory.k_BSGK.dtype)
        return DecoderCache(KeyValues(room, room), memory, memory_segments_NS > 0, jnp.int32(0))

    def step(self, tokens_BT: Int[Array, "B T"], cache: DecoderCache) -> tuple[Float[Array, "B V"], DecoderCache]:
        """Return the logits that follow these tokens, which continue the cache's, and the cache with them added."""
        at_T = cache.length + jnp.arange(tokens_BT.shape[1])
        bias_HTC = self._bias(self.decoder, at_T, jnp.arange(cache.own.k_BSGK.shape[2]), causal=True)

        def layer(x_BTD: Array, of_layer: tuple[EncoderDecoderBlock, KeyValues, KeyValues]) -> tuple[Array, KeyValues]:
            block, own, memory = of_layer
            return block.decode(x_BTD, memory, cache.memory_visible_NS, bias_HTC, cache=own, at_T=at_T)

        x_BTD = self._embed(self.decoder, tokens_BT, at_T)
        x_BTD, own = jax.lax.scan(layer, x_BTD, (self.blocks.decoder, cache.own, cache.memory))
        logits_BV = self.logits(_finish(self.decoder, x_BTD[:, -1]))
        return logits_BV, DecoderCache(own, cache.memory, cache.memory_visible_NS, at_T[-1] + 1)

    def hidden_and_penalty(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        counted_BT: Bool[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, ""]]:
        """Return the last hidden states of texts that both encoder and decoder read, and 0 as the auxiliary loss.

        The decoder reads them shifted by one token, after `decoder_start`, as transformers does to score a text.
        """
        assert positions_BT is None, "texts with classes are rows of their own"
        segments_BT = jnp.ones_like(tokens_BT) if segments_BT is None else segments_BT
        # where texts have classes there is such a token: see `EncoderDecoder.with_head`
        behind_BT = jnp.roll(tokens_BT, 1, axis=1).at[:, 0].set(self.decoder_start or 0)
        memory_BTD = self.encode(tokens_BT, segments_BT)
        with probe.mark_tokens(segments_BT > 0):
            return self.decode(behind_BT, memory_BTD, segments_BT), jnp.float32(0)

    def scores(self, hidden_BTD: Float[Array, "B T D"], segments_BT: Int[Array, "B T"]) -> Float[Array, "B C"]:
        """Return the scores of classes, as `Classifier` does."""
        assert self.classifier is not None, "the head of this model predicts tokens"
        return self.classifier(hidden_BTD, segments_BT)

    def prediction_states(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n E"]:
        """Return the vectors whose products with the rows of `output_matrix` are the logits; with a bias, a 1 is
        appended."""
        states = self._scale(hidden_BTD)
        return states if self.output_bias is None else jnp.concatenate([states, jnp.ones_like(states[..., :1])], -1)

    def output_matrix(self) -> Float[Array, "V E"] | Weight:
        """Return the output matrix, with the bias of the logits, if any, as a last column."""
        matrix_VD = self._output_matrix()
        if self.output_bias is None:
            return matrix_VD

        def with_bias(matrix_VD: Array, bias_1V: Array) -> Array:
            return jnp.concatenate([matrix_VD, jax.lax.stop_gradient(bias_1V).T], -1)

        return jax.tree.map(with_bias, matrix_VD, self.output_bias)

    def logits(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        """Return the logits of every entry of the vocabulary, in float32."""
        found = logits(self._scale(hidden_BTD), Weight.of(self._output_matrix()).rounded)
        return found if self.output_bias is None else found + jax.lax.stop_gradient(exact(self.output_bias))[0]

    def _output_matrix(self) -> Float[Array, "V D"]:
        return self.token_embedding if self.output is None else self.output

    def _scale(self, hidden_BTD: Array) -> Array:
        if self.output_scale is None:
            return hidden_BTD
        return hidden_BTD * jnp.asarray(self.output_scale, hidden_BTD.dtype)

    def _embed(self, ends: StackEnds, tokens_BT: Array, at_T: Array) -> Float[Array, "B T D"]:
        x_BTD = lookup(self.token_embedding, tokens_BT)
        if self.embedding_scale is not None:
            x_BTD = x_BTD * jnp.asarray(self.embedding_scale, x_BTD.dtype)
        if ends.position_embedding is not None:
            assert self.first_position is not None
            # in float32, since the gradient of a position is a sum over rows
            x_BTD = (x_BTD + exact(ends.position_embedding)[self.first_position + at_T]).astype(x_BTD.dtype)
        return ends.embedding_dropout(_norm(ends.embedding_norm, x_BTD))

    def _bias(self, ends: StackEnds, queries_T: Array, keys_S: Array, *, causal: bool) -> Float[Array, "H T S"] | None:
        if ends.distance_embedding is None:
            return None
        assert self.distances is not None
        return distance_bias(ends.distance_embedding, queries_T, keys_S, self.distances, causal=causal)


def _finish(ends: StackEnds, x_BTD: Array) -> Array:
    return ends.final_dropout(_norm(ends.final_norm, x_BTD))


def _norm(norm: LayerNorm | RmsNorm | None, x_BTD: Array) -> Array:
    return x_BTD if norm is None else norm(x_BTD)


build = EncoderDecoderModel.init
