"""DeBERTa-v3 (He et al. 2023), with the head that predicts masked tokens; in transformers it is a DeBERTa-v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.families.encoder import Encoder
from trainkit.recipe.families.encoder_checkpoints import TOKEN_HEAD, block_names, class_heads
from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    Part,
    TensorName,
    Unsupported,
    mlp_width,
    norm_names,
)
from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.families.sizes import Remat, Shape, kept_numbers, norm
from trainkit.recipe.spec import Count, NormEps


class Deberta(Encoder):
    """DeBERTa-v3 (He et al. 2023): a BERT with relative positions in its attention and none in its embeddings."""

    type: Literal["deberta-v3"] = "deberta-v3"
    context_length: Count | None = None
    """The longest text, in tokens. If absent, `data.sequence_length`."""
    position_buckets: int = Field(default=256, ge=4, le=1 << 20, multiple_of=2)
    """Embeddings of relative positions in either direction; longer distances share one (a logarithm)."""
    furthest_position: Count | None = None
    """The distance from which on all positions share an embedding. If absent, `context_length`."""
    layer_norm_eps: NormEps = 1e-7
    """Added to the variance in the norms."""

    implementation: ClassVar[str] = "trainkit.models.deberta"
    learned_positions: ClassVar[bool] = False
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {
        "sequence": HeadLayers("first", dense="gelu"),
        "token": HeadLayers("each"),
        "span": HeadLayers("each"),
    }

    @model_validator(mode="after")
    def _distances_fit(self) -> Deberta:
        furthest, half = self.furthest_position or self.context_length, self.position_buckets // 2
        if furthest is not None and furthest - 1 <= half:
            raise ValueError(
                f"position_buckets = {self.position_buckets} is too many for distances up to {furthest}:"
                f" at most {max(2 * (furthest - 2), 4)}"
            )
        return self

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps

    @property
    def special_attention(self) -> str | None:
        return "scores of relative positions"

    def head_dropout(self, kind: HeadKind) -> float:
        return self.dropout if kind == "token" else super().head_dropout(kind)

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        relative: dict[str, Shape] = {"relative_embedding": (2 * self.position_buckets, self.hidden)}
        shapes = super().leaf_shapes(vocab_size=vocab_size, sequence_length=sequence_length)
        return shapes | relative | norm("relative_norm", self.hidden, bias=True)

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # as of others; and two products with the embeddings of all relative positions, which a row projects twice
        rows, d = 2 * self.position_buckets, self.hidden
        own = 2 * 2 * d * rows + 2 * 2 * d * d * rows // sequence_length
        return super().attention_flops_per_token(sequence_length=sequence_length) + self.layers * own

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d, f = self.hidden, self.mlp_width
        # scores of relative positions, before and after they are put where they belong, are float32
        probabilities = self.heads * (
            sequence_length * (5 if self.attention_dropout else 3) + 4 * self.position_buckets
        )
        everything, dots = 9 * d + 2 * f + probabilities, 6 * d + f
        return kept_numbers(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)


#: Keys with the only supported value, and what transformers takes where they are absent.
_ONLY: dict[str, tuple[Any, Any]] = {
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
}


def _read_attention(config: Config) -> dict[str, Any]:
    for key, (only, usual) in _ONLY.items():
        if (value := config.get(key, usual)) != only:
            raise Unsupported(key, value, f"only {only} is supported, which DeBERTa-v3 has")
    kinds = config.get("pos_att_type") or []
    if sorted(kinds.split("|") if isinstance(kinds, str) else kinds) != ["c2p", "p2c"]:
        raise Unsupported("pos_att_type", kinds, 'only ["p2c", "c2p"] is supported')
    buckets, furthest = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
    if type(buckets) is not int or buckets < 1:
        raise Unsupported("position_buckets", buckets, "it must be a whole number above 0")
    if type(furthest) is not int:
        raise Unsupported("max_relative_positions", furthest, "it must be a whole number")
    return {"position_buckets": buckets, "furthest_position": furthest if furthest > 0 else None}


def _write_attention(values: dict[str, Any]) -> Config:
    return {
        **{key: only for key, (only, _) in _ONLY.items()},
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": values["position_buckets"],
        "max_relative_positions": values["furthest_position"] or -1,
    }


def _read_pooler(config: Config) -> dict[str, Any]:
    width = config.get("pooler_hidden_size")
    if width not in (None, config.get("hidden_size")):
        raise Unsupported("pooler_hidden_size", width, "only hidden_size is supported")
    return {}


FAMILY = Family(
    spec=Deberta,
    model_type="deberta-v2",
    architecture="DebertaV2ForMaskedLM",
    base="DebertaV2Model",
    keys={
        "num_hidden_layers": "layers",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context_length",
        "layer_norm_eps": "layer_norm_eps",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "cls_dropout": "classifier_dropout",
    },
    defaults={
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-7,
        "intermediate_size": 6144,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    fixed={
        "hidden_act": ("gelu",),
        "pooler_hidden_act": ("gelu",),
        "type_vocab_size": (0,),
        # without it, the tensors of the head that predicts tokens have other names
        "legacy": (True, False),
        "tie_word_embeddings": (True,),
        "conv_kernel_size": (0,),
    },
    noise={"pooler_dropout": 0.0},
    parts=(
        mlp_width("intermediate_size"),
        Part(("pos_att_type", "position_buckets", "max_relative_positions", *_ONLY), _read_attention, _write_attention),
        Part(("pooler_hidden_size",), _read_pooler, lambda values: {"pooler_hidden_size": values["hidden"]}),
    ),
    names=(
        TensorName("token_embedding", "deberta.embeddings.word_embeddings.weight"),
        *norm_names("embedding_norm", "deberta.embeddings.LayerNorm", bias=True),
        TensorName("relative_embedding", "deberta.encoder.rel_embeddings.weight"),
        *norm_names("relative_norm", "deberta.encoder.LayerNorm", bias=True),
        *block_names("deberta.encoder.layer.{layer}", projection="_proj"),
        *TOKEN_HEAD,
    ),
    heads=class_heads("DebertaV2", dense="pooler.dense"),
    prefix="deberta.",
    # as in the published checkpoints, which transformers reads with `"legacy": false`
    aliases={
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head": "cls.predictions.transform",
    },
    # the head of pretraining that tells replaced tokens, and copies
    ignored=r"(deberta\.)?embeddings\.(position_ids|position_embeddings\.weight)|mask_predictions\..*"
    r"|cls\.predictions\.decoder\.bias",
)
