"""BERT (Devlin et al. 2019), with the head that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from trainkit.recipe.families.hugging_face import Family, HeadTable, TensorName, linear_names, mlp_width, norm_names
from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.families.transformer import Encoder
from trainkit.recipe.spec import Count, Positive


class Bert(Encoder):
    """BERT (Devlin et al. 2019): a bidirectional encoder with learned positions and a head that predicts tokens."""

    type: Literal["bert"] = "bert"
    token_types: Count = 2
    """Rows of the embedding that tells the first text of a pair from the second."""
    layer_norm_eps: Positive = 1e-12
    """Added to the variance in the norms."""

    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="tanh"),
        "token": HeadLayers("each"),
    }

    @property
    def type_rows(self) -> int:
        return self.token_types

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps


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
    parts=(mlp_width("intermediate_size"),),
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
