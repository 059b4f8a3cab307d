"""The parts that language models share: an embedding, blocks of one shape, a norm, and a matrix for the logits.

Shapes as in `layers.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol, TypedDict, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.models import probe
from trainkit.models.attention import KeyValues
from trainkit.models.build import BuildArguments
from trainkit.models.classifier import Classifier
from trainkit.models.dropout import EmbeddingNoise
from trainkit.models.layers import logits
from trainkit.models.remat import block_input, rematerialise
from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.families.transformer import Transformer

Kind = TypeVar("Kind", bound=Hashable)


class Heads(Protocol):
    """The heads of a block's attention."""

    @property
    def kv_heads(self) -> int:
        """Return the number of heads of keys and values."""

    @property
    def key_width(self) -> int:
        """Return the width of one head."""

    @property
    def implementation(self) -> AttentionName:
        """Return the name of what computes it."""


class Block(Protocol):
    """A block of a stack, as far as the stack knows it."""

    @property
    def attention(self) -> Heads:
        """Return its attention."""


class Norm(Protocol):
    """A norm of hidden states."""

    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n D"]: ...


class Parts(TypedDict):
    """The fields of every `LanguageModel` except its final norm and soft cap."""

    token_embedding: Array
    blocks: Any
    output: Array | None
    classifier: Classifier | None
    context_length: int
    remat: Remat
    embedding_noise: EmbeddingNoise


class LanguageModel(eqx.Module):
    """A decoder-only language model, with a cache for generation."""

    token_embedding: Float[Array, "V D"]
    blocks: Block
    """All blocks in one, every leaf with a leading axis of layers: compiled once, run by scan."""
    final_norm: Norm
    output: Float[Array, "V D"] | None
    """None where it is the token embedding: a tied weight is stored once, so it cannot come apart; and where there is
    a classifier in its place."""
    classifier: Classifier | None
    """None where tokens are predicted."""
    context_length: int = eqx.field(static=True)
    """The longest text that it is meant for, in tokens."""
    final_softcap: float | None = eqx.field(static=True)
    """What its logits are bent to stay below, where they are: see `layers.logits`."""
    remat: Remat = eqx.field(static=True)
    embedding_noise: EmbeddingNoise

    @abstractmethod
    def hidden_states(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """Return the final hidden states, and the cache with these positions added if one was given.

        Args:
            positions_BT: by default from 0; with a cache, where in it these tokens belong.
            segments_BT: if given, a position attends only to its own segment. Not with a cache, which holds one text
                per row.
        """

    def hidden_and_penalty(
        self,
        tokens_BT: Int[Array, "B T"],
        *,
        positions_BT: Int[Array, "B T"] | None = None,
        segments_BT: Int[Array, "B T"] | None = None,
        counted_BT: Bool[Array, "B T"] | None = None,
        types_BT: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, ""]]:
        """Return the final hidden states, and the auxiliary loss per token that training adds; 0 in most families.

        Args:
            counted_BT: which tokens are not padding; by default those in segments above 0, or all.
            types_BT: distinguish the texts of a pair; only encoders use them.
        """
        with probe.mark_tokens(counted_BT):
            hidden_BTD, _ = self.hidden_states(tokens_BT, positions_BT=positions_BT, segments_BT=segments_BT)
        return hidden_BTD, jnp.float32(0)

    def output_matrix(self) -> Float[Array, "V D"]:
        """Return the matrix whose products with a hidden state are its logits, before `final_softcap`."""
        return self.token_embedding if self.output is None else self.output

    def logits(self, hidden_BTD: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        """Return the logits of every entry of the vocabulary, in float32."""
        return logits(hidden_BTD, self.output_matrix(), softcap=self.final_softcap)

    def scores(self, hidden_BTD: Float[Array, "B T D"], segments_BT: Int[Array, "B T"]) -> Float[Array, "B *T C"]:
        """Return the scores of classes, as `Classifier` gives them."""
        assert self.classifier is not None, "the head of this model predicts tokens"
        return self.classifier(hidden_BTD, segments_BT)

    def empty_cache(self, batch: int, length: int) -> KeyValues:
        """Return a cache for `length` positions of `batch` sequences, in the dtype of the embeddings."""
        layers, attention = jax.tree.leaves(self.blocks)[0].shape[0], self.blocks.attention
        shape = (layers, batch, length, attention.kv_heads, attention.key_width)
        zeros = jnp.zeros(shape, self.token_embedding.dtype)
        return KeyValues(zeros, zeros)

    def _through(
        self, layer: Callable[[Array, Any], tuple[Array, Any]], x_BTD: Array, each: Any, segments_BT: Array | None
    ) -> tuple[Array, Any]:
        """Return the result of `scan_layers` after the norm."""

        x_BTD, made = scan_layers(layer, x_BTD, each, remat=self.remat, segments_BT=segments_BT)
        return self.final_norm(x_BTD), made


def scan_layers(
    layer: Callable[[Array, Any], tuple[Array, Any]],
    x_BTD: Float[Array, "B T D"],
    each: Any,
    *,
    remat: Remat,
    segments_BT: Int[Array, "B T"] | None,
    stack: str = "blocks",
) -> tuple[Float[Array, "B T D"], Any]:
    """Return what `layer` makes of the result of the layer before and of its part of `each`, for all layers; and what
    else each returned.

    A probe gets the reports of the layers by the name of the `stack`; segment 0 is padding, which they leave out.
    """
    whole_layer = _with_reports(layer, segments_BT)
    x_BTD, (made, reports) = jax.lax.scan(rematerialise(whole_layer, remat), x_BTD, each)
    probe.report_layers(stack, reports)
    return x_BTD, made


def scan_kinds(
    layer: Callable[[Array, Any, Kind], tuple[Array, Any]],
    kinds: tuple[Kind, ...],
    x_BTD: Float[Array, "B T D"],
    each: Any,
    *,
    remat: Remat,
    segments_BT: Int[Array, "B T"] | None,
    stack: str = "blocks",
) -> tuple[Float[Array, "B T D"], Any]:
    """Return what `scan_layers` returns, for layers that also receive their kind, a constant when compiling.

    Each step of a scan runs as many layers as the pattern of kinds has: see `periods`.
    """
    found = []
    for first, times, period in periods(kinds):
        run = tuple(
            rematerialise(
                _with_reports(partial(_of_kind, layer, kind), segments_BT),
                remat,
                in_loop=times > 1,
            )
            for kind in kinds[first : first + period]
        )

        def group(x_BTD: Array, of_group: Any, run: tuple = run) -> tuple[Array, Any]:
            made = []
            for member, one_layer in enumerate(run):
                x_BTD, one = one_layer(x_BTD, jax.tree.map(lambda leaf, member=member: leaf[member], of_group))
                made.append(one)
            return x_BTD, jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)

        of_run = jax.tree.map(partial(_grouped, first=first, times=times, period=period), each)
        x_BTD, made = jax.lax.scan(group, x_BTD, of_run)
        found.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), made))
    made, reports = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)
    probe.report_layers(stack, reports)
    return x_BTD, made


