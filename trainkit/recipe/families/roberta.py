"""RoBERTa (Liu et al. 2019), with the head that predicts masked tokens; XLM-RoBERTa is of another `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trainkit.recipe.families.encoder import Encoder
from trainkit.recipe.families.encoder_checkpoints import DEFAULTS, FIXED, KEYS, body_names, class_heads
from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    Part,
    TensorName,
    Unsupported,
    linear_names,
    mlp_width,
    norm_names,
    whole,
)
from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.spec import Count, NormEps, Width


class Roberta(Encoder):
    """RoBERTa (Liu et al. 2019): a BERT whose positions count from the row after that of the padding token."""

    type: Literal["roberta"] = "roberta"
    token_types: Width = 1
    """Rows of the embedding that tells the first text of a pair from the second; 1: it does not."""
    layer_norm_eps: NormEps = 1e-5
    """Added to the variance in the norms."""
    first_position: Count = 2
    """Row of the embedding of the first position: one more than the id of the padding token."""

    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="tanh"),
        "token": HeadLayers("each"),
        "span": HeadLayers("each"),
    }
    changeable: ClassVar[frozenset[str]] = Encoder.changeable - {"pad_token_id"}

    @property
    def type_rows(self) -> int:
        return self.token_types

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps

    @property
    def unused_positions(self) -> int:
        return self.first_position

    def first_head_dropout(self, kind: HeadKind) -> float:
        return self.head_dropout(kind) if kind == "sequence" else 0.0


def _read_positions(config: Config) -> dict[str, Any]:
    padding = whole(config, "pad_token_id", 1, least=0)
    if config["max_position_embeddings"] is None:
        raise Unsupported("max_position_embeddings", None, "it must have a value")
    rows = whole(config, "max_position_embeddings", 512, least=padding + 2)
    return {"context_length": rows - padding - 1, "first_position": padding + 1, "pad_token_id": padding}


def _write_positions(values: dict[str, Any]) -> Config:
    first = values["first_position"]
    return {"max_position_embeddings": values["context_length"] + first, "pad_token_id": first - 1}


FAMILY = Family(
    spec=Roberta,
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    base="RobertaModel",
    keys=KEYS,
    defaults=DEFAULTS,
    fixed=FIXED,
    parts=(
        mlp_width("intermediate_size"),
        Part(("max_position_embeddings", "pad_token_id"), _read_positions, _write_positions),
    ),
    names=(
        *body_names("roberta"),
        *linear_names("head", "lm_head.dense", bias=True),
        *norm_names("head_norm", "lm_head.layer_norm", bias=True),
        TensorName("output", "lm_head.decoder.weight"),
        TensorName("output_bias", "lm_head.bias"),
    ),
    heads=class_heads("Roberta", dense="classifier.dense", output="classifier.out_proj"),
    prefix="roberta.",
    # what no head here uses: the pooler, and copies of tied tensors
    ignored=r"(roberta\.)?(pooler\..*|embeddings\.position_ids)|lm_head\.decoder\.bias",
)
