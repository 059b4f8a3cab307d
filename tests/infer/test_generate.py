"""Generation: with the cache as without, alone as in a batch, to the end and not beyond."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import equinox as eqx
import jax
import numpy as np
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import models
from trainkit.errors import TrainkitError
from trainkit.infer.generate import NOTHING, bucket, generate, pad_prompts, prefill
from trainkit.infer.generator import CHUNK, Answer, Generator, Request
from trainkit.infer.sampling import Sampling
from trainkit.models import moe
from trainkit.models.stack import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe.families.gemma2 import Gemma2
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.families.mistral import Mistral
from trainkit.recipe.families.mixtral import Mixtral

GREEDY, LENGTH = Sampling(temperature=0), 40
SHAPE = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "intermediate": 48}
SPECS = {
    "gpt2": Gpt2(layers=2, hidden=32, heads=4),
    "llama": Llama(**SHAPE),
    "mistral": Mistral(**SHAPE, window=5),
    "gemma2": Gemma2(**SHAPE, head_width=8, window=5),
}


ALL = {**SPECS, "mixtral": Mixtral(**SHAPE, experts=3, experts_per_token=2)}


@cache
def model(name: str = "gpt2") -> LanguageModel:
    """With weights large enough that the likeliest token is no matter of rounding."""
    fresh = models.build(
        ALL[name], vocab_size=small.VOCAB, sequence_length=LENGTH, implementation="xla", key=jax.random.key(3)
    )
    return jax.tree.map(lambda leaf: 4 * leaf if eqx.is_inexact_array(leaf) and leaf.ndim > 1 else leaf, fresh)


class Letters:
    """A token a letter: those of the alphabet, and of another script the rest."""

    end_of_text = 0

    def encode(self, text: str, /) -> list[int]:
        return [ord(c) - 0x400 for c in text]

    def decode(self, ids: Sequence[int], /) -> str:
        return "".join(chr(0x400 + i) for i in ids)


def generator(name: str = "gpt2", *, ends: tuple[int, ...] = ()) -> Generator:
    return Generator(model(name), Letters(), ends)


def prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(1, small.VOCAB, length).tolist() for length in lengths]


@cache
def likeliest(name: str):
    """After each position of a text of the whole context, without a cache."""
    return jax.jit(lambda ids_T: model(name).logits(model(name).hidden_states(ids_T[None])[0][0]).argmax(-1))


def rerun(name: str, prompt: Sequence[int], new: int) -> list[int]:
    """The likeliest token after all that there is, again and again, by running the whole text every time."""
    ids = list(prompt)
    for _ in range(new):
        # what stands behind is not seen
        ids.append(int(likeliest(name)(pad_prompts([ids], LENGTH)[0][0])[len(ids) - 1]))
    return ids[len(prompt) :]


def ids_of(found: list[Answer]) -> list[list[int]]:
    return [answer.ids for answer in found]


@pytest.mark.parametrize("name", SPECS)
def test_greedy_generation_with_the_cache_equals_running_the_whole_text_again(name: str) -> None:
    some, new = prompts(1, 9, 19), CHUNK + 2
    found = generator(name).answers([Request(ids) for ids in some], max_tokens=new, sampling=GREEDY)
    assert ids_of(found) == [rerun(name, prompt, new) for prompt in some]
    assert len({token for ids in ids_of(found) for token in ids}) > 5, "a model that says one thing shows nothing"


def test_what_is_there_at_once_in_one_program_is_the_same() -> None:
    some = prompts(4, 11)
    rows, lengths = pad_prompts(some, 13)
    tokens = generate(model(), rows, lengths, jax.random.split(jax.random.key(0), 2), new_tokens=5, sampling=GREEDY)
    assert tokens.tolist() == [rerun("gpt2", prompt, 5) for prompt in some]


def test_a_prompt_that_fills_the_context_is_continued_by_nothing():
    rows, lengths = pad_prompts(prompts(4, 11), 13)
    keys = jax.random.split(jax.random.key(0), 2)
    assert generate(model(), rows, lengths, keys, new_tokens=0, sampling=GREEDY).shape == (2, 0)


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(1.5, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2), Sampling()], ids=str
)
def test_a_prompt_is_continued_alike_alone_and_in_a_batch_of_others(sampling: Sampling) -> None:
    some, ours = [Request(ids, seed) for seed, ids in enumerate(prompts(3, 1, 17, 30, 8))], generator("llama")
    together = ours.answers(some, max_tokens=20, sampling=sampling)
    apart = [ours.answers([request], max_tokens=20, sampling=sampling)[0] for request in some]
    assert ids_of(together) == ids_of(apart)
    # the fourth fills its context
    assert [len(answer.ids) for answer in together] == [20, 20, 20, LENGTH - 30, 20]
    assert {answer.reason for answer in together} == {"length"}


def test_a_seed_gives_the_same_text_and_another_seed_another() -> None:
    (prompt,) = prompts(5)
    first, again, other = (
        generator().answers([Request(prompt, seed)], max_tokens=12, sampling=Sampling(2.0))[0].ids for seed in (7, 7, 8)
    )
    assert first == again != other


def test_the_penalty_counts_what_was_in_the_prompt_and_not_its_padding() -> None:
    (prompt,), sampling = prompts(3), Sampling(temperature=0, repetition_penalty=1e6)
    ids = generator().answers([Request(prompt)], max_tokens=LENGTH - 3, sampling=sampling)[0].ids
    assert len(set(ids)) == len(ids) and not set(ids) & set(prompt)
    # padded with token 0, which is not punished: a model that has it in mind says it
    rows, lengths = pad_prompts([prompt], 16)
    state = prefill(model(), rows, lengths, cache_length=LENGTH, sampling=sampling)
    assert set(np.flatnonzero(state.seen_NV[0])) == set(prompt)


def test_a_text_ends_with_any_of_the_end_tokens_which_is_no_part_of_it_and_the_others_continue() -> None:
    some = prompts(4, 6, 9)
    free = [rerun("gpt2", prompt, 20) for prompt in some]
    ends = (free[0][2], free[1][7])
    expected = [ids[: min((i for i, token in enumerate(ids) if token in ends), default=20)] for ids in free]
    found = generator(ends=ends).answers([Request(ids) for ids in some], max_tokens=20, sampling=GREEDY)
    assert ids_of(found) == expected and len(expected[0]) == 2
    assert [answer.reason for answer in found] == ["end" if len(ids) < 20 else "length" for ids in expected]


def test_decoding_ends_when_all_have_ended() -> None:
    (prompt,) = prompts(4)
    end = rerun("gpt2", prompt, 3)[-1]
    rows, lengths = pad_prompts([prompt, []], 8)
    keys = jax.random.split(jax.random.key(0), 2)
    tokens = generate(model(), rows, lengths, keys, new_tokens=30, sampling=GREEDY, ends=(end,))
    assert (tokens[1] == NOTHING).all() and (tokens[0, 3:] == NOTHING).all() and tokens[0, 2] == end


def test_a_stop_string_over_several_tokens_ends_the_text_and_is_not_said() -> None:
    (prompt,), codec, ours, sampling = prompts(4), Letters(), generator(), Sampling(2.0)
    free = ours.answers([Request(prompt)], max_tokens=CHUNK + 8, sampling=sampling)[0].ids
    whole = codec.decode(free)
    stop = whole[CHUNK - 1 : CHUNK + 2]
    assert whole.find(stop) == CHUNK - 1, "it is over the border of two chunks"
    said = []
    for news in ours.stream([Request(prompt)], max_tokens=LENGTH - 4, sampling=sampling, stop=["no", stop]):
        said.append(news.text)
    assert "".join(said) == news.answer.text == whole[: CHUNK - 1]
    assert news.answer.reason == "stop" and news.answer.ids == free[: CHUNK + 2]


def test_what_is_said_in_pieces_is_what_is_said_at_once() -> None:
    requests = [Request(ids) for ids in prompts(4, 7)]
    pieces = ["", ""]
    for news in generator().stream(requests, max_tokens=30, sampling=GREEDY):
        pieces[news.number] += news.text
        assert news.answer.text == pieces[news.number]
    assert pieces == [a.text for a in generator().answers(requests, max_tokens=30, sampling=GREEDY)]
    assert [len(piece) for piece in pieces] == [30, 30]


def test_texts_of_about_the_same_length_are_made_by_the_same_program() -> None:
    ours, sampling = generator(), Sampling(temperature=0, repetition_penalty=1.01)
    before = ours._decode._cache_size(), ours._prefill._cache_size()
    for length, tokens in ((3, 5), (9, 6), (16, 16), (12, 20)):
        ours.answers([Request(ids) for ids in prompts(length)], max_tokens=tokens, sampling=sampling)
    # for a cache of 16 positions and one of 32
    assert (ours._decode._cache_size() - before[0], ours._prefill._cache_size() - before[1]) == (2, 2)


def test_a_prompt_that_fills_the_context_is_refused_by_its_number() -> None:
    for lengths, which in (((2, LENGTH), "prompt 2 of 2"), ((LENGTH,), "the prompt")):
        with pytest.raises(TrainkitError, match=f"^{which} has {LENGTH} tokens, and the model's context has {LENGTH}"):
            generator().answers([Request(ids) for ids in prompts(*lengths)], max_tokens=1, sampling=GREEDY)


def test_a_bucket_is_the_least_power_of_two_that_holds_a_text_or_the_whole_context() -> None:
    assert [bucket(n, most=100) for n in (1, 16, 17, 32, 33, 65, 100)] == [16, 16, 32, 32, 64, 100, 100]


def test_on_many_devices_each_puts_its_own_rows_through_the_experts_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[int] = []
    whole = moe.through_experts

    def noting(x_BTD: jax.Array, *rest: jax.Array) -> jax.Array:
        rows.append(x_BTD.shape[0])
        return whole(x_BTD, *rest)

    monkeypatch.setattr(moe, "through_experts", noting)
    experts, requests = model("mixtral"), [Request(ids) for ids in prompts(4, 7, 2, 9)]
    wanted = Generator(experts, Letters(), ()).answers(requests, max_tokens=12, sampling=GREEDY)
    assert set(rows) == {4}
    rows.clear()
    devices = mesh.make_mesh(data=2, fsdp=2)
    placed = jax.device_put(experts, mesh.shardings(devices, experts))
    found = Generator(placed, Letters(), (), devices).answers(requests, max_tokens=12, sampling=GREEDY)
    assert set(rows) == {1} and ids_of(found) == ids_of(wanted)


# what a conversation repeats


class Counting(Generator):
    """Remembers, and counts the tokens of each prompt that it did read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.remembers, self.read = True, list[int]()
        extend, prefill = self._extend, self._prefill

        def counting_extend(model, cache, rests_NP, lengths_N, *rest):  # type: ignore[no-untyped-def]
            self.read.append(int(lengths_N[0]))
            return extend(model, cache, rests_NP, lengths_N, *rest)

        def counting_prefill(model, prompts_NP, lengths_N, **rest):  # type: ignore[no-untyped-def]
            self.read.append(int(lengths_N[0]))
            return prefill(model, prompts_NP, lengths_N, **rest)

        self.programs = (extend, prefill)
        self._extend, self._prefill = counting_extend, counting_prefill


