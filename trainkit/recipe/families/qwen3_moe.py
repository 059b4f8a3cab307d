"""Qwen3's mixtures of experts (Yang et al. 2025)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Biased, Windowed
from trainkit.recipe.families.hugging_face import Config, Family, Part, Unsupported, scoring_heads
from trainkit.recipe.families.moe import Sparse
from trainkit.recipe.spec import NormEps, Theta, Width


class Qwen3Moe(Windowed, Biased, Sparse):
    """Qwen3's mixtures of experts (Yang et al. 2025)."""

    type: Literal["qwen3-moe"] = "qwen3-moe"
    rope_theta: Theta = 1_000_000.0
    rms_norm_eps: NormEps = 1e-6
    experts_per_token: Width = 8
    moe_intermediate: Width
    """Width inside an expert."""
    normalise_top: bool = True
    """Whether the weights of a token's experts, a softmax over all experts, are normalised to add up to 1."""

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"

    @property
    def mlp_width(self) -> int:
        return self.moe_intermediate

    @property
    def normalised(self) -> bool:
        return self.normalise_top


def _read_experts(config: Config) -> dict[str, Any]:
    # newer versions use Mixtral's name
    count = config.get("num_experts") or config.get("num_local_experts")
    if count is None:
        raise Unsupported("num_experts", None, "it is missing")
    return {"experts": count}


def _read_window(config: Config) -> dict[str, Any]:
    return {"window": config.get("sliding_window", 4096) if config.get("use_sliding_window") else None}


def _write_window(values: dict[str, Any]) -> Config:
    return {"use_sliding_window": values["window"] is not None, "sliding_window": values["window"]}


#: `intermediate_size` is the width of layers without experts; there are none.
_DENSE = Part(("intermediate_size",), lambda config: {}, lambda values: {"intermediate_size": values["hidden"] * 3})


FAMILY = Family(
    spec=Qwen3Moe,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    heads=scoring_heads("Qwen3MoeForSequenceClassification"),
    keys={
        **{theirs: ours for theirs, ours in shared.KEYS.items() if ours != "intermediate"},
        "attention_bias": "attention_bias",
        "num_experts_per_tok": "experts_per_token",
        "moe_intermediate_size": "moe_intermediate",
        "norm_topk_prob": "normalise_top",
    },
    defaults={
        **shared.DEFAULTS,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "norm_topk_prob": False,
        **shared.ROUTER_DEFAULTS,
    },
    fixed={**shared.SILU, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
    parts=(
        shared.ROPE,
        shared.KV_HEADS,
        shared.HEAD_WIDTH,
        Part(("num_experts", "num_local_experts"), _read_experts, lambda values: {"num_experts": values["experts"]}),
        Part(("use_sliding_window", "sliding_window", "max_window_layers"), _read_window, _write_window),
        _DENSE,
        shared.ROUTER_LOSS,
    ),
    names=(
        *shared.OUTER,
        *shared.ATTENTION,
        *shared.QK_NORM,
        *shared.NORMS_BEFORE,
        *shared.expert_names("mlp", "gate_proj", "up_proj", "down_proj"),
    ),
    notes=shared.router_notes,
)
