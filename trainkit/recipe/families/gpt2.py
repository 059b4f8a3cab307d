"""GPT-2 (Radford et al. 2019).

The linear layers of its checkpoints are `Conv1D`, which keeps matrices (in, out) as we do.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.families.hugging_face import Family, TensorName, linear_names, norm_names, scoring_heads
from trainkit.recipe.families.transformer import CHANGEABLE, GptDecoder
from trainkit.recipe.spec import Count, Width


class Gpt2(GptDecoder):
    """GPT-2 (Radford et al. 2019): learned positions, layer norm before each sub-layer, tanh-GELU, tied embeddings."""

    type: Literal["gpt2"] = "gpt2"
    intermediate: Width | None = None
    """Width inside the MLP. If absent, 4 x hidden."""
    context_length: Count | None = None
    """Number of learned positions. If absent, `data.sequence_length`."""

    # each position has a row of weights
    changeable: ClassVar[frozenset[str]] = CHANGEABLE - {"context_length"}

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden


_BLOCK = "transformer.h.{layer}"

FAMILY = Family(
    spec=Gpt2,
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    heads=scoring_heads("GPT2ForSequenceClassification"),
    keys={
        "n_layer": "layers",
        "n_embd": "hidden",
        "n_head": "heads",
        "n_inner": "intermediate",
        "n_positions": "context_length",
        "tie_word_embeddings": "tied",
        "vocab_size": "vocab_size",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
        "resid_pdrop": "dropout",
        "embd_pdrop": "embedding_dropout",
        "attn_pdrop": "attention_dropout",
    },
    defaults={
        "n_positions": 1024,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    fixed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),  # the same but for rounding
        "add_cross_attention": (False,),
    },
    names=(
        TensorName("token_embedding", "transformer.wte.weight"),
        TensorName("position_embedding", "transformer.wpe.weight"),
        *norm_names("blocks.attention_norm", f"{_BLOCK}.ln_1", bias=True),
        *linear_names("blocks.attention.qkv", f"{_BLOCK}.attn.c_attn", transposed=False, bias=True),
        *linear_names("blocks.attention.output", f"{_BLOCK}.attn.c_proj", transposed=False, bias=True),
        *norm_names("blocks.mlp_norm", f"{_BLOCK}.ln_2", bias=True),
        *linear_names("blocks.mlp_in", f"{_BLOCK}.mlp.c_fc", transposed=False, bias=True),
        *linear_names("blocks.mlp_out", f"{_BLOCK}.mlp.c_proj", transposed=False, bias=True),
        *norm_names("final_norm", "transformer.ln_f", bias=True),
        TensorName("output", "lm_head.weight"),
    ),
    prefix="transformer.",
    # masks, which older versions of transformers saved
    ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
)
