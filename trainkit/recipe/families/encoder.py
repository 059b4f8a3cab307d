"""What families of bidirectional encoders have in common. Each family is a file beside this one."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from trainkit.recipe.families.model import HeadKind, Kind
from trainkit.recipe.families.sizes import Shape, linear, norm, stack
from trainkit.recipe.families.transformer import CHANGEABLE, GeluTransformer
from trainkit.recipe.spec import Count, Rate, Width


class TextEncoder(GeluTransformer):
    """A bidirectional encoder whose embeddings have a norm. Its head predicts tokens by a matrix, a GELU, a norm and
    the token embedding."""

    kind: ClassVar[Kind] = "encoder"

    intermediate: Width | None = None
    """Width inside the MLP. If absent, 4 x hidden."""
    context_length: Count | None = None
    """The longest text, in tokens. If absent, `data.sequence_length`."""
    tied: Literal[True] = True
    """The output matrix is the token embedding."""

    learned_positions: ClassVar[bool] = False
    """Whether each of `context_length` positions has an embedding."""
    biased: ClassVar[bool] = True
    """Whether norms and the matrix of the head that predicts tokens have biases."""

    @property
    def type_rows(self) -> int:
        """Return the rows of the embedding that distinguishes the texts of a pair; 0 if there is none."""
        return 0

    @property
    @abstractmethod
    def norm_epsilon(self) -> float:
        """Return the number added to the variance in the norms."""

    @property
    @abstractmethod
    def embedding_rate(self) -> float:
        """Return the dropout of the embeddings."""

    @property
    def unused_positions(self) -> int:
        """Return the rows of the position embedding before that of the first position."""
        return 0

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden

    def outer_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        """Return the parameters of embeddings and head by path."""
        d, bias = self.hidden, self.biased
        rows = self.unused_positions + (self.context_length or sequence_length)
        positions: dict[str, Shape] = {"position_embedding": (rows, d)} if self.learned_positions else {}
        types: dict[str, Shape] = {"type_embedding": (self.type_rows, d)} if self.type_rows else {}
        predictions = {
            **linear("head", d, d, bias=bias),
            **norm("head_norm", d, bias=bias),
            "output_bias": (vocab_size,),
        }
        return {
            "token_embedding": (vocab_size, d),
            **positions,
            **types,
            **norm("embedding_norm", d, bias=bias),
            **(predictions if self.predicts_tokens else self.head_shapes()),
        }

    def matmul_parameters(self, *, vocab_size: int) -> int:
        transform = self.hidden**2 if self.predicts_tokens else 0
        return super().matmul_parameters(vocab_size=vocab_size) + transform

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with every position, in every layer
        return self.layers * 2 * 2 * self.hidden * sequence_length


class Encoder(TextEncoder):
    """An encoder as BERT is made: a norm after each sublayer."""

    implementation: ClassVar[str] = "trainkit.models.encoder"

    context_length: Count | None = None
    """Number of learned positions. If absent, `data.sequence_length`."""
    dropout: Rate = 0.0
    """Share that training drops of the embeddings and of the outputs of attention and MLP."""
    classifier_dropout: Rate | None = None
    """Share of the numbers that training drops before the last layer of a head with classes. If absent, `dropout`."""

    # each position has a row of weights
    changeable: ClassVar[frozenset[str]] = CHANGEABLE - {"context_length"}
    learned_positions: ClassVar[bool] = True
    drops_attention_output: ClassVar[bool] = True
    """Whether `dropout` applies to the output of attention."""

    @property
    def norm_epsilon(self) -> float:
        return 1e-12

    @property
    def embedding_rate(self) -> float:
        return self.dropout

    def head_dropout(self, kind: HeadKind) -> float:
        if kind == "span":  # in transformers only DistilBERT has one, in a key of its own
            return 0.0
        return self.dropout if self.classifier_dropout is None else self.classifier_dropout

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, f = self.hidden, self.mlp_width
        block = {
            **linear("attention.query", d, d, bias=True),
            **linear("attention.key", d, d, bias=True),
            **linear("attention.value", d, d, bias=True),
            **linear("attention.output", d, d, bias=True),
            **norm("attention_norm", d, bias=True),
            **linear("mlp_in", d, f, bias=True),
            **linear("mlp_out", f, d, bias=True),
            **norm("mlp_norm", d, bias=True),
        }
        outer = self.outer_shapes(vocab_size=vocab_size, sequence_length=sequence_length)
        return outer | stack(self.layers, block)
