"""DistilBERT (Sanh et al. 2019), with the head that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trainkit.recipe.families.encoder import Encoder
from trainkit.recipe.families.encoder_checkpoints import class_heads
from trainkit.recipe.families.hugging_face import (
    Family,
    Part,
    TensorName,
    linear_names,
    mlp_width,
    norm_names,
)
from trainkit.recipe.families.model import HeadKind, HeadLayers


class DistilBert(Encoder):
    """DistilBERT (Sanh et al. 2019): a BERT without token types, with learned positions."""

    type: Literal["distilbert"] = "distilbert"

    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="relu"),
        "token": HeadLayers("each"),
        "span": HeadLayers("each"),
    }
    drops_attention_output: ClassVar[bool] = False

    def head_dropout(self, kind: HeadKind) -> float:
        return self.dropout if kind == "token" else super().head_dropout(kind)


def _classifier_dropout(values: dict[str, Any]) -> float:
    """Return the dropout of the head of a sequence; transformers uses 0.2 if the config has none."""
    said = values["classifier_dropout"]
    return values["dropout"] if said is None else said


_BLOCK = "distilbert.transformer.layer.{layer}"

FAMILY = Family(
    spec=DistilBert,
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    base="DistilBertModel",
    keys={
        "n_layers": "layers",
        "dim": "hidden",
        "n_heads": "heads",
        "max_position_embeddings": "context_length",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "pad_token_id": "pad_token_id",
    },
    defaults={
        "max_position_embeddings": 512,
        "hidden_dim": 3072,
        "tie_word_embeddings": True,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "seq_classif_dropout": 0.2,
    },
    fixed={
        "activation": ("gelu",),
        # sines and cosines are not trained
        "sinusoidal_pos_embds": (False,),
        "tie_word_embeddings": (True,),
        "tie_weights_": (True,),
    },
    parts=(
        mlp_width("hidden_dim"),
        Part(
            ("seq_classif_dropout",),
            lambda config: {"classifier_dropout": config["seq_classif_dropout"]},
            lambda values: {"seq_classif_dropout": _classifier_dropout(values)},
        ),
    ),
    # of a head that predicts spans
    noise={"qa_dropout": 0.1},
    names=(
        TensorName("token_embedding", "distilbert.embeddings.word_embeddings.weight"),
        TensorName("position_embedding", "distilbert.embeddings.position_embeddings.weight"),
        *norm_names("embedding_norm", "distilbert.embeddings.LayerNorm", bias=True),
        *linear_names("blocks.attention.query", f"{_BLOCK}.attention.q_lin", bias=True),
        *linear_names("blocks.attention.key", f"{_BLOCK}.attention.k_lin", bias=True),
        *linear_names("blocks.attention.value", f"{_BLOCK}.attention.v_lin", bias=True),
        *linear_names("blocks.attention.output", f"{_BLOCK}.attention.out_lin", bias=True),
        *norm_names("blocks.attention_norm", f"{_BLOCK}.sa_layer_norm", bias=True),
        *linear_names("blocks.mlp_in", f"{_BLOCK}.ffn.lin1", bias=True),
        *linear_names("blocks.mlp_out", f"{_BLOCK}.ffn.lin2", bias=True),
        *norm_names("blocks.mlp_norm", f"{_BLOCK}.output_layer_norm", bias=True),
        *linear_names("head", "vocab_transform", bias=True),
        *norm_names("head_norm", "vocab_layer_norm", bias=True),
        TensorName("output", "vocab_projector.weight"),
        TensorName("output_bias", "vocab_projector.bias"),
    ),
    heads=class_heads("DistilBert", dense="pre_classifier"),
    prefix="distilbert.",
    ignored=r"(distilbert\.)?embeddings\.position_ids",
)
