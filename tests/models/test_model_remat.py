"""What is kept for the backward pass changes memory, and nothing else."""

from __future__ import annotations

from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import models
from trainkit.models.stack import LanguageModel
from trainkit.recipe.families.gemma2 import Gemma2
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mixtral import Mixtral
from trainkit.recipe.families.olmo2 import Olmo2
from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.sections.model import Model
from trainkit.tasks.causal_lm import CausalLMTask

VOCAB, LENGTH, ROWS = 61, 32, 2
SPECS = {
    "gpt2": Gpt2(layers=3, hidden=32, heads=4),
    "llama": Llama(layers=3, hidden=32, heads=4, kv_heads=2, intermediate=80),
    "olmo2": Olmo2(layers=3, hidden=32, heads=4, kv_heads=2, intermediate=80),
    "gemma2": Gemma2(layers=3, hidden=32, heads=4, kv_heads=2, intermediate=80, window=LENGTH // 2),
    "mixtral": Mixtral(layers=3, hidden=32, heads=4, kv_heads=2, intermediate=80, experts=4),
}


def model(spec: Model, remat: Remat) -> LanguageModel:
    return models.build(
        spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", remat=remat, key=jax.random.key(0)
    )


def batch() -> dict[str, jax.Array]:
    ids = jax.random.randint(jax.random.key(1), (ROWS, LENGTH + 1), 0, VOCAB)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "weights": jnp.ones((ROWS, LENGTH))}


@eqx.filter_jit
def gradients(model: LanguageModel, batch: dict[str, jax.Array]) -> tuple[jax.Array, LanguageModel]:
    return eqx.filter_value_and_grad(lambda m: CausalLMTask().loss(m, batch)[0])(model)


@pytest.mark.parametrize("family", SPECS)
def test_every_policy_gives_the_same_loss_and_gradients_and_keeps_less_than_the_one_before(family: str) -> None:
    spec, memory = SPECS[family], []
    expected = gradients(model(spec, "none"), batch())
    for remat in get_args(Remat):
        this = model(spec, remat)
        for a, b in zip(*(jax.tree.leaves(t) for t in (gradients(this, batch()), expected)), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)
        compiled = gradients.lower(this, batch()).compile().compiled
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    none, dots, blocks, offload = memory
    assert none > 1.4 * dots > 1.4 * blocks
    assert offload <= blocks  # on a CPU there is no other memory to move to


@pytest.mark.parametrize("family", SPECS)
def test_offload_moves_the_input_of_each_block_to_the_host(family: str) -> None:
    spec = SPECS[family]

    def moves(remat: Remat) -> int:
        return str(jax.make_jaxpr(lambda m: gradients(m, batch()))(model(spec, remat))).count("device_put")

    assert moves("offload") == moves("blocks") + 2  # there, and back


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(SPECS)), st.integers(1, 4096))
def test_the_estimate_falls_from_policy_to_policy_and_auto_counts_as_none(family: str, length: int) -> None:
    spec = SPECS[family].model_copy(update={"layers": 24})
    floats = [spec.activation_floats_per_token(sequence_length=length, remat=remat) for remat in get_args(Remat)]
    assert floats == sorted(floats, reverse=True) and len(set(floats)) == len(floats)
    assert spec.activation_floats_per_token(sequence_length=length, remat="auto") == floats[0]
    flash = spec.activation_floats_per_token(sequence_length=length, remat="none", flash=True)
    assert floats[0] - flash == (0 if spec.special_attention else 24 * spec.heads * length)


@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize("remat", ["none", "dots"])
def test_the_estimate_is_near_what_is_kept(family: str, remat: Remat) -> None:
    spec = SPECS[family].model_copy(update={"layers": 12})
    compiled = gradients.lower(model(spec, remat), batch()).compile().compiled
    fewer = gradients.lower(model(SPECS[family], remat), batch()).compile().compiled
    # the difference is that of nine blocks: gradients are outputs, and what is there once falls out
    kept = compiled.memory_analysis().temp_size_in_bytes - fewer.memory_analysis().temp_size_in_bytes
    estimates = [s.activation_floats_per_token(sequence_length=LENGTH, remat=remat) for s in (spec, SPECS[family])]
    np.testing.assert_allclose(kept, 4 * ROWS * LENGTH * (estimates[0] - estimates[1]), rtol=0.25)
