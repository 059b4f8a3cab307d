"""Samples from the model in training, by the code that generates from a finished one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.events.log import EventLog
from trainkit.infer.generate import NOTHING, TextCodec, fitting, generate, padded
from trainkit.infer.sampling import Sampling
from trainkit.infer.text import Transcript
from trainkit.models.exact import cast
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
        self._new_tokens = min(spec.max_tokens, context_length - 1)
        self._context_length = context_length
        sampling = Sampling(temperature=spec.temperature, top_k=spec.top_k)
        new_tokens, ends = self._new_tokens, (codec.end_of_text,)

        def continued(params: PyTree, frozen: PyTree, rows: Array, lengths: Array, key: PRNGKeyArray) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            keys = jax.random.split(key, len(rows))
            return generate(model, rows, lengths, keys, new_tokens=new_tokens, sampling=sampling, ends=ends)

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
            ids = [self._ids(prompt) for prompt in some]
            # rows that are not asked for have no tokens, and have ended before they began
            rows, lengths = padded([*ids, *[[]] * (size - len(some))], self._context_length - self._new_tokens)
            tokens = np.asarray(self._continued(params, frozen, rows, lengths, key))
            seconds = round(time.perf_counter() - started, 3)
            for prompt, before, new in zip(some, ids, tokens.tolist(), strict=False):
                transcript = Transcript(self._codec, before)
                transcript.add([t for t in new if t not in (NOTHING, self._codec.end_of_text)], last=True)
                self._log.write("sampled", step=step, prompt=prompt, text=transcript.text, seconds=seconds)

    def _ids(self, prompt: str) -> list[int]:
        ids, end = self._codec.encode(prompt), self._codec.end_of_text
        return fitting(ids, context_length=self._context_length, new_tokens=self._new_tokens, empty=end)
