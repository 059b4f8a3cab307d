"""Samples while the model is in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import likeness
import numpy as np
import pytest
import small

from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.infer.sampler import Sampler
from trainkit.infer.sampling import Sampling
from trainkit.parallel.mesh import make_mesh
from trainkit.recipe.sections.outputs import Sample


class Letters:
    end_of_text = 0
    special_tokens: ClassVar[dict[str, int]] = {}

    def encode(self, text: str, /) -> list[int]:
        return [1 + ord(c) % (small.VOCAB - 1) for c in text]

    def encode_batch(self, texts: Sequence[str], /, *, special_tokens: bool = False) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], /) -> str:
        return " ".join(map(str, ids))


def sampler_of(
    run: Path,
    *prompts: str | tuple[dict[str, str], ...],
    max_tokens: int = 4,
    context: int = small.LENGTH,
    begin: Sequence[int] = (),
    ends: tuple[int, ...] = (0,),
    template: str | None = None,
    codec: Any = None,
    **how: float,
) -> tuple[Sampler, EventLog]:
    log = EventLog(run, attempt=1)
    spec = Sample.model_validate({"prompts": prompts, "max_tokens": max_tokens, **how})
    on, compute = make_mesh(data=1, fsdp=1), jnp.dtype("float32")
    sampler = Sampler(
        spec,
        codec=codec or Letters(),
        begin=begin,
        ends=ends,
        context_length=context,
        compute=compute,
        mesh=on,
        log=log,
        template=None if template is None else ChatTemplate(template, "here"),
    )
    return sampler, log


def test_a_short_prompt_takes_no_more_memory_where_the_model_is_meant_for_long_texts(tmp_path: Path) -> None:
    state = small.state()
    for context in (small.LENGTH, 1 << 20):  # the scores of as many positions would be terabytes
        sampler, log = sampler_of(tmp_path, "ab", context=context)
        sampler(state.params, state.frozen, key=state.key, step=3)
        log.close()
    short, long = read(tmp_path)
    assert short["text"] == long["text"] != ""


def test_any_number_of_prompts_of_any_length_compiles_nothing_again_and_is_answered_in_order(tmp_path: Path) -> None:
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


def text_of(run: Path, prompt: str = "ab", **how: Any) -> str:
    """What is made of one prompt by a model whose likeliest token is one of many."""
    run.mkdir()
    sampler, log = sampler_of(run, prompt, max_tokens=10, **how)
    state = small.state()
    sampler(state.params, state.frozen, key=state.key, step=3)
    log.close()
    (event,) = read(run)
    return str(event["text"])


def test_whatever_a_token_can_be_drawn_by_can_be_said_of_samples(tmp_path: Path) -> None:
    assert {field.name for field in fields(Sampling)} <= Sample.model_fields.keys()
    likeliest = text_of(tmp_path / "likeliest", temperature=0.0)
    assert text_of(tmp_path / "top-p", temperature=5.0, top_p=1e-6) == likeliest
    assert text_of(tmp_path / "min-p", temperature=5.0, min_p=1.0) == likeliest
    unlike = text_of(tmp_path / "penalty", temperature=0.0, repetition_penalty=1e3).split()
    assert len(set(unlike)) == len(unlike) == 10


def test_of_a_prompt_that_is_too_long_the_end_is_kept_behind_what_begins_every_text(tmp_path: Path) -> None:
    sampler, log = sampler_of(tmp_path, "ab", context=8, max_tokens=4, begin=(7,))
    log.close()
    assert sampler._ids("abcdef") == [7, *Letters().encode("def")]
    assert sampler._ids("abc") == [7, *Letters().encode("abc")] and sampler._ids("") == [7]
    bare, log = sampler_of(tmp_path, "ab", context=8, max_tokens=4)
    log.close()
    assert bare._ids("abcdef") == Letters().encode("cdef") and bare._ids("") == [Letters.end_of_text]


def test_a_prompt_begins_as_a_text_of_training_and_a_sample_ends_as_one(tmp_path: Path) -> None:
    unlike = {"temperature": 0.0, "repetition_penalty": 1e3}
    whole = text_of(tmp_path / "whole", "qab", **unlike)
    assert text_of(tmp_path / "begun", begin=Letters().encode("q"), **unlike) == whole
    assert text_of(tmp_path / "not begun", **unlike) != whole
    tokens = whole.split()
    ended = text_of(tmp_path / "ended", "qab", ends=(0, int(tokens[3])), **unlike)
    assert ended.split() == tokens[:3]


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"})


def prompts_of(run: Path) -> list[str]:
    return [event["prompt"] for event in read(run)]


def test_a_prompt_may_be_a_conversation_and_a_text_what_the_user_says(tmp_path: Path) -> None:
    state = small.state()
    for name, how in (("texts", {}), ("chat", {"chat": True})):
        (tmp_path / name).mkdir()
        sampler, log = sampler_of(tmp_path / name, "Who?", TALK, template=TEMPLATE, **how)
        for prompts in (None, ["typed"]):
            sampler(state.params, state.frozen, key=state.key, step=3, prompts=prompts)
        log.close()
    talk = "<system>Be brief.\n<user>Who?\n<assistant>"
    assert prompts_of(tmp_path / "texts") == ["Who?", talk, "typed"]
    assert prompts_of(tmp_path / "chat") == ["<user>Who?\n<assistant>", talk, "<user>typed\n<assistant>"]


@pytest.mark.parametrize(
    ("prompts", "how", "where"), [([TALK], {}, "sample.prompts"), (["a"], {"chat": True}, "sample.chat")]
)
def test_a_conversation_without_a_chat_template_is_reported_before_training(
    tmp_path: Path, prompts: Any, how: Any, where: str
) -> None:
    with pytest.raises(TrainkitError, match="there is no chat template") as caught:
        sampler_of(tmp_path, *prompts, **how)
    assert caught.value.where == where
    with pytest.raises(TrainkitError, match="No systems!") as caught:
        sampler_of(tmp_path, TALK, template="{{ raise_exception('No systems!') }}{{ messages }}")
    assert caught.value.where == "sample.prompts"


def test_the_name_of_a_special_token_in_a_prompt_is_that_token_and_begins_a_text_once(tmp_path: Path) -> None:
    path = likeness.write("mistral", tmp_path / "mistral")
    one, begin = likeness.mistral(), (likeness.mistral().id("<s>"),)
    template = likeness.MISTRAL_TEMPLATE.replace("bos_token", "'<s>'")
    codec = vocabulary.load(path)
    sampler, log = sampler_of(tmp_path, "a", codec=codec, begin=begin, template=template, context=99, chat=True)
    log.close()
    (text, _) = sampler._prompts[0]
    whole = one.tokenizer.encode("<s>[INST] a [/INST]", add_special_tokens=False).ids
    assert text == "<s>[INST] a [/INST]" and sampler._ids(text) == whole
    assert sampler._ids("[INST] a [/INST]")[:2] == [*begin, one.id("[INST]")]
