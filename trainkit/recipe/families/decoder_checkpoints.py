"""What Hugging Face checkpoints of rotary decoders share: keys, rotary positions, windows, experts, tensor names."""

from __future__ import annotations

import json
from typing import Any

from trainkit.recipe.families.hugging_face import (
    Config,
    Part,
    TensorName,
    Unsupported,
    layer_types,
    linear_names,
    norm_names,
    table,
    whole,
)
from trainkit.recipe.families.moe import Sparse

BLOCK = "model.layers.{layer}"

#: Their name -> our name.
KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "intermediate_size": "intermediate",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "rms_norm_eps",
    "tie_word_embeddings": "tied",
    "vocab_size": "vocab_size",
    "initializer_range": "initializer_range",
    "pad_token_id": "pad_token_id",
    "attention_dropout": "attention_dropout",
}
#: The defaults of transformers for keys that config.json lacks. (Gemma's differ.)
DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0, "attention_dropout": 0.0}
SILU = {"hidden_act": ("silu", "swish")}

OUTER = (
    TensorName("token_embedding", "model.embed_tokens.weight"),
    *norm_names("final_norm", "model.norm"),
    TensorName("output", "lm_head.weight"),
)
ATTENTION = (
    *linear_names("blocks.attention.query", f"{BLOCK}.self_attn.q_proj", bias=True),
    *linear_names("blocks.attention.key", f"{BLOCK}.self_attn.k_proj", bias=True),
    *linear_names("blocks.attention.value", f"{BLOCK}.self_attn.v_proj", bias=True),
    *linear_names("blocks.attention.output", f"{BLOCK}.self_attn.o_proj", bias=True),
)
QK_NORM = (
    *norm_names("blocks.attention.query_norm", f"{BLOCK}.self_attn.q_norm"),
    *norm_names("blocks.attention.key_norm", f"{BLOCK}.self_attn.k_norm"),
)
MLP = (
    *linear_names("blocks.mlp.gate", f"{BLOCK}.mlp.gate_proj", bias=True),
    *linear_names("blocks.mlp.up", f"{BLOCK}.mlp.up_proj", bias=True),
    *linear_names("blocks.mlp.down", f"{BLOCK}.mlp.down_proj", bias=True),
)
NORMS_BEFORE = (
    *norm_names("blocks.attention_norm", f"{BLOCK}.input_layernorm"),
    *norm_names("blocks.mlp_norm", f"{BLOCK}.post_attention_layernorm"),
)
#: Frequencies, which older versions of transformers saved.
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

#: Further keys, with the only supported value.
_FIXED = {"partial_rotary_factor": 1.0, "truncate": True}


def read_rope(config: Config) -> dict[str, Any]:
    """Return the keys of rotary positions: `rope_theta` and `rope_scaling`, or both from `rope_parameters`."""
    given = {key: table(config, key) for key in ("rope_parameters", "rope_scaling") if config.get(key) is not None}
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise Unsupported("rope_scaling", config["rope_scaling"], "rope_parameters has another value")
    both = dict(next(iter(given.values()), {}))
    theta = both.pop("rope_theta", None) or config.get("rope_theta")
    if theta is None:
        raise Unsupported("rope_theta", None, "it must have a value")
    return {"rope_theta": theta, "rope_scaling": _scaling(both, config)}


def _scaling(said: dict[str, Any], config: Config) -> dict[str, Any] | None:
    kinds = [value for key in ("rope_type", "type") if (value := said.pop(key, None)) is not None]
    kind = kinds[0] if kinds else "default"
    if kind not in ("default", *_SCALED):
        raise Unsupported("rope_scaling", {"rope_type": kind, **said}, f"only {', '.join(_SCALED)} is supported")
    if kinds[-1:] not in ([], [kind]):
        raise Unsupported("rope_scaling.type", kinds[-1], f"rope_type is {kind}")
    for key, only in _FIXED.items():
        if (value := said.pop(key, None)) not in (None, only):
            raise Unsupported(f"rope_scaling.{key}", value, f"only {json.dumps(only)} is supported")
    if kind in ("llama3", "yarn"):
        said.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    ours = _SCALED.get(kind, {})
    if unknown := [key for key, value in said.items() if key not in ours and value is not None]:
        raise Unsupported(f"rope_scaling.{unknown[0]}", said[unknown[0]], "unknown, and may change positions")
    if kind == "default":
        return None
    return {"type": kind, **{ours[key]: value for key, value in said.items() if value is not None}}


def write_rope(values: dict[str, Any]) -> Config:
    """Return the keys of config.json for the rotary positions of a spec."""
    return {"rope_theta": values["rope_theta"], "rope_scaling": written_scaling(values["rope_scaling"])}


