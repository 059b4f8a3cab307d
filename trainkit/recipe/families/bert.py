"""BERT (Devlin et al. 2019), with the head that predicts masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from trainkit.recipe.families.encoder import Encoder
from trainkit.recipe.families.encoder_checkpoints import DEFAULTS, FIXED, KEYS, TOKEN_HEAD, body_names, class_heads
from trainkit.recipe.families.hugging_face import Family, mlp_width
from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.spec import NormEps, Width


class Bert(Encoder):
    """BERT (Devlin et al. 2019): a bidirectional encoder with learned positions and a head that predicts tokens."""

    type: Literal["bert"] = "bert"
    token_types: Width = 2
    """Rows of the embedding that tells the first text of a pair from the second."""
    layer_norm_eps: NormEps = 1e-12
    """Added to the variance in the norms."""

    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="tanh"),
        "token": HeadLayers("each"),
        "span": HeadLayers("each"),
    }

    @property
    def type_rows(self) -> int:
        return self.token_types

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps


FAMILY = Family(
    spec=Bert,
    model_type="bert",
    architecture="BertForMaskedLM",
    base="BertModel",
    keys={**KEYS, "max_position_embeddings": "context_length", "pad_token_id": "pad_token_id"},
    defaults=DEFAULTS,
    fixed=FIXED,
    parts=(mlp_width("intermediate_size"),),
    names=(*body_names("bert"), *TOKEN_HEAD),
    heads=class_heads("Bert", dense="bert.pooler.dense"),
    prefix="bert.",
    # what masked-token prediction does not use: the pooler, the head of BERT's second task, and copies of tied tensors
    ignored=r"(bert\.)?(pooler\..*|embeddings\.position_ids)|cls\.seq_relationship\..*|cls\.predictions\.decoder\.bias",
)
