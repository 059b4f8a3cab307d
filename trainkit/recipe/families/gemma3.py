"""Gemma 3 (Gemma team 2025), the checkpoints without images."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families import gemma
from trainkit.recipe.families.gemma import Gemma
from trainkit.recipe.families.hugging_face import Config, Family, Part, Unsupported, scoring_heads, table
from trainkit.recipe.families.rope import Rope
from trainkit.recipe.spec import Count, Theta


class Gemma3(Gemma):
    """Gemma 3 (Gemma team 2025), its text half: five local layers to a global one, normed queries and keys."""

    type: Literal["gemma3"] = "gemma3"
    rope_theta: Theta = 1_000_000.0
    local_theta: Theta = 10000.0
    """Base of the wave lengths of local layers, which `rope_scaling` does not change."""
    pattern: Count = 6

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"

    @property
    def ropes(self) -> tuple[Rope, ...]:
        local, whole = Rope(self.local_theta, None), Rope(self.rope_theta, self.rope_scaling)
        return tuple(whole if window is None else local for window in self.windows)


def _read_ropes(config: Config) -> dict[str, Any]:
    """Return the keys of rotary positions: local layers have other wave lengths, and no scaling."""
    local = {"rope_theta": config.get("rope_local_base_freq")}
    if both := table(config, "rope_parameters"):
        if unknown := sorted(both.keys() - {"full_attention", "sliding_attention"}):
            raise Unsupported(f"rope_parameters.{unknown[0]}", both[unknown[0]], "not a kind of layers")
        local["rope_parameters"] = both.get("sliding_attention")
        config = {**config, "rope_parameters": both.get("full_attention")}
    found = shared.read_rope(local)
    if found["rope_scaling"] is not None:
        raise Unsupported("rope_parameters.sliding_attention", both["sliding_attention"], "only default is supported")
    return {**shared.read_rope(config), "local_theta": found["rope_theta"]}


def _write_ropes(values: dict[str, Any]) -> Config:
    return {
        "rope_theta": values["rope_theta"],
        "rope_local_base_freq": values["local_theta"],
        "rope_scaling": shared.written_scaling(values["rope_scaling"]),
    }


ROPES = Part(("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"), _read_ropes, _write_ropes)

FAMILY = Family(
    spec=Gemma3,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    heads=scoring_heads("Gemma3TextForSequenceClassification"),
    keys=gemma.KEYS,
    defaults={
        **gemma.DEFAULTS,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10000.0,
    },
    fixed={**gemma.FIXED, "attn_logit_softcapping": (None,)},
    base="Gemma3TextModel",
    parts=(
        ROPES,
        shared.KV_HEADS,
        shared.ALWAYS_HEAD_WIDTH,
        gemma.QUERY_SCALE,
        gemma.softcap("final_logit_softcapping", "final_softcap", None),
        gemma.pattern(6),
    ),
    names=(*gemma.NAMES, *shared.QK_NORM),
)
