"""MPT's checkpoints: those with ALiBi and without biases."""

from __future__ import annotations

from typing import Any

from trainkit.hub.config import Config, Family, Part, Unsupported, means_nothing, table
from trainkit.hub.names import Name, matrix, norm
from trainkit.recipe.families.gpt import Mpt

_BLOCK = "transformer.blocks.{layer}"
#: Of `attn_config`, with the only value that can be had.
_FIXED = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "qk_ln": False,
    "prefix_lm": False,
    "attn_uses_sequence_id": False,
}
#: The code that the published checkpoints bring, which is what this family does.
_PUBLISHED = {"AutoConfig": "configuration_mpt.MPTConfig", "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"}


def _read_attention(config: Config) -> dict[str, Any]:
    said = {"alibi": False, **table(config, "attn_config")}
    for key, only in _FIXED.items():
        if said.get(key, only) != only:
            raise Unsupported(f"attn_config.{key}", said[key], f"only {only} can be had")
    known = {*_FIXED, "clip_qkv", "softmax_scale", "attn_pdrop"}
    if unknown := [key for key, value in said.items() if not (key in known or means_nothing(key, value))]:
        raise Unsupported(f"attn_config.{unknown[0]}", said[unknown[0]], "not known, and it may change attention")
    return {"clip_qkv": said.get("clip_qkv"), "softmax_scale": said.get("softmax_scale")}


def _write_attention(values: dict[str, Any]) -> Config:
    own = {"clip_qkv": values["clip_qkv"], "softmax_scale": values["softmax_scale"]}
    return {"attn_config": {**_FIXED, **own, "attn_pdrop": 0}}


MPT = Family(
    spec=Mpt,
    model_type="mpt",
    architecture="MptForCausalLM",
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
    },
    defaults={
        "max_seq_len": 2048,
        "tie_word_embeddings": True,
        "layer_norm_epsilon": 1e-5,
        "expansion_ratio": 4,
    },
    fixed={
        "auto_map": (None, _PUBLISHED),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
        "logit_scale": (None,),
        "learned_pos_emb": (True, False),  # there are none beside ALiBi, whatever it says
        "embedding_fraction": (1.0,),
    },
    noise={"resid_pdrop": 0.0, "emb_pdrop": 0.0, "attn_config.attn_pdrop": 0.0},
    parts=(Part(("attn_config",), _read_attention, _write_attention),),
    names=(
        Name("token_embedding", "transformer.wte.weight"),
        *norm("blocks.attention_norm", f"{_BLOCK}.norm_1"),
        *matrix("blocks.attention.qkv", f"{_BLOCK}.attn.Wqkv"),
        *matrix("blocks.attention.output", f"{_BLOCK}.attn.out_proj"),
        *norm("blocks.mlp_norm", f"{_BLOCK}.norm_2"),
        *matrix("blocks.mlp_in", f"{_BLOCK}.ffn.up_proj"),
        *matrix("blocks.mlp_out", f"{_BLOCK}.ffn.down_proj"),
        *norm("final_norm", "transformer.norm_f"),
        Name("output", "lm_head.weight"),
    ),
    prefix="transformer.",
)
