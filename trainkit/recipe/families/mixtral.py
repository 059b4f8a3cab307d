"""Mixtral (Jiang et al. 2024)."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Windowed
from trainkit.recipe.families.hugging_face import Family, scoring_heads
from trainkit.recipe.families.moe import Sparse
from trainkit.recipe.spec import Theta, Width


class Mixtral(Windowed, Sparse):
    """Mixtral (Jiang et al. 2024): Mistral with experts, a softmax over those that a token goes through."""

    type: Literal["mixtral"] = "mixtral"
    rope_theta: Theta = 1_000_000.0
    intermediate: Width
    """Width inside an expert."""

    @property
    def mlp_width(self) -> int:
        return self.intermediate


FAMILY = Family(
    spec=Mixtral,
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    heads=scoring_heads("MixtralForSequenceClassification"),
    keys={
        **shared.KEYS,
        "num_local_experts": "experts",
        "num_experts_per_tok": "experts_per_token",
    },
    defaults={
        **shared.DEFAULTS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        **shared.ROUTER_DEFAULTS,
    },
    fixed=shared.SILU,
    noise={"router_jitter_noise": 0.0},
    # transformers does not compute the width itself where positions are scaled by yarn
    parts=(shared.ROPE, shared.KV_HEADS, shared.ALWAYS_HEAD_WIDTH, shared.WINDOW, shared.ROUTER_LOSS),
    names=(
        *shared.OUTER,
        *shared.ATTENTION,
        *shared.NORMS_BEFORE,
        *shared.expert_names("block_sparse_moe", "w1", "w3", "w2"),
    ),
    notes=shared.router_notes,
)