def written_scaling(scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `rope_scaling` of config.json for that of a spec; None for None."""
    if scaling is None:
        return None
    theirs = {ours: key for key, ours in _SCALED[scaling["type"]].items()}
    said = {theirs[key]: value for key, value in scaling.items() if key != "type" and value is not None}
    return {"rope_type": scaling["type"], **said}


#: Null means as many as heads. Absent, it is a default of the family, so it is always written.
KV_HEADS = Part(
    ("num_key_value_heads",),
    lambda config: {"kv_heads": config.get("num_key_value_heads")},
    lambda values: {"num_key_value_heads": values["kv_heads"] or values["heads"]},
)
ROPE = Part(("rope_theta", "rope_scaling", "rope_parameters"), read_rope, write_rope)

#: Absent, it is hidden / heads.
HEAD_WIDTH = Part(
    ("head_dim",),
    lambda config: {"head_width": config.get("head_dim")},
    lambda values: {"head_dim": values["head_width"]},
)
#: The same for families for which transformers has another default.
ALWAYS_HEAD_WIDTH = Part(
    HEAD_WIDTH.keys,
    HEAD_WIDTH.read,
    lambda values: {"head_dim": values["head_width"] or values["hidden"] // values["heads"]},
)


def _read_window(config: Config) -> dict[str, Any]:
    types, window = layer_types(config), config.get("sliding_window")
    kind = "sliding_attention" if window else "full_attention"
    if types and any(each != kind for each in types):
        raise Unsupported("layer_types", types, "all layers of this family have the same window")
    return {"window": window}


#: A window in all layers.
WINDOW = Part(("sliding_window", "layer_types"), _read_window, lambda values: {"sliding_window": values["window"]})


def _read_late_window(config: Config) -> dict[str, Any]:
    """Return the keys of a window that the first `max_window_layers` layers lack; none has one where
    `use_sliding_window` is false."""
    first, window = whole(config, "max_window_layers", 28, least=0), config.get("sliding_window", 4096)
    on = config.get("use_sliding_window", False) and window is not None
    on = on and first < whole(config, "num_hidden_layers", first + 1)
    types = layer_types(config) or []
    if types != ["sliding_attention" if on and i >= first else "full_attention" for i in range(len(types))]:
        raise Unsupported("layer_types", types, "they contradict max_window_layers")
    return {"window": window, "layers_without_window": first} if on else {"window": None}


def _write_late_window(values: dict[str, Any]) -> Config:
    window = values["window"]
    first = values["layers_without_window"] if window else values["layers"]
    return {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": first}


#: A window in the last layers.
LATE_WINDOW = Part(
    ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"), _read_late_window, _write_late_window
)


def expert_names(block: str, gate: str, up: str, down: str) -> tuple[TensorName, ...]:
    """Return the names of a router's tensor and of three for each expert."""
    expert = f"{BLOCK}.{block}.experts.{{expert}}"
    return (
        TensorName("blocks.mlp.router.weight", f"{BLOCK}.{block}.gate.weight", transposed=True),
        TensorName("blocks.mlp.gate", f"{expert}.{gate}.weight", transposed=True),
        TensorName("blocks.mlp.up", f"{expert}.{up}.weight", transposed=True),
        TensorName("blocks.mlp.down", f"{expert}.{down}.weight", transposed=True),
    )


ROUTER_DEFAULTS = {"router_aux_loss_coef": 0.001, "output_router_logits": False}


def _read_router_loss(config: Config) -> dict[str, Any]:
    """Return `router_loss`: transformers adds it only where it also returns the router's logits."""
    coefficient, on = config["router_aux_loss_coef"], config["output_router_logits"]
    if coefficient is None:
        raise Unsupported("router_aux_loss_coef", None, "it must have a value")
    if not isinstance(on, bool):
        raise Unsupported("output_router_logits", on, "it must be true or false")
    return {"router_loss": coefficient if on else 0.0}


def _write_router_loss(values: dict[str, Any]) -> Config:
    # with the logits, transformers fails to generate from an attention mask
    return {"router_aux_loss_coef": values["router_loss"], "output_router_logits": False}


ROUTER_LOSS = Part(tuple(ROUTER_DEFAULTS), _read_router_loss, _write_router_loss)


def router_notes(model: Sparse, config: Config) -> list[str]:
    """Return a warning where training leaves out the router's loss because the checkpoint's config turns it off."""
    coefficient = config["router_aux_loss_coef"]
    if model.router_loss or not coefficient or config["output_router_logits"]:
        return []
    return [
        "training does not balance experts, because the checkpoint has output_router_logits = false; to balance them:"
        f" [model] router_loss = {coefficient}"
    ]
