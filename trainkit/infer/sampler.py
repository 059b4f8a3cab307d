"""Samples from the model in training, by the code that generates from a finished one."""

from __future__ import annotations

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.events.log import EventLog
from trainkit.infer.generate import TextCodec, decode_until_end, encode_prompts, generate
from trainkit.models.build import cast
from trainkit.recipe.upkeep import Sample


class Sampler:
    """Continues the recipe's prompts, one `sampled` event each. The same state always gives the same text."""

    def __init__(
        self, spec: Sample, *, codec: TextCodec, context_length: int, compute: jnp.dtype, log: EventLog
    ) -> None:
        self._spec = spec
        self._codec = codec
        self._log = log
        self._rows, self._lengths, new_tokens = encode_prompts(
            codec, spec.prompts, context_length=context_length, new_tokens=spec.max_tokens
        )

        def continued(params: PyTree, frozen: PyTree, rows: Array, lengths: Array, key: PRNGKeyArray) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            return generate(
                model, rows, lengths, key, new_tokens=new_tokens, temperature=spec.temperature, top_k=spec.top_k
            )

        self._continued = jax.jit(continued)

    def __call__(self, params: PyTree, frozen: PyTree, *, key: PRNGKeyArray, step: int) -> None:
        """Write what the model with these parameters makes of the prompts at `step`."""
        started = time.perf_counter()
        key = jax.random.fold_in(jax.random.fold_in(key, step), 1)
        tokens = np.asarray(self._continued(params, frozen, self._rows, self._lengths, key))
        seconds = round(time.perf_counter() - started, 3)
        for prompt, ids in zip(self._spec.prompts, tokens.tolist(), strict=True):
            text = decode_until_end(self._codec, ids)
            self._log.write("sampled", step=step, prompt=prompt, text=text, seconds=seconds)
