"""Mixtures of experts: Mixtral's checkpoints and Qwen3's. An expert's matrices are tensors of their own."""

from __future__ import annotations

from typing import Any

from trainkit.hub.config import Config, Family, Part, Unsupported
from trainkit.hub.families.decoder import (
    ALWAYS_HEAD_WIDTH,
    ATTENTION,
    BLOCK,
    DEFAULTS,
    HEAD_WIDTH,
    KEYS,
    KV_HEADS,
    NOISE,
    NORMS_BEFORE,
    OUTER,
    QK_NORM,
    ROPE,
    SILU,
    WINDOW,
)
from trainkit.hub.names import Name
from trainkit.recipe.families.rotary import Mixtral, Qwen3Moe


def _names(block: str, gate: str, up: str, down: str) -> tuple[Name, ...]:
    expert = f"{BLOCK}.{block}.experts.{{expert}}"
    return (
        Name("blocks.mlp.router.weight", f"{BLOCK}.{block}.gate.weight", transposed=True),
        Name("blocks.mlp.gate", f"{expert}.{gate}.weight", transposed=True),
        Name("blocks.mlp.up", f"{expert}.{up}.weight", transposed=True),
        Name("blocks.mlp.down", f"{expert}.{down}.weight", transposed=True),
    )


ROUTER_DEFAULTS = {"router_aux_loss_coef": 0.001, "output_router_logits": False}


def _read_router_loss(config: Config) -> dict[str, Any]:
    """Their library adds the loss of the router only where it also returns the router's logits."""
    coefficient, on = config["router_aux_loss_coef"], config["output_router_logits"]
    if coefficient is None:
        raise Unsupported("router_aux_loss_coef", None, "it must say something")
    if not isinstance(on, bool):
        raise Unsupported("output_router_logits", on, "it must be true or false")
    return {"router_loss": coefficient if on else 0.0}


def _write_router_loss(values: dict[str, Any]) -> Config:
    # with the logits, transformers fails to generate from an attention mask
    return {"router_aux_loss_coef": values["router_loss"], "output_router_logits": False}


ROUTER_LOSS = Part(tuple(ROUTER_DEFAULTS), _read_router_loss, _write_router_loss)

MIXTRAL = Family(
    spec=Mixtral,
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    keys={
        **KEYS,
        "num_local_experts": "experts",
        "num_experts_per_tok": "experts_per_token",
    },
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        **ROUTER_DEFAULTS,
    },
    fixed=SILU,
    noise={**NOISE, "router_jitter_noise": 0.0},
    # transformers does not compute the width itself where positions are scaled by yarn
    parts=(ROPE, KV_HEADS, ALWAYS_HEAD_WIDTH, WINDOW, ROUTER_LOSS),
    names=(*OUTER, *ATTENTION, *NORMS_BEFORE, *_names("block_sparse_moe", "w1", "w3", "w2")),
)


def _read_experts(config: Config) -> dict[str, Any]:
    # newer versions call it as Mixtral does
    count = config.get("num_experts") or config.get("num_local_experts")
    if count is None:
        raise Unsupported("num_experts", None, "it is missing")
    return {"experts": count}


def _read_window(config: Config) -> dict[str, Any]:
    return {"window": config.get("sliding_window", 4096) if config.get("use_sliding_window") else None}


def _write_window(values: dict[str, Any]) -> Config:
    return {"use_sliding_window": values["window"] is not None, "sliding_window": values["window"]}


#: `intermediate_size` is the width of layers without experts, of which there are none.
_DENSE = Part(("intermediate_size",), lambda config: {}, lambda values: {"intermediate_size": values["hidden"] * 3})

QWEN3_MOE = Family(
    spec=Qwen3Moe,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys={
        **{theirs: ours for theirs, ours in KEYS.items() if ours != "intermediate"},
        "attention_bias": "attention_bias",
        "num_experts_per_tok": "experts_per_token",
        "moe_intermediate_size": "moe_intermediate",
        "norm_topk_prob": "normalise_top",
    },
    defaults={
        **DEFAULTS,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "norm_topk_prob": False,
        **ROUTER_DEFAULTS,
    },
    fixed={**SILU, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
    noise=NOISE,
    parts=(
        ROPE,
        KV_HEADS,
        HEAD_WIDTH,
        Part(("num_experts", "num_local_experts"), _read_experts, lambda values: {"num_experts": values["experts"]}),
        Part(("use_sliding_window", "sliding_window", "max_window_layers"), _read_window, _write_window),
        _DENSE,
        ROUTER_LOSS,
    ),
    names=(*OUTER, *ATTENTION, *QK_NORM, *NORMS_BEFORE, *_names("mlp", "gate_proj", "up_proj", "down_proj")),
)
