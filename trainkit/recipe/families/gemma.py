"""What Gemma 2 and Gemma 3 share. Weights of norms are kept as the checkpoints have them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Biased, Dense, Multiple
from trainkit.recipe.families.hugging_face import Config, Part, Unsupported, layer_types, norm_names, whole
from trainkit.recipe.spec import Count, NormEps, Positive, Scale


class Gemma(Multiple, Biased, Dense):
    """A decoder with norms before and after each part, gated GELU, scaled embeddings, local and global layers."""

    tied: bool = True
    rms_norm_eps: NormEps = 1e-6
    window: Count = 4096
    """How many positions the attention of local layers sees, its own included."""
    query_scale: Scale | None = None
    """Scores are divided by the square root of this (`query_pre_attn_scalar`). If absent, it is the width of a head."""
    final_softcap: Positive | Literal[False] = False
    """Soft-cap of the logits: cap x tanh(logits / cap); `false` for none."""

    pattern: Count
    """In each group of this many layers the last is global and the others are local."""

    norms: ClassVar[Literal["before", "after", "around"]] = "around"
    norm_offset: ClassVar[float] = 1.0
    activation: ClassVar[Literal["silu", "gelu"]] = "gelu"
    scaled_embedding: ClassVar[bool] = True

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(self.window if (i + 1) % self.pattern else None for i in range(self.layers))

    @property
    def score_scale(self) -> float | None:
        return None if self.query_scale is None else float(self.query_scale**-0.5)

    @property
    def not_in_transformers(self) -> str | None:
        broken = self.query_scale is not None and self.query_scale != int(self.query_scale)
        whole = f"query_scale = {self.query_scale}: transformers supports only whole numbers"
        return whole if broken else super().not_in_transformers

    @property
    def softcap_of_logits(self) -> float | None:
        return self.final_softcap or None


DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "pad_token_id": 0,
}
FIXED = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "hidden_act": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
}
KEYS = {
    **shared.KEYS,
    "attention_bias": "attention_bias",
    "sliding_window": "window",
    "query_pre_attn_scalar": "query_scale",
}
NAMES = (
    *shared.OUTER,
    *shared.ATTENTION,
    *shared.MLP,
    *norm_names("blocks.attention_norm", f"{shared.BLOCK}.input_layernorm"),
    *norm_names("blocks.attention_post_norm", f"{shared.BLOCK}.post_attention_layernorm"),
    *norm_names("blocks.mlp_norm", f"{shared.BLOCK}.pre_feedforward_layernorm"),
    *norm_names("blocks.mlp_post_norm", f"{shared.BLOCK}.post_feedforward_layernorm"),
)


def _kinds(every: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]


def pattern(usual: int) -> Part:
    """Return the part that reads how often a layer is global, from a list of all layers or from a number."""

    def read(config: Config) -> dict[str, Any]:
        number = whole(config, "sliding_window_pattern", whole(config, "_sliding_window_pattern", usual))
        kinds = layer_types(config)
        if kinds is not None and "full_attention" in kinds:
            number = kinds.index("full_attention") + 1
        if kinds is not None and kinds != _kinds(number, len(kinds)):
            raise Unsupported("layer_types", kinds, "global layers must be at equal distances")
        return {"pattern": number}

    def write(values: dict[str, Any]) -> Config:
        kinds = _kinds(values["pattern"], values["layers"])
        return {"layer_types": kinds, **({"sliding_window_pattern": values["pattern"]} if usual != 2 else {})}

    return Part(("layer_types", "sliding_window_pattern", "_sliding_window_pattern"), read, write)


def _query_scale(values: dict[str, Any]) -> Config:
    scale = values["query_scale"] or values["head_width"] or values["hidden"] // values["heads"]
    return {"query_pre_attn_scalar": int(scale)}


#: Always written, because transformers has another default.
QUERY_SCALE = Part((), lambda config: {}, _query_scale)


def softcap(theirs: str, ours: str, usual: float | None) -> Part:
    """Return the part for a soft-cap: null means none, and an absent key the family's default."""
    return Part(
        (theirs,),
        lambda config: {ours: config.get(theirs, usual) or False},
        lambda values: {theirs: values[ours] or None},
    )
