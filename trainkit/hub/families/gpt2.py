"""GPT-2's checkpoints. Their linear layers are `Conv1D`, which keeps matrices (in, out) as we do."""

from trainkit.hub.config import Family
from trainkit.hub.names import Name, matrix, norm
from trainkit.recipe.sections.model import Gpt2

_BLOCK = "transformer.h.{layer}"

GPT2 = Family(
    spec=Gpt2,
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
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
    },
    defaults={"n_positions": 1024, "tie_word_embeddings": True},
    fixed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),  # the same but for rounding
        "add_cross_attention": (False,),
    },
    noise={"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    names=(
        Name("token_embedding", "transformer.wte.weight"),
        Name("position_embedding", "transformer.wpe.weight"),
        *norm("blocks.attention_norm", f"{_BLOCK}.ln_1", bias=True),
        *matrix("blocks.attention.qkv", f"{_BLOCK}.attn.c_attn", transposed=False, bias=True),
        *matrix("blocks.attention.output", f"{_BLOCK}.attn.c_proj", transposed=False, bias=True),
        *norm("blocks.mlp_norm", f"{_BLOCK}.ln_2", bias=True),
        *matrix("blocks.mlp_in", f"{_BLOCK}.mlp.c_fc", transposed=False, bias=True),
        *matrix("blocks.mlp_out", f"{_BLOCK}.mlp.c_proj", transposed=False, bias=True),
        *norm("final_norm", "transformer.ln_f", bias=True),
        Name("output", "lm_head.weight"),
    ),
    prefix="transformer.",
    # masks, which older versions saved
    ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
)
