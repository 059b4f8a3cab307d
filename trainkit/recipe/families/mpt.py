"""MPT (MosaicML 2023): the checkpoints with ALiBi and without biases."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trainkit.recipe.families.hugging_face import (
    Config,
    Family,
    Part,
    TensorName,
    Unsupported,
    linear_names,
    means_nothing,
    norm_names,
    scoring_heads,
    table,
)
from trainkit.recipe.families.transformer import GptDecoder
from trainkit.recipe.spec import NormEps, Positive, Scale, Width


class Mpt(GptDecoder):
    """MPT (MosaicML 2023): positions by ALiBi, layer norm before each sub-layer, exact GELU, no biases at all."""

    type: Literal["mpt"] = "mpt"
    expansion_ratio: Width = 4
    """Width inside the MLP as a multiple of `hidden`; transformers supports only 4."""
    layer_norm_eps: NormEps = 1e-5
    """Added to the variance in the norms."""
    clip_qkv: Positive | None = None
    """Largest absolute value of queries, keys and values, which are clipped to it. If absent, they are not clipped."""
    softmax_scale: Scale | None = None
    """Factor of the scores. If absent, 1 / sqrt(width of a head)."""

    learned_positions: ClassVar[bool] = False
    biased: ClassVar[bool] = False
    exact_gelu: ClassVar[bool] = True

    @property
    def mlp_width(self) -> int:
        return self.expansion_ratio * self.hidden

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps

    @property
    def clip(self) -> float | None:
        return self.clip_qkv

    @property
    def score_scale(self) -> float | None:
        return self.softmax_scale

    @property
    def not_in_transformers(self) -> str | None:
        said = self.expansion_ratio
        return None if said == 4 else f"expansion_ratio = {said}: transformers always builds MLPs with a ratio of 4"


_BLOCK = "transformer.blocks.{layer}"
#: Keys of `attn_config` with the only supported value.
_FIXED = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "qk_ln": False,
    "prefix_lm": False,
    "attn_uses_sequence_id": False,
}
#: The code in the published checkpoints, which computes what this family does.
_PUBLISHED = {"AutoConfig": "configuration_mpt.MPTConfig", "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"}


def _read_attention(config: Config) -> dict[str, Any]:
    said = {"alibi": False, **table(config, "attn_config")}
    for key, only in _FIXED.items():
        if said.get(key, only) != only:
            raise Unsupported(f"attn_config.{key}", said[key], f"only {only} is supported")
    known = {*_FIXED, "clip_qkv", "softmax_scale", "attn_pdrop"}
    if unknown := [key for key, value in said.items() if not (key in known or means_nothing(key, value))]:
        raise Unsupported(f"attn_config.{unknown[0]}", said[unknown[0]], "unknown, and may change attention")
    # one number for the probabilities and for what attention and MLP give
    dropout = said.get("attn_pdrop") or 0.0
    of_attention = {"clip_qkv": said.get("clip_qkv"), "softmax_scale": said.get("softmax_scale")}
    return {**of_attention, "dropout": dropout, "attention_dropout": dropout}


def _write_attention(values: dict[str, Any]) -> Config:
    own = {"clip_qkv": values["clip_qkv"], "softmax_scale": values["softmax_scale"]}
    return {"attn_config": {**_FIXED, **own, "attn_pdrop": values["attention_dropout"] or 0}}


FAMILY = Family(
    spec=Mpt,
    model_type="mpt",
    architecture="MptForCausalLM",
    heads=scoring_heads("MptForSequenceClassification"),
    keys={
        "n_layers": "layers",
        "d_model": "hidden",
        "n_heads": "heads",
        "max_seq_len": "context_length",
        "tie_word_embeddings": "tied",
        "layer_norm_epsilon": "layer_norm_eps",
        "vocab_size": "vocab_size",
        "expansion_ratio": "expansion_ratio",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
        "emb_pdrop": "embedding_dropout",
    },
    defaults={
        "max_seq_len": 2048,
        "tie_word_embeddings": True,
        "layer_norm_epsilon": 1e-5,
        "expansion_ratio": 4,
        "emb_pdrop": 0.0,
    },
    fixed={
        "auto_map": (None, _PUBLISHED),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
        "logit_scale": (None,),
        "learned_pos_emb": (True, False),  # ALiBi replaces them, whatever it says
        "embedding_fraction": (1.0,),
    },
    noise={"resid_pdrop": 0.0},
    parts=(Part(("attn_config",), _read_attention, _write_attention),),
    names=(
        TensorName("token_embedding", "transformer.wte.weight"),
        *norm_names("blocks.attention_norm", f"{_BLOCK}.norm_1"),
        *linear_names("blocks.attention.qkv", f"{_BLOCK}.attn.Wqkv"),
        *linear_names("blocks.attention.output", f"{_BLOCK}.attn.out_proj"),
        *norm_names("blocks.mlp_norm", f"{_BLOCK}.norm_2"),
        *linear_names("blocks.mlp_in", f"{_BLOCK}.ffn.up_proj"),
        *linear_names("blocks.mlp_out", f"{_BLOCK}.ffn.down_proj"),
        *norm_names("final_norm", "transformer.norm_f"),
        TensorName("output", "lm_head.weight"),
    ),
    prefix="transformer.",
)
