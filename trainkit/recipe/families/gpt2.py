"""GPT-2 (Radford et al. 2019), and what MPT shares with it: an MLP of two matrices, and a layer norm before each part.

A family states what is its own with fields, with the class variables of `GptDecoder`, and with the properties that it
overrides. The model that is built from it (`models/gpt.py`) reads the same attributes.

The linear layers of GPT-2's checkpoints are `Conv1D`, which keeps matrices (in, out) as we do.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.families.hugging_face import Family, TensorName, linear_names, norm_names
from trainkit.recipe.families.sizes import Shape, linear, norm, stack, visible
from trainkit.recipe.families.transformer import CHANGEABLE, GeluTransformer
from trainkit.recipe.spec import Count


class GptDecoder(GeluTransformer):
    """A decoder with layer norms, one matrix for queries, keys and values, and GELU."""

    tied: bool = True

    implementation: ClassVar[str] = "trainkit.models.gpt"

    learned_positions: ClassVar[bool] = True
    """Whether each of `context_length` positions has an embedding; scores have ALiBi's slopes otherwise."""
    biased: ClassVar[bool] = True
    """Whether matrices and norms have biases."""
    exact_gelu: ClassVar[bool] = False
    """Whether GELU is by the error function, and not by a hyperbolic tangent."""

    @property
    def norm_epsilon(self) -> float:
        """Added to the variance in the norms."""
        return 1e-5

    @property
    def clip(self) -> float | None:
        """Queries, keys and values are cut off at this size; None: they are not."""
        return None

    @property
    def special_attention(self) -> str | None:
        return None if self.learned_positions else "ALiBi's slopes"

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, f, bias = self.hidden, self.mlp_width, self.biased
        block = {
            **norm("attention_norm", d, bias=bias),
            **linear("attention.qkv", d, 3 * d, bias=bias),
            **linear("attention.output", d, d, bias=bias),
            **norm("mlp_norm", d, bias=bias),
            **linear("mlp_in", d, f, bias=bias),
            **linear("mlp_out", f, d, bias=bias),
        }
        positions: dict[str, Shape] = {"position_embedding": (self.context_length or sequence_length, d)}
        output: dict[str, Shape] = {} if self.tied else {"output": (vocab_size, d)}
        return {
            "token_embedding": (vocab_size, d),
            **(positions if self.learned_positions else {}),
            **stack(self.layers, block),
            **norm("final_norm", d, bias=bias),
            **output,
        }

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each visible position, in every layer
        seen = visible(sequence_length=sequence_length, window=None)
        return self.layers * 2 * 2 * self.hidden * seen // sequence_length


class Gpt2(GptDecoder):
    """GPT-2 (Radford et al. 2019): learned positions, layer norm before each sub-layer, tanh-GELU, tied embeddings."""

    type: Literal["gpt2"] = "gpt2"
    intermediate: Count | None = None
    """Width inside the MLP; 4 x hidden where not given."""
    context_length: Count | None = None
    """Number of learned positions; `data.sequence_length` where not given."""

    # each of its positions has a row of weights
    changeable: ClassVar[frozenset[str]] = CHANGEABLE - {"context_length"}

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden


_BLOCK = "transformer.h.{layer}"

FAMILY = Family(
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
    # masks, which older versions saved
    ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
)
