"""A small model of every family, with weights that are random in every leaf, norms and biases too."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from trainkit import models
from trainkit.recipe.families.gemma2 import Gemma2
from trainkit.recipe.families.gemma3 import Gemma3
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mistral import Mistral
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.mpt import Mpt
from trainkit.recipe.families.olmo2 import Olmo2
from trainkit.recipe.families.qwen2 import Qwen2
from trainkit.recipe.families.qwen3 import Qwen3
from trainkit.recipe.families.qwen3_moe import Qwen3Moe
from trainkit.recipe.families.rope import Llama3, Yarn
from trainkit.recipe.families.transformer import Pretrained

VOCAB, LENGTH = 320, 32
_SIZES: dict[str, Any] = {"vocab_size": VOCAB, "layers": 3, "hidden": 32, "heads": 4, "context_length": 64}
_DECODER: dict[str, Any] = {**_SIZES, "kv_heads": 2, "intermediate": 48}
_EXPERTS: dict[str, Any] = {**_SIZES, "kv_heads": 2, "experts": 3, "experts_per_token": 2, "router_loss": 0.0}

SPECS: dict[str, Pretrained] = {
    "gpt2": Gpt2(**_SIZES),
    "gpt2-untied": Gpt2(**_SIZES, tied=False, intermediate=40),
    "llama": Llama(**_DECODER),
    "llama-3": Llama(**_DECODER, tied=True, rope_scaling=Llama3(factor=8.0, original_context=32), rope_theta=5e5),
    "llama-yarn": Llama(**_DECODER, rope_scaling=Yarn(factor=4.0, original_context=16), head_width=16),
    "llama-biased": Llama(**_DECODER, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-6),
    "mistral": Mistral(**_DECODER, window=8),
    "mistral-whole": Mistral(**_DECODER),
    "qwen2": Qwen2(**_DECODER, tied=True),
    "qwen2-window": Qwen2(**_DECODER, window=8, layers_without_window=1),
    "qwen3": Qwen3(**_DECODER, head_width=16),
    "olmo2": Olmo2(**_DECODER),
    "gemma2": Gemma2(**_DECODER, head_width=16, window=8, query_scale=24.0),
    "gemma2-uncapped": Gemma2(**_DECODER, head_width=16, window=8, query_scale=16.0, attention_softcap=False),
    "gemma3": Gemma3(**_DECODER, head_width=16, window=8, query_scale=16.0, pattern=2),
    "mixtral": Mixtral(**_EXPERTS, intermediate=24, head_width=8),
    "qwen3-moe": Qwen3Moe(**_EXPERTS, moe_intermediate=24, head_width=16, normalise_top=False),
    "mpt": Mpt(**_SIZES),
}


def model(spec: Pretrained, dtype: Any = jnp.float32, *, seed: int = 0) -> Any:
    """Leaves differ, so that one in the place of another would show."""
    built = _built(spec, jax.random.key(seed))
    chance = np.random.default_rng(seed)

    def other(leaf: Any) -> Any:
        return jnp.asarray(chance.normal(0.2, 0.3, leaf.shape), dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(other, built)


def shapes(spec: Pretrained, *, vocab: int = VOCAB) -> Any:
    return eqx.filter_eval_shape(partial(_built, spec, vocab=vocab), jax.random.key(0))


def _built(spec: Any, key: jax.Array, *, vocab: int = VOCAB) -> Any:
    return models.build(spec, vocab_size=vocab, sequence_length=LENGTH, implementation="xla", key=key)


def arrays(model: Any) -> dict[str, np.ndarray]:
    """Every array by its name."""
    kept = eqx.filter(model, eqx.is_array)
    return dict(zip(jax.tree.leaves(models.leaf_names(kept)), map(np.asarray, jax.tree.leaves(kept)), strict=True))