@cache
def remembering(name: str) -> Counting:
    return Counting(model(name), Letters(), ())


@pytest.mark.parametrize(
    ("name", "sampling"),
    [*((name, GREEDY) for name in SPECS), ("gpt2", Sampling(1.5, top_k=40, repetition_penalty=1.2))],
    ids=str,
)
def test_turns_are_answered_alike_whether_what_they_repeat_is_read_again_or_not(name: str, sampling: Sampling) -> None:
    forgetful, ours = generator(name), remembering(name)
    said: list[int] = []
    ours.read.clear()
    for turn, question in enumerate(prompts(6, 3, 4, 5, 2, 3)):
        if turn == 3:  # forgotten, and begun anew with the same word
            said = said[:1]
        if turn == 5:  # a template that writes what was before differently
            said = [*said[:4], said[4] % 50 + 1, *said[5:]]
        request = Request([*said, *question], seed=turn)
        (answer,) = ours.answers([request], max_tokens=4, sampling=sampling)
        assert [answer.ids] == ids_of(forgetful.answers([request], max_tokens=4, sampling=sampling))
        said += [*question, *answer.ids]
    # of the first turn with this model all is read, unless another test has left something; then questions alone
    assert ours.read[1:5] == [3, 4, 5, 2]
    assert ours.read[5] > 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, LENGTH), st.lists(st.integers(1, 50), min_size=1, max_size=12)), max_size=8))
