"""What families of transformers have in common: where the first weights come from, sizes, and blocks with a GELU.

A family states what is its own with fields, with the class variables of its base, and with the properties that it
overrides. Everything is in closed form, so that a plan needs neither jax nor the model itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.families.model import HeadKind, HeadLayers, Kind, ModelSpec
from trainkit.recipe.families.sizes import Remat, Shape, check_heads, kept_numbers, linear, norm, stack, visible
from trainkit.recipe.spec import Count, Depth, Integer, Rate, Ratio, VocabSize, Width

#: Keys that a recipe may change for a pretrained model: no shape depends on them.
CHANGEABLE = frozenset(
    {
        "context_length",
        "rope_theta",
        "rope_scaling",
        "local_theta",
        "window",
        "router_loss",
        "pad_token_id",
        "dropout",
        "attention_dropout",
        "embedding_dropout",
        "classifier_dropout",
    }
)


#: What the paths of the parameters of a head with classes begin with.
CLASSIFIER = "classifier"


#: What `special_attention` says of dropped probabilities.
DROPPED = "dropout of probabilities"


class Pretrained(ModelSpec):
    """A model that may begin with a checkpoint: where its weights come from, and the size of its vocabulary."""

    pretrained: str | None = None
    """A directory with a Hugging Face checkpoint, or a hub id, to begin with. If absent, weights are random. The family
    and its sizes are read from its config.json; other keys of this section override them."""
    revision: str | None = None
    """Branch, tag or commit on the hub; a run keeps the commit that it resolves to."""
    resize_vocabulary: bool = False
    """Cut or widen the embedding of `pretrained` to the tokenizer; new rows are the mean of the old ones."""
    vocab_size: VocabSize | None = None
    """Rows of the embedding. If absent, as many as the tokenizer has entries. Any more are padding."""
    pad_token_id: Integer | None = None
    """The token with which transformers pads texts of an export. Training does not use it."""

    changeable: ClassVar[frozenset[str]] = CHANGEABLE
    """Keys that a recipe may change for a pretrained model."""

    @model_validator(mode="after")
    def _goes_with_pretrained(self) -> Pretrained:
        if self.pretrained is None and (self.revision is not None or self.resize_vocabulary):
            key = "revision" if self.revision is not None else "resize_vocabulary"
            raise ValueError(f'{key} goes with pretrained = "…"')
        if self.resize_vocabulary and self.vocab_size is not None:
            raise ValueError("resize_vocabulary sets vocab_size to that of the tokenizer: give only one of them")
        return self

    @property
    def not_in_transformers(self) -> str | None:
        """Return why transformers cannot load the model, beginning with the key and its value; None if it can."""
        return None

    def rows(self, tokens: int) -> int:
        """Return the rows of the embedding for a tokenizer of so many entries. Raises TrainkitError if the embedding
        has fewer."""
        if self.vocab_size is None or tokens <= self.vocab_size:
            return self.vocab_size or tokens
        if self.pretrained is None:
            hint = "make model.vocab_size larger, or omit it"
        else:
            hint = "use the tokenizer of the checkpoint, or widen the embedding: [model] resize_vocabulary = true"
        raise TrainkitError(
            f"the tokenizer has {tokens:,} entries, and the embedding {self.vocab_size:,} rows",
            where="model.vocab_size",
            hint=hint,
        )


class Transformer(Pretrained):
    """A stack of blocks with attention and an MLP each."""

    kind: ClassVar[Kind] = "causal"
    has_experts: ClassVar[bool] = False
    """Whether most of its weights belong to experts, which are neither quantised nor multiplied in 8 bit."""

    layers: Depth
    """Number of transformer blocks."""
    hidden: Width
    """Width of the residual stream."""
    heads: Width
    """Attention heads; must divide `hidden`."""
    context_length: Count | None = None
    """The longest text that it is meant for. If absent, `data.sequence_length`."""
    tied: bool
    """Whether the output matrix is the token embedding."""
    initializer_range: Ratio = 0.02
    """Standard deviation of random weights; smaller in matrices that add to the residual stream of deep models."""

    @property
    def predicts_tokens(self) -> bool:
        """Return whether its head gives logits of the vocabulary, not scores of classes."""
        return self.head.kind == "tokens"

    def head_shapes(self) -> dict[str, Shape]:
        """Return the parameters of a head with classes by path; empty if the head predicts tokens."""
        if self.predicts_tokens:
            return {}
        layers, d = self.head_layers(self.head.kind), self.hidden
        dense = linear(f"{CLASSIFIER}.dense", d, d, bias=layers.dense_bias) if layers.dense else {}
        if layers.norm is not None:
            dense |= norm(f"{CLASSIFIER}.norm", d)
        return dense | linear(f"{CLASSIFIER}.output", d, self.head.width, bias=layers.bias)

    def head_matrices(self, *, vocab_size: int) -> int:
        """Return how many numbers the matrices of its head have that every position is multiplied with."""
        if self.predicts_tokens:
            return vocab_size * self.hidden
        return 0 if self.head.kind == "sequence" else self._class_matrices()

    def matmul_parameters_once(self) -> int:
        return self._class_matrices() if self.head.kind == "sequence" else 0

    def _class_matrices(self) -> int:
        return sum(math.prod(shape) for shape in self.head_shapes().values() if len(shape) == 2)

    def head_layers(self, kind: HeadKind) -> HeadLayers:
        """Return the layers of a head with classes."""
        return self.class_heads[kind]

    @property
    @abstractmethod
    def key_width(self) -> int:
        """Return the width of one head."""

    @property
    @abstractmethod
    def mlp_width(self) -> int:
        """Return the width inside the MLP, or inside one expert."""

    def head_dropout(self, kind: HeadKind) -> float:
        """Return the dropout before the last layer of a head with classes."""
        return 0.0

    def first_head_dropout(self, kind: HeadKind) -> float:
        """Return the dropout before the first of the two layers of a head with classes."""
        return 0.0

    @property
    def head_range(self) -> float:
        """Return the standard deviation of the random weights of a head with classes."""
        return self.initializer_range

    @property
    def score_scale(self) -> float | None:
        """Return the factor of the scores; None for 1 / sqrt(`key_width`)."""
        return None

    @property
    @abstractmethod
    def special_attention(self) -> str | None:
        """Return the features of its attention that flash attention lacks, in the plural; None if it supports all."""

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return self.heads

    @property
    def softcap_of_scores(self) -> float | None:
        """Return the bound of attention scores (Gemma 2); None without one."""
        return None

    @property
    def own_kernel_attention(self) -> str | None:
        """Return the features that of all flash attention only trainkit's kernels for GPUs support, in the plural."""
        return None


