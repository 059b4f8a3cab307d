"""Models with an adapter, small enough to compile in a moment."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
from small import LENGTH, VOCAB

from trainkit import models
from trainkit.models.adapters import adapt, trainable
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.qwen2 import Qwen2
from trainkit.recipe.sections.adapter import Adapter

GPT2 = Gpt2(layers=2, hidden=32, heads=4)
LLAMA = Llama(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48)
QWEN2 = Qwen2(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48)
MIXTRAL = Mixtral(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, experts=4, experts_per_token=2)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (3, LENGTH))


def built(spec: Any, key: int = 0) -> Any:
    return models.build(spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="xla", key=jax.random.key(key))


@cache
def model(spec: Any, key: int = 0) -> Any:
    # other tests get it too: it must hold numbers even where the first to ask for it is being traced
    with jax.ensure_compile_time_eval():
        return built(spec, key)


def trained(adapted: Any, seed: int = 1) -> Any:
    """As after training: every trained leaf is somewhere else."""
    params, frozen = eqx.partition(adapted, trainable(adapted))
    leaves, structure = jax.tree.flatten(params)
    random = np.random.default_rng(seed)
    moved = [leaf + 0.05 * random.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves]
    return eqx.combine(structure.unflatten(moved), frozen)


def adapted(spec: Any, adapter: Adapter, key: int = 0) -> Any:
    return adapt(model(spec, key), adapter, key=jax.random.key(7))


def shapes(spec: Any, adapter: Adapter) -> Any:
    """The adapted model's shapes, without its numbers."""
    return jax.eval_shape(lambda: adapt(built(spec), adapter, key=jax.random.key(7)))


@jax.jit
def hidden(model: Any) -> jax.Array:
    return model.hidden_states(TOKENS)[0]
