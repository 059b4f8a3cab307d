"""BERT (Devlin et al. 2019), with the head that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from trainkit.recipe.families.hugging_face import Family, HeadTable, Part, TensorName, linear_names, norm_names
from trainkit.recipe.families.model import HeadKind, HeadLayers, Kind
from trainkit.recipe.families.sizes import Shape, linear, norm, stack
from trainkit.recipe.families.transformer import CHANGEABLE, GeluTransformer
from trainkit.recipe.spec import Count, Positive


class Bert(GeluTransformer):
    """BERT (Devlin et al. 2019): a bidirectional encoder with learned positions and a head that predicts tokens."""

    kind: ClassVar[Kind] = "encoder"
    implementation: ClassVar[str] = "trainkit.models.encoder"
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="tanh"),
        "token": HeadLayers("each"),
    }

    type: Literal["bert"] = "bert"
    intermediate: Count | None = None
    """Width inside the MLP; 4 x hidden where not given."""
    context_length: Count | None = None
    """Number of learned positions; `data.sequence_length` where not given."""
    token_types: Count = 2
    """Rows of the embedding that tells the first text of a pair from the second."""
    layer_norm_eps: Positive = 1e-12
    """Added to the variance in the norms."""
    tied: Literal[True] = True
    """The output matrix is the token embedding."""

    # each position has a row of weights
    changeable: ClassVar[frozenset[str]] = CHANGEABLE - {"context_length"}

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden

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
        predictions = {
            **linear("head", d, d, bias=True),
            **norm("head_norm", d, bias=True),
            "output_bias": (vocab_size,),
        }
        return {
            "token_embedding": (vocab_size, d),
            "position_embedding": (self.context_length or sequence_length, d),
            "type_embedding": (self.token_types, d),
            **norm("embedding_norm", d, bias=True),
            **stack(self.layers, block),
            **(predictions if self.predicts_tokens else self.head_shapes()),
        }

    def matmul_parameters(self, *, vocab_size: int) -> int:
        transform = self.hidden**2 if self.predicts_tokens else 0
        return super().matmul_parameters(vocab_size=vocab_size) + transform

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with every position, in every layer
        return self.layers * 2 * 2 * self.hidden * sequence_length


# where a config lacks it, transformers takes a number that does not follow from the hidden width
_MLP = Part(
    ("intermediate_size",),
    lambda config: {"intermediate": config["intermediate_size"]},
    lambda values: {"intermediate_size": values["intermediate"] or 4 * values["hidden"]},
)
_BLOCK = "bert.encoder.layer.{layer}"

FAMILY = Family(
    spec=Bert,
    model_type="bert",
    architecture="BertForMaskedLM",
    base="BertModel",
    keys={
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context_length",
        "type_vocab_size": "token_types",
        "layer_norm_eps": "layer_norm_eps",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    defaults={
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    fixed={
        "hidden_act": ("gelu",),
        # untied, transformers reads a second bias
        "tie_word_embeddings": (True,),
        "position_embedding_type": ("absolute",),
        "add_cross_attention": (False,),
        "is_decoder": (False,),
    },
    noise={"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1},
    parts=(_MLP,),
    names=(
        TensorName("token_embedding", "bert.embeddings.word_embeddings.weight"),
        TensorName("position_embedding", "bert.embeddings.position_embeddings.weight"),
        TensorName("type_embedding", "bert.embeddings.token_type_embeddings.weight"),
        *norm_names("embedding_norm", "bert.embeddings.LayerNorm", bias=True),
        *linear_names("blocks.attention.query", f"{_BLOCK}.attention.self.query", bias=True),
        *linear_names("blocks.attention.key", f"{_BLOCK}.attention.self.key", bias=True),
        *linear_names("blocks.attention.value", f"{_BLOCK}.attention.self.value", bias=True),
        *linear_names("blocks.attention.output", f"{_BLOCK}.attention.output.dense", bias=True),
        *norm_names("blocks.attention_norm", f"{_BLOCK}.attention.output.LayerNorm", bias=True),
        *linear_names("blocks.mlp_in", f"{_BLOCK}.intermediate.dense", bias=True),
        *linear_names("blocks.mlp_out", f"{_BLOCK}.output.dense", bias=True),
        *norm_names("blocks.mlp_norm", f"{_BLOCK}.output.LayerNorm", bias=True),
        *linear_names("head", "cls.predictions.transform.dense", bias=True),
        *norm_names("head_norm", "cls.predictions.transform.LayerNorm", bias=True),
        TensorName("output", "cls.predictions.decoder.weight"),
        TensorName("output_bias", "cls.predictions.bias"),
    ),
    heads={
        "sequence": HeadTable(
            "BertForSequenceClassification",
            (
                *linear_names("classifier.dense", "bert.pooler.dense", bias=True),
                *linear_names("classifier.output", "classifier", bias=True),
            ),
        ),
        "token": HeadTable("BertForTokenClassification", linear_names("classifier.output", "classifier", bias=True)),
    },
    prefix="bert.",
    # what masked-token prediction does not use: the pooler, the head of BERT's second task, and copies of tied tensors
    ignored=r"(bert\.)?(pooler\..*|embeddings\.position_ids)|cls\.seq_relationship\..*|cls\.predictions\.decoder\.bias",
)
