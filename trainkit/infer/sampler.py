"""Samples from the model in training, by the code that generates from a finished one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

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
    """Continues the recipe's prompts and others, one `sampled` event each. The same state always gives the same text.

    Compiled once: whatever their length, as many prompts are continued at a time as the recipe has.
    """

    def __init__(
        self, spec: Sample, *, codec: TextCodec, context_length: int, compute: jnp.dtype, log: EventLog
    ) -> None:
        self._prompts = spec.prompts
        self._codec = codec
        self._log = log
        self._encode = partial(encode_prompts, codec, context_length=context_length, new_tokens=spec.max_tokens)
        _, _, new_tokens = self._encode(spec.prompts)

        def continued(params: PyTree, frozen: PyTree, rows: Array, lengths: Array, key: PRNGKeyArray) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            return generate(
                model, rows, lengths, key, new_tokens=new_tokens, temperature=spec.temperature, top_k=spec.top_k
            )

        self._continued = jax.jit(continued)

    def __call__(
        self, params: PyTree, frozen: PyTree, *, key: PRNGKeyArray, step: int, prompts: Sequence[str] | None = None
    ) -> None:
        """Write what the model with these parameters makes of `prompts`, where None of the recipe's, at `step`."""
        key = jax.random.fold_in(jax.random.fold_in(key, step), 1)
        prompts, size = self._prompts if prompts is None else prompts, len(self._prompts)
        for first in range(0, len(prompts), size):
            started = time.perf_counter()
            some = prompts[first : first + size]
            rows, lengths, _ = self._encode([*some, *[""] * (size - len(some))])
            tokens = np.asarray(self._continued(params, frozen, rows, lengths, key))
            seconds = round(time.perf_counter() - started, 3)
            for prompt, ids in zip(some, tokens.tolist(), strict=False):
                text = decode_until_end(self._codec, ids)
                self._log.write("sampled", step=step, prompt=prompt, text=text, seconds=seconds)
