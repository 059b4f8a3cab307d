"""A small decoder of every rotary family, with options that are not its defaults."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainkit import models
from trainkit.models.decoder import DecoderModel
from trainkit.recipe.families import decoder as spec
from trainkit.recipe.families.gemma2 import Gemma2
from trainkit.recipe.families.gemma3 import Gemma3
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mistral import Mistral
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.olmo2 import Olmo2
from trainkit.recipe.families.qwen2 import Qwen2
from trainkit.recipe.families.qwen3 import Qwen3
from trainkit.recipe.families.qwen3_moe import Qwen3Moe
from trainkit.recipe.families.rope import LinearScaling, Yarn

VOCAB, LENGTH = 61, 24
COMMON: dict[str, Any] = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2}
DENSE = COMMON | {"intermediate": 40}
SPECS: dict[str, spec.Decoder] = {
    "llama": Llama(**DENSE, attention_bias=True, mlp_bias=True, rope_scaling=LinearScaling(factor=2.0)),
    "mistral": Mistral(**DENSE, window=5),
    "qwen2": Qwen2(**DENSE, window=5, layers_without_window=1),
    "qwen3": Qwen3(**DENSE, head_width=6, attention_bias=True),
    "olmo2": Olmo2(**DENSE, rope_scaling=Yarn(factor=4.0, original_context=16)),
    "gemma2": Gemma2(**DENSE, window=5, attention_softcap=2.0, final_softcap=1.0, query_scale=3.0),
    "gemma3": Gemma3(**DENSE, window=5, pattern=2, rope_scaling=LinearScaling(factor=2.0)),
    "mixtral": Mixtral(**DENSE, experts=4, experts_per_token=2),
    "qwen3-moe": Qwen3Moe(**COMMON, experts=5, experts_per_token=3, moe_intermediate=12, normalise_top=False),
}


def model(of: spec.Decoder, *, scale: float = 6.0) -> DecoderModel:
    """With weights large enough that every part of it shows in the result."""
    fresh = models.build(
        of, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", key=jax.random.key(0)
    )
    random = np.random.default_rng(1)

    def other(leaf: jax.Array) -> jax.Array:
        noise = jnp.asarray(0.3 * random.standard_normal(leaf.shape), jnp.float32)
        return scale * leaf if float(leaf.std()) > 0 else leaf + noise

    return jax.tree.map(other, fresh)


def tokens(rows: int, length: int = LENGTH, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, length), 0, VOCAB)