def periods(kinds: tuple[Hashable, ...]) -> list[tuple[int, int, int]]:
    """Return a division of the layers into parts whose kinds repeat: the first layer, how often, and the period of each
    part.

    It compiles the fewest layers: the sum of the periods is the smallest, and then the number of parts.
    """
    count = len(kinds)
    best: list[tuple[int, int, list[tuple[int, int, int]]]] = [(0, 0, [])] * (count + 1)
    for first in reversed(range(count)):
        options = []
        for period in range(1, count - first + 1):
            times = 1
            while kinds[first + times * period : first + (times + 1) * period] == kinds[first : first + period]:
                times += 1
            for repeated in range(1, times + 1):
                compiled, parts, rest = best[first + repeated * period]
                options.append((compiled + period, parts + 1, [(first, repeated, period), *rest]))
        best[first] = min(options)
    return best[0][2]


def _of_kind(
    layer: Callable[[Array, Any, Kind], tuple[Array, Any]], kind: Kind, x_BTD: Array, of_layer: Any
) -> tuple[Array, Any]:
    return layer(x_BTD, of_layer, kind)


def _grouped(leaf_L: Array, *, first: int, times: int, period: int) -> Array:
    """Return the part of the layers from `first` on, with axes for the repetition and the layer within the period."""
    return leaf_L[first : first + times * period].reshape(times, period, *leaf_L.shape[1:])


def _with_reports(
    layer: Callable[[Array, Any], tuple[Array, Any]], segments_BT: Array | None
) -> Callable[[Array, Any], tuple[Array, Any]]:
    """Return the layer that also returns what it reports to a probe."""

    def whole_layer(x_BTD: Array, of_layer: Any) -> tuple[Array, Any]:
        with probe.one_layer(segments_BT) as reports:
            x_BTD, made = layer(block_input(x_BTD), of_layer)
            probe.report_hidden(x_BTD)
        return x_BTD, (made, reports)

    return whole_layer


def parts(
    spec: Transformer,
    block: Callable[[PRNGKeyArray], Block],
    given: BuildArguments,
    *,
    keys: tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray],
) -> Parts:
    """Fresh ones, from keys for the embedding, the blocks and the output: embeddings of standard deviation
    `spec.initializer_range`, and `spec.layers` blocks, each made from a key of its own."""
    tokens, blocks, output = keys
    embeddings = (given["vocab_size"], spec.hidden)
    return Parts(
        token_embedding=jax.random.normal(tokens, embeddings) * spec.initializer_range,
        blocks=jax.vmap(block)(jax.random.split(blocks, spec.layers)),
        output=None
        if spec.tied or not spec.predicts_tokens
        else jax.random.normal(output, embeddings) * spec.initializer_range,
        classifier=Classifier.init(spec, output),
        context_length=spec.context_length or given["sequence_length"],
        remat=given["remat"],
        embedding_noise=EmbeddingNoise(),
    )


def positions(tokens_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Those of texts from their beginning."""
    return jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)


def residual_scale(spec: Transformer) -> float:
    """Return the standard deviation of the matrices whose result is added to the residual stream.

    It is smaller the deeper the model (Radford et al. 2019), so that the stream does not grow with depth.
    """
    return spec.initializer_range / (2 * spec.layers) ** 0.5
