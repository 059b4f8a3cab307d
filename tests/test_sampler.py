"""Samples while the model is in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import small

from trainkit.events.log import EventLog, read
from trainkit.infer.sampler import Sampler
from trainkit.recipe.upkeep import Sample


class Letters:
    end_of_text = 0

    def encode(self, text: str, /) -> list[int]:
        return [1 + ord(c) % (small.VOCAB - 1) for c in text]

    def decode(self, ids: Sequence[int], /) -> str:
        return " ".join(map(str, ids))


def sampler_of(run: Path, *prompts: str) -> tuple[Sampler, EventLog]:
    log = EventLog(run, attempt=1)
    spec = Sample(prompts=prompts, max_tokens=4)
    return Sampler(spec, codec=Letters(), context_length=small.LENGTH, compute=jnp.dtype("float32"), log=log), log


def test_any_number_of_prompts_of_any_length_compiles_nothing_anew_and_is_answered_in_order(tmp_path: Path) -> None:
    sampler, log = sampler_of(tmp_path, "ab", "c")
    state = small.state()
    asked = ["", "x", "a much longer prompt than the context", "ab", "é"]
    for prompts in (None, *([prompt] for prompt in asked), asked):
        sampler(state.params, state.frozen, key=state.key, step=3, prompts=prompts)
    log.close()
    events = read(tmp_path)
    assert [e["prompt"] for e in events] == ["ab", "c", *asked, *asked]
    assert {e["step"] for e in events} == {3}
    assert sampler._continued._cache_size() == 1


def test_the_same_state_continues_a_prompt_alike_whether_the_recipe_or_a_person_asks(tmp_path: Path) -> None:
    sampler, log = sampler_of(tmp_path, "ab", "c")
    state = small.state()
    before = [np.asarray(leaf) for leaf in (state.params.token_embedding, state.step)]
    for step, prompts in ((3, None), (3, ["ab"]), (4, ["ab"])):
        sampler(state.params, state.frozen, key=state.key, step=step, prompts=prompts)
    log.close()
    texts = {(n, e["step"]): e["text"] for n, e in enumerate(read(tmp_path)) if e["prompt"] == "ab"}
    assert texts[0, 3] == texts[2, 3] != texts[3, 4]
    for old, leaf in zip(before, (state.params.token_embedding, state.step), strict=True):
        np.testing.assert_array_equal(old, leaf)