def test_whatever_was_read_before_a_prompt_is_continued_as_if_nothing_had_been(
    turns: list[tuple[int, list[int]]],
) -> None:
    there: list[int] = []
    for kept, new in turns:
        request = Request([*there[:kept], *new][-(LENGTH - 1) :], seed=len(there))
        (answer,) = remembering("gemma2").answers([request], max_tokens=9, sampling=GREEDY)
        assert [answer.ids] == ids_of(generators("gemma2").answers([request], max_tokens=9, sampling=GREEDY))
        there = [*request.ids, *answer.ids]


@cache
def generators(name: str) -> Generator:
    """One for many examples, so that each shape is compiled once."""
    return generator(name)


def test_an_answer_that_was_broken_off_is_gone_on_from_as_far_as_it_came() -> None:
    ours, (prompt, more) = Counting(model(), Letters(), ()), prompts(4, 3)
    news = next(ours.stream([Request(prompt)], max_tokens=30, sampling=GREEDY))
    said = [*prompt, *news.answer.ids, *more]
    found = ours.answers([Request(said)], max_tokens=5, sampling=GREEDY)
    assert ids_of(found) == [rerun("gpt2", said, 5)]
    assert ours.read == [4, 3]


def test_a_long_conversation_compiles_a_program_for_each_power_of_two_and_no_more() -> None:
    ours, said = Counting(model(), Letters(), ()), list[int]()
    programs = (*ours.programs, ours._decode)
    before = [program._cache_size() for program in programs]
    for (question,) in (prompts(length) for length in (3, 2, 1, 4, 2, 3, 1, 2, 3, 2)):
        said += question
        (answer,) = ours.answers([Request(said)], max_tokens=1, sampling=GREEDY)
        said += answer.ids
    # caches of 16, 32 and 40 positions, of which none is asked for more than 16 at once
    made = [program._cache_size() - had for program, had in zip(programs, before, strict=True)]
    assert made[0] <= 3 and made[1] <= 1 and made[2] <= 3
