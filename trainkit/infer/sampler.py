"""Samples from the model during training, with the code that generates from a finished one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.data.documents.chat_template import ChatTemplate, render
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.generate import TextCodec, Transcript, bucket, generate, pad_prompts
from trainkit.infer.sampling import Sampling
from trainkit.infer.seq2seq import start_of, target_tokens, write_targets
from trainkit.infer.settings import rules_beside
from trainkit.infer.target_rules import NO_RULES, TargetRules
from trainkit.infer.text_format import (
    ChatCodec,
    after_source,
    chat_of,
    end_of_answer,
    template_of,
    text_format_of,
    usable_template,
)
from trainkit.models.casting import cast
from trainkit.parallel.mesh import replicated_sharding
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import ChatMessage, Sample


class SampleCodec(TextCodec, ChatCodec, Protocol):
    """The parts of a tokenizer that samples use."""


#: What samples draw random numbers for: see `train/step.py`.
SAMPLES = 1


def build_sampler(
    recipe: Recipe,
    directory: Path,
    codec: LoadedTokenizer,
    *,
    compute: jnp.dtype,
    mesh: Mesh,
    log: EventLog,
    jit: Callable[..., Any] = jax.jit,
) -> Sampler:
    """Return the sampler of the run in `directory`, which continues texts as the run's training wrote them. `jit`
    compiles.

    Raises:
        TrainkitError: a prompt is a conversation, and the run has no chat template that can write it.
    """
    texts, spec = text_format_of(recipe, directory, codec), recipe.sample or Sample()
    find = template_of if spec.has_conversations else usable_template
    return Sampler(
        spec,
        codec=codec,
        begin=texts.begin,
        ends=texts.ends,
        context_length=recipe.language_model.context_length or recipe.data.positions,
        compute=compute,
        mesh=mesh,
        log=log,
        template=find(chat_of(recipe), (directory,)),
        sources=SourceFormat(start_of(recipe.model, codec), after_source(recipe, codec), rules_beside(directory))
        if recipe.model.kind == "encoder-decoder"
        else None,
        jit=jit,
    )


class SourceFormat(NamedTuple):
    """How an encoder-decoder reads a prompt as a source, and begins its target."""

    start: int
    """The token before every target."""
    after: tuple[int, ...]
    """Tokens after every source."""
    rules: TargetRules = NO_RULES
    """Which tokens a target must or must not have."""


class Sampler:
    """Continues the recipe's prompts and others, one `sampled` event each. The same state always gives the same text.

    As many prompts are continued at a time as the recipe has; compiled once for each bucket of their lengths.
    """

    def __init__(
        self,
        spec: Sample,
        *,
        codec: SampleCodec,
        begin: Sequence[int],
        ends: tuple[int, ...],
        context_length: int,
        compute: jnp.dtype,
        mesh: Mesh,
        log: EventLog,
        template: ChatTemplate | None = None,
        sources: SourceFormat | None = None,
        jit: Callable[..., Any] = jax.jit,
    ) -> None:
        """Sample from a model on the devices of `mesh`, with `begin` before every prompt, until one of the tokens
        `ends`. With `sources`, prompts are sources, and their targets are written.

        Raises TrainkitError where a prompt is a conversation that `template` cannot write, or there is none.
        """
        self._template, self._chat = template, spec.chat
        self._stop = end_of_answer(template, codec)[1] if template is not None else ()
        self._prompts = [self._written(prompt) for prompt in spec.prompts]
        if spec.chat:  # so that a prompt typed later cannot fail
            self._written("")
        self._codec, self._begin, self._ends = codec, begin, ends
        self._mesh, self._log = mesh, log
        self._new_tokens = min(spec.max_tokens, context_length - 1)
        # a continuation shares the context with its prompt; a target has its own
        self._sources, self._room = sources, context_length - (0 if sources else self._new_tokens)
        sampling = Sampling(spec.temperature, spec.most_candidates, spec.top_p, spec.min_p, spec.repetition_penalty)
        new_tokens = self._new_tokens

        def continue_prompts(params: PyTree, frozen: PyTree, rows: Array, lengths: Array, key: PRNGKeyArray) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            keys = jax.random.split(key, len(rows))
            if sources is not None:
                return write_targets(
                    model,
                    rows,
                    lengths,
                    keys,
                    start=sources.start,
                    new_tokens=new_tokens,
                    sampling=sampling,
                    search=BeamSearch(rules=sources.rules),
                    ends=ends,
                )
            return generate(model, rows, lengths, keys, new_tokens=new_tokens, sampling=sampling, ends=ends)

        self._continued = jit(continue_prompts, out_shardings=replicated_sharding(mesh))

    def __call__(
        self, params: PyTree, frozen: PyTree, *, key: PRNGKeyArray, step: int, prompts: Sequence[str] | None = None
    ) -> None:
        """Write what the model with these parameters generates from `prompts` (None: the recipe's) at `step`."""
        # a key for the purpose and then for the step, as in `train/step.py`: no two of them are the same
        key = jax.random.fold_in(jax.random.fold_in(key, SAMPLES), step)
        asked = self._prompts if prompts is None else [self._written(prompt) for prompt in prompts]
        size = len(self._prompts)
        for first in range(0, len(asked), size):
            started = time.perf_counter()
            some = asked[first : first + size]
            ids = [self._ids(text) for text, _ in some]
            # unused rows have no tokens, so they have ended before they begin
            width = bucket(max(map(len, ids)), most=self._room)
            rows, lengths = pad_prompts([*ids, *[[]] * (size - len(some))], width)
            with jax.set_mesh(self._mesh):  # as in a step, each device finds its rows by the mesh
                tokens = np.asarray(self._continued(params, frozen, rows, lengths, key))
            seconds = round(time.perf_counter() - started, 3)
            for (text, stop), before, new in zip(some, ids, tokens.tolist(), strict=False):
                transcript = Transcript(self._codec, [] if self._sources else before, stop=stop)
                made = target_tokens(new, self._begin if self._sources else ())
                transcript.add([token for token in made if token not in self._ends], last=True)
                self._log.write("sampled", step=step, prompt=text, text=transcript.text, seconds=seconds)

    def _written(self, prompt: str | Sequence[ChatMessage]) -> tuple[str, Sequence[str]]:
        """Return the text to continue, and the strings that end its continuation."""
        if isinstance(prompt, str) and not self._chat:
            return prompt, ()
        if self._template is None:
            raise TrainkitError(
                "a sample prompt is a conversation, but there is no chat template",
                where="sample.chat" if isinstance(prompt, str) else "sample.prompts",
                hint="put a chat_template.jinja beside the tokenizer, or give prompts as text",
            )
        conversation = [ChatMessage(role="user", content=prompt)] if isinstance(prompt, str) else prompt
        messages = [message.model_dump() for message in conversation]
        try:
            return render(self._template, messages, add_generation_prompt=True), self._stop
        except TrainkitError as error:
            raise TrainkitError(error.problem, where="sample.prompts", hint=error.hint) from error

    def _ids(self, text: str) -> list[int]:
        (ids,) = self._codec.encode_batch([text], special_tokens=True)
        ids = ids[len(self._begin) :] if tuple(ids[: len(self._begin)]) == tuple(self._begin) else ids
        after = self._sources.after if self._sources else ()
        room = self._room - len(self._begin) - len(after)
        # a prompt that is too long keeps its end; a source keeps its beginning, as in training
        kept = ids[:room] if self._sources else ids[max(0, len(ids) - room) :]
        return [*self._begin, *kept, *after] or [self._codec.end_of_text]
