"""What the checkpoints of rotary decoders share: keys, rotary positions, names."""

from __future__ import annotations

from typing import Any

from trainkit.hub.config import Config, Part, Unsupported
from trainkit.hub.names import Name, matrix, norm

BLOCK = "model.layers.{layer}"

#: Keys that are ours by another name.
KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "intermediate",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "rms_norm_eps",
    "tie_word_embeddings": "tied",
    "vocab_size": "vocab_size",
}
#: What their library takes where config.json does not say. (That of gemma differs.)
DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0}
SILU = {"hidden_act": ("silu", "swish")}

OUTER = (
    Name("token_embedding", "model.embed_tokens.weight"),
    *norm("final_norm", "model.norm"),
    Name("output", "lm_head.weight"),
)
ATTENTION = (
    *matrix("blocks.attention.query", f"{BLOCK}.self_attn.q_proj", bias=True),
    *matrix("blocks.attention.key", f"{BLOCK}.self_attn.k_proj", bias=True),
    *matrix("blocks.attention.value", f"{BLOCK}.self_attn.v_proj", bias=True),
    *matrix("blocks.attention.output", f"{BLOCK}.self_attn.o_proj", bias=True),
)
QK_NORM = (
    *norm("blocks.attention.query_norm", f"{BLOCK}.self_attn.q_norm"),
    *norm("blocks.attention.key_norm", f"{BLOCK}.self_attn.k_norm"),
)
MLP = (
    *matrix("blocks.mlp.gate", f"{BLOCK}.mlp.gate_proj", bias=True),
    *matrix("blocks.mlp.up", f"{BLOCK}.mlp.up_proj", bias=True),
    *matrix("blocks.mlp.down", f"{BLOCK}.mlp.down_proj", bias=True),
)
NORMS_BEFORE = (
    *norm("blocks.attention_norm", f"{BLOCK}.input_layernorm"),
    *norm("blocks.mlp_norm", f"{BLOCK}.post_attention_layernorm"),
)
#: Frequencies, which older versions saved.
IGNORED = r".*\.rotary_emb\.inv_freq"

_SCALED = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "original_max_position_embeddings": "original_context",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_context",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
    },
}


def read_rope(config: Config) -> dict[str, Any]:
    """The rotary positions: `rope_theta` and `rope_scaling`, or both in `rope_parameters`."""
    both = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = both.pop("rope_theta", None) or config["rope_theta"]
    return {"rope_theta": theta, "rope_scaling": _scaling(both, config)}


def _scaling(said: dict[str, Any], config: Config) -> dict[str, Any] | None:
    kinds = {said.pop(key) for key in ("type", "rope_type") if key in said}
    kind = next(iter(kinds), "default")
    if kind == "default" and kinds != {"linear", "default"}:
        return None
    if kind not in _SCALED or len(kinds) > 1:
        raise Unsupported("rope_scaling", {"rope_type": kind, **said}, f"only {', '.join(_SCALED)} can be had")
    if kind == "yarn":
        said.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
        if said.pop("truncate", True) is not True:
            raise Unsupported("rope_scaling.truncate", False, "only true can be had")
    ours = _SCALED[kind]
    if unknown := [key for key, value in said.items() if key not in ours and value is not None]:
        raise Unsupported(f"rope_scaling.{unknown[0]}", said[unknown[0]], "not known, and it may change positions")
    return {"type": kind, **{ours[key]: value for key, value in said.items() if value is not None}}


def write_rope(values: dict[str, Any]) -> Config:
    return {"rope_theta": values["rope_theta"], "rope_scaling": written_scaling(values["rope_scaling"])}


def written_scaling(scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    theirs = {ours: key for key, ours in _SCALED[scaling["type"]].items()}
    said = {theirs[key]: value for key, value in scaling.items() if key != "type" and value is not None}
    return {"rope_type": scaling["type"], **said}


ROPE = Part(("rope_theta", "rope_scaling", "rope_parameters"), read_rope, write_rope)

#: Absent, it is hidden / heads.
HEAD_WIDTH = Part(
    ("head_dim",),
    lambda config: {"head_width": config.get("head_dim")},
    lambda values: {"head_dim": values["head_width"]},
)
#: The same of families whose library has a number of its own where it is absent.
ALWAYS_HEAD_WIDTH = Part(
    HEAD_WIDTH.keys,
    HEAD_WIDTH.read,
    lambda values: {"head_dim": values["head_width"] or values["hidden"] // values["heads"]},
)


def _read_window(config: Config) -> dict[str, Any]:
    types = set(config.get("layer_types") or ())
    window = config.get("sliding_window")
    if types and types != {"sliding_attention" if window else "full_attention"}:
        raise Unsupported("layer_types", sorted(types), "all layers of this family have the same window")
    return {"window": window}


#: A window in all layers.
WINDOW = Part(("sliding_window", "layer_types"), _read_window, lambda values: {"sliding_window": values["window"]})