class GeluTransformer(Transformer):
    """A stack of blocks with four attention matrices of (hidden, hidden) and an MLP of two, each with a layer norm."""

    attention_dropout: Rate = 0.0
    """Share of attention's probabilities that training drops. Above 0, attention computes all of them at once, without
    flash attention."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> GeluTransformer:
        check_heads(self.heads, self.hidden)
        return self

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads

    @property
    def special_attention(self) -> str | None:
        return DROPPED if self.attention_dropout else None

    def matmul_parameters(self, *, vocab_size: int) -> int:
        blocks = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.mlp_width)
        return blocks + self.head_matrices(vocab_size=vocab_size)

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d = self.hidden
        flash = flash and self.special_attention is None
        probabilities = 0 if flash else self.heads * sequence_length
        # with dropout also those that are kept, and which those are
        probabilities *= 3 if self.attention_dropout else 1
        # two norms and what they scaled, q, k, v, attention output in two shapes; GELU and its slope
        everything = 9 * d + 2 * self.mlp_width + probabilities
        # residual, q, k, v, what attention and MLP add to it, the result of a kernel; MLP before GELU
        dots = (6 + flash) * d + self.mlp_width
        return kept_numbers(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)


class GptDecoder(GeluTransformer):
    """A decoder with layer norms, one matrix for queries, keys and values, and GELU."""

    tied: bool = True
    dropout: Rate = 0.0
    """Share of the outputs of attention and MLP that training drops before they are added to the residual stream."""
    embedding_dropout: Rate = 0.0
    """Share of the embeddings' numbers that training drops."""

    implementation: ClassVar[str] = "trainkit.models.gpt"
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {"sequence": HeadLayers("last", bias=False)}

    learned_positions: ClassVar[bool] = True
    """Whether each of `context_length` positions has an embedding; otherwise scores have ALiBi's slopes."""
    biased: ClassVar[bool] = True
    """Whether matrices and norms have biases."""
    exact_gelu: ClassVar[bool] = False
    """Whether GELU uses the error function rather than a hyperbolic tangent."""

    @property
    def norm_epsilon(self) -> float:
        """Return the number added to the variance in the norms."""
        return 1e-5

    @property
    def clip(self) -> float | None:
        """Return the largest absolute value of queries, keys and values, to which they are clipped; None for no
        clipping."""
        return None

    @property
    def own_kernel_attention(self) -> str | None:
        return None if self.learned_positions else "ALiBi's slopes"

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, f, bias = self.hidden, self.mlp_width, self.biased
        block = {
            **norm("attention_norm", d, bias=bias),
            **linear("attention.qkv", d, 3 * d, bias=bias),
            **linear("attention.output", d, d, bias=bias),
            **norm("mlp_norm", d, bias=bias),
            **linear("mlp_in", d, f, bias=bias),
            **linear("mlp_out", f, d, bias=bias),
        }
        positions: dict[str, Shape] = {"position_embedding": (self.context_length or sequence_length, d)}
        output: dict[str, Shape] = {} if self.tied or not self.predicts_tokens else {"output": (vocab_size, d)}
        return {
            "token_embedding": (vocab_size, d),
            **(positions if self.learned_positions else {}),
            **stack(self.layers, block),
            **norm("final_norm", d, bias=bias),
            **output,
            **self.head_shapes(),
        }

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each visible position, in every layer
        seen = visible(sequence_length=sequence_length, window=None)
        return self.layers * 2 * 2 * self.hidden * seen // sequence_length
