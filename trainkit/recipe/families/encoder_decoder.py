"""What the families of encoder-decoders have in common (Vaswani et al. 2017). Each family is a file beside this one.

A family states what is its own with fields, with the class variables below them, and with the properties that it
overrides. The model that is built from it (`models/encoder_decoder.py`) reads the same attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

from trainkit.errors import TrainkitError
from trainkit.recipe.families.model import Head, HeadKind, HeadLayers, Kind
from trainkit.recipe.families.sizes import Remat, Shape, kept_numbers, linear, norm, visible
from trainkit.recipe.families.transformer import CHANGEABLE, DROPPED, Transformer
from trainkit.recipe.spec import Depth, Index, Rate, Width


class DistanceBuckets(NamedTuple):
    """Biases of scores by the distance of query and key (Raffel et al. 2020, section 2.1)."""

    buckets: int
    """Number of biases of each head. The first half is for one distance each."""
    longest: int
    """All distances from here on share the last bucket."""


class EncoderDecoder(Transformer):
    """An encoder that reads a source, and a decoder that attends to the encoder's output and predicts a target."""

    layers: Depth
    """Number of blocks of the encoder."""
    decoder_layers: Depth | None = None
    """Number of blocks of the decoder. If absent, `layers`."""
    intermediate: Width | None = None
    """Width inside the MLP. If absent, 4 x hidden."""
    tied: bool = True
    """Whether the output matrix is the token embedding."""
    decoder_start: Index | None = None
    """The id of the token that the decoder begins with. If absent, the tokenizer's end of text."""
    dropout: Rate = 0.0
    """Share that training drops of the embeddings and of the outputs of attention and MLP."""
    classifier_dropout: Rate = 0.0
    """Share of the numbers that training drops before each of the two layers of a head with classes."""

    kind: ClassVar[Kind] = "encoder-decoder"
    implementation: ClassVar[str] = "trainkit.models.encoder_decoder"
    # both stacks read the text, the decoder shifted by one token, and the decoder's last hidden state is scored
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {"sequence": HeadLayers("last", dense="tanh")}
    changeable: ClassVar[frozenset[str]] = CHANGEABLE | {"decoder_start"}

    norms: ClassVar[Literal["before", "after"]] = "after"
    """Whether norms come before or after the sublayers of a block. With `before`, each stack ends with one more."""
    mean_norms: ClassVar[bool] = True
    """Whether norms subtract the mean and have biases, which root-mean-square norms do not."""
    biased: ClassVar[bool] = True
    """Whether matrices have biases."""
    embedding_norms: ClassVar[bool] = False
    """Whether embeddings are normed."""
    first_position: ClassVar[int | None] = None
    """The row of the first position in the embeddings of positions, one for each stack; None where there are none."""
    output_biased: ClassVar[bool] = False
    """Whether the checkpoints of the family have a bias of the logits, which is not trained."""

    @property
    def decoder_blocks(self) -> int:
        """Return the number of blocks of the decoder."""
        return self.decoder_layers or self.layers

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden

    @property
    def probability_dropout(self) -> float:
        """Return the share of attention probabilities that training drops."""
        return self.dropout

    @property
    def inner_dropout(self) -> float:
        """Return the share of the numbers inside the MLP that training drops."""
        return self.dropout

    def head_dropout(self, kind: HeadKind) -> float:
        return self.classifier_dropout

    def first_head_dropout(self, kind: HeadKind) -> float:
        return self.classifier_dropout

    @property
    def gated_mlp(self) -> bool:
        """Return whether the MLP multiplies the activation by another product of its input."""
        return False

    @property
    def activation(self) -> Literal["relu", "gelu", "exact-gelu"]:
        """Return the activation of the MLP; `gelu` is the approximation by a hyperbolic tangent."""
        return "exact-gelu"

    @property
    def norm_epsilon(self) -> float:
        """Return the number added to the variance, or the mean square, in the norms."""
        return 1e-5

    @property
    def distances(self) -> DistanceBuckets | None:
        """Return the biases of scores, the same in all blocks of a stack; None if the model has other positions."""
        return None

    @property
    def embedding_scale(self) -> float | None:
        """Return the factor of token embeddings; None for 1."""
        return None

    @property
    def output_scale(self) -> float | None:
        """Return the factor of hidden states before the output matrix; None for 1."""
        return None

    def weight_scale(self, inputs: int) -> float:
        """Return the standard deviation of random matrices with this many inputs."""
        return self.initializer_range

    @property
    def query_scale(self) -> float:
        """Return the standard deviation of the random matrices that make queries."""
        return self.weight_scale(self.hidden)

    @property
    def special_attention(self) -> str | None:
        if self.distances is not None:
            return "biases by distance"
        return DROPPED if self.probability_dropout else None

    def with_head(self, head: Head) -> EncoderDecoder:
        """See `ModelSpec.with_head`. Raises ValueError where a head with classes needs the token that is missing."""
        if head.kind != "tokens" and self.decoder_start is None:
            raise ValueError(
                "model.decoder_start is missing: to score a text, the decoder reads this token before it;"
                " set it to the id of a token that begins or ends texts"
            )
        return super().with_head(head)

    def rows(self, tokens: int) -> int:
        """See `Pretrained.rows`. Raises TrainkitError also if the embedding lacks the token that the decoder begins
        with."""
        rows = super().rows(tokens)
        if self.decoder_start is not None and self.decoder_start >= rows:
            raise TrainkitError(
                f"the decoder begins with token {self.decoder_start:,}, and the embedding has {rows:,} rows",
                where="model.decoder_start",
                hint="leave it out: the decoder then begins with the tokenizer's end of text",
            )
        return rows

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d = self.hidden
        output: dict[str, Shape] = {}
        if self.predicts_tokens:
            output = {} if self.tied else {"output": (vocab_size, d)}
            output |= {"output_bias": (1, vocab_size)} if self.output_biased else {}
        stacks = (("encoder", self.layers, self._block()), ("decoder", self.decoder_blocks, self._block(cross=True)))
        blocks: dict[str, Shape] = {
            f"blocks.{side}.{name}": (layers, *shape) for side, layers, block in stacks for name, shape in block.items()
        }
        ends = (self._ends(side, self.context_length or sequence_length) for side in ("encoder", "decoder"))
        shared: dict[str, Shape] = {"token_embedding": (vocab_size, d)}
        return shared | next(ends) | next(ends) | blocks | output | self.head_shapes()

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        """Return the number of parameters by part: the blocks of a stack belong to it."""
        counts: dict[str, int] = {}
        for name, shape in self.leaf_shapes(vocab_size=vocab_size, sequence_length=sequence_length).items():
            part = name.removeprefix("blocks.").partition(".")[0]
            counts[part] = counts.get(part, 0) + math.prod(shape)
        return counts

    def matmul_parameters(self, *, vocab_size: int) -> int:
        """See `ModelSpec.matmul_parameters`: the mean over a source and a target of the same length."""
        d, width = self.hidden, self.heads * self.key_width
        mlp = (3 if self.gated_mlp else 2) * d * self.mlp_width
        # keys and values of the source are part of the decoder's blocks
        blocks = self.layers * (4 * d * width + mlp) + self.decoder_blocks * (8 * d * width + mlp)
        return self._mean(blocks + self.head_matrices(vocab_size=vocab_size))

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x width FLOPs: with all of the source in both stacks, and in the decoder with those before
        seen = visible(sequence_length=sequence_length, window=None)
        both = sequence_length * (self.layers + self.decoder_blocks) + self.decoder_blocks * seen // sequence_length
        return self._mean(2 * 2 * self.heads * self.key_width * both)

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        """See `ModelSpec.activation_floats_per_token`: the mean over a source and a target of the same length."""
        d, width = self.hidden, self.heads * self.key_width
        # with dropout also those that are kept, and which those are
        probabilities = self.heads * sequence_length * (3 if self.probability_dropout else 1)
        # of the decoder to itself; the encoder's attention and that to the source use no kernel
        causal = 0 if flash and self.special_attention is None else probabilities
        # of one attention: its norm and what it scaled, q, k, v, its output in two shapes; what it adds
        attention, attention_dots = 2 * d + 5 * width, 3 * width + d
        mlp, mlp_dots = 2 * d + (4 if self.gated_mlp else 2) * self.mlp_width, d + (1 + self.gated_mlp) * self.mlp_width
        kept = (
            kept_numbers(
                layers=layers,
                hidden=d,
                everything=attentions * attention + made + mlp,
                dots=d + attentions * attention_dots + mlp_dots,
                remat=remat,
            )
            for layers, attentions, made in (
                (self.layers, 1, probabilities),
                (self.decoder_blocks, 2, causal + probabilities),
            )
        )
        return self._mean(sum(kept))

    def _mean(self, both: int) -> int:
        """Return the mean of a source and a target from their sum. A text with a class is both."""
        return both // 2 if self.predicts_tokens else both

    def _ends(self, side: str, positions: int) -> dict[str, Shape]:
        """Return the parameters of a stack outside its blocks."""
        d, shapes = self.hidden, dict[str, Shape]()
        if self.first_position is not None:
            shapes[f"{side}.position_embedding"] = (self.first_position + positions, d)
        if self.distances is not None:
            shapes[f"{side}.distance_embedding"] = (self.distances.buckets, self.heads)
        if self.embedding_norms:
            shapes |= norm(f"{side}.embedding_norm", d, bias=self.mean_norms)
        if self.norms == "before":
            shapes |= norm(f"{side}.final_norm", d, bias=self.mean_norms)
        return shapes

    def _block(self, *, cross: bool = False) -> dict[str, Shape]:
        """Return the parameters of one block; one of the decoder has a second attention, `cross`."""
        d, f, width = self.hidden, self.mlp_width, self.heads * self.key_width
        shapes: dict[str, Shape] = {}
        for attention in ("attention", "cross") if cross else ("attention",):
            for name in ("query", "key", "value"):
                shapes |= linear(f"{attention}.{name}", d, width, bias=self.biased)
            shapes |= linear(f"{attention}.output", width, d, bias=self.biased)
            shapes |= norm(f"{attention}_norm", d, bias=self.mean_norms)
        for name in ("mlp_gate", "mlp_up") if self.gated_mlp else ("mlp_in",):
            shapes |= linear(name, d, f, bias=self.biased)
        return shapes | linear("mlp_out", f, d, bias=self.biased) | norm("mlp_norm", d, bias=self.mean_norms)
