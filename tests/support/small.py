"""A model, its step and batches, small enough to compile in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from trainkit import models, optim
from trainkit.optim import LearningRate, ScheduledValue
from trainkit.optim.average import Averaging
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.sections.schedule import Cosine
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.state import State, init
from trainkit.train.step import make_step

VOCAB, LENGTH = 97, 16
SPEC = Gpt2(layers=2, hidden=32, heads=4)


def model(key: jax.Array, spec: Gpt2 = SPEC) -> models.stack.LanguageModel:
    return models.build(spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="xla", key=key)


def shapes(spec: Gpt2 = SPEC) -> object:
    whole = jax.eval_shape(partial(model, spec=spec), jax.random.key(0))
    return eqx.filter(whole, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


def names(spec: Gpt2 = SPEC) -> object:
    return models.leaf_names(shapes(spec))


@cache
def optimizer(spec: AdamW | None = None):
    return optim.build(spec or AdamW(learning_rate=1e-2), names(), shapes())


def step(
    spec: AdamW | None = None,
    *,
    max_grad_norm: float = 1.0,
    compute: type = jnp.float32,
    learning_rate: LearningRate | None = None,
    averaging: Averaging | None = None,
    statistics: Statistics | None = None,
    schedules: Mapping[str, ScheduledValue] = {},
):
    return make_step(
        task=build_task(CausalLM()),
        optimizer=optimizer(spec),
        learning_rate=learning_rate or optim.learning_rate(Cosine(), peak=1e-2, steps=20),
        compute=jnp.dtype(compute),
        max_grad_norm=max_grad_norm,
        averaging=averaging,
        statistics=statistics,
        schedules=schedules,
    )


@cache
def jitted(*, max_grad_norm: float = 1.0):
    """The compiled step, shared by the tests of a session."""
    return jax.jit(step(max_grad_norm=max_grad_norm))


def state(seed: int = 0, spec: AdamW | None = None) -> State:
    """One's own to donate."""
    return jax.tree.map(jnp.copy, _state(seed, spec))


@cache
def _state(seed: int, spec: AdamW | None) -> State:
    initial = partial(init, model=model, optimizer=optimizer(spec), compute=jnp.dtype(jnp.float32))
    with jax.ensure_compile_time_eval():  # what is kept must not be part of a trace in which it is first asked for
        return jax.jit(initial)(jax.random.key(seed))


def batch(seed: int, *, sequences: int = 8, accumulation: int = 1) -> dict[str, np.ndarray]:
    """Uneven weights, so that an average of averages would show."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCAB, (sequences, LENGTH + 1))
    weights = (random.random((sequences, LENGTH)) < np.linspace(0.1, 1, sequences)[:, None]).astype(np.float32)
    whole = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "weights": weights}
    return {name: array.reshape(accumulation, -1, LENGTH) for name, array in whole.items()}


def trees_close(left: object, right: object, *, atol: float) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=atol, rtol=0)
