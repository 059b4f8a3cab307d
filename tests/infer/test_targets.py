"""Targets of encoder-decoders: token by token, and searched for with beams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import jax
import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS
from parity import _read
from reference import Reference
from toy_seq2seq import ToySeq2Seq

from trainkit.errors import TrainkitError
from trainkit.infer.beam_search import GREEDY as ONE
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.generator import Request
from trainkit.infer.sampling import Sampling
from trainkit.infer.seq2seq import TargetGenerator
from trainkit.infer.target_rules import TargetRules

VOCAB, END, GREEDY = 6, 1, Sampling(temperature=0)
SOURCES = [[2, 3, 4], [5], [3, 3, 2, 5, 4]]


class Letters:
    """A token a letter."""

    end_of_text = END

    def encode(self, text: str, /) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int], /) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


@cache
def toy() -> ToySeq2Seq:
    return ToySeq2Seq.init(jax.random.key(5), vocab=VOCAB, hidden=8)


def log_likelihoods(source: list[int], target: list[int]) -> list[np.ndarray]:
    """Return the log-likelihood of every token after each beginning of a target, from numpy alone."""
    embedding, mix, output = map(np.asarray, (toy().embedding, toy().mix, toy().output))
    state, found = embedding[source].mean(0), []
    for before in [toy().decoder_start, *target]:
        state = np.tanh(state @ mix + embedding[before])
        logits = output @ state
        found.append(logits - np.log(np.exp(logits).sum()))
    return found


def answers(requests: list[Request], *, max_tokens: int, search: BeamSearch = ONE, **options) -> list[str]:
    ours = TargetGenerator(toy(), Letters(), (END,), search=search)
    return [answer.text for answer in ours.answers(requests, max_tokens=max_tokens, sampling=GREEDY, **options)]


def test_the_likeliest_token_follows_each_time_until_the_end() -> None:
    expected = []
    for source in SOURCES:
        target: list[int] = []
        while len(target) < 7 and END not in target:
            target.append(int(log_likelihoods(source, target)[-1].argmax()))
        expected.append(Letters().decode([token for token in target if token != END]))
    assert answers([Request(source) for source in SOURCES], max_tokens=7) == expected
    assert len(set(expected)) > 1 and answers([Request(SOURCES[1])], max_tokens=7) == expected[1:2]


def test_enough_beams_find_the_likeliest_of_all_targets() -> None:
    most, penalty = 3, 0.5
    for source in SOURCES:
        scores = {}
        for length in range(1, most + 1):
            for target in product(range(VOCAB), repeat=length):
                if END in target[:-1] or (target[-1] != END and length < most):
                    continue
                steps = log_likelihoods(source, list(target[:-1]))
                scores[target] = sum(step[t] for step, t in zip(steps, target, strict=True)) / length**penalty
        best = max(scores, key=lambda target: scores[target])
        search = BeamSearch(beams=VOCAB**2, length_penalty=penalty)
        found = answers([Request(source)], max_tokens=most, search=search)
        assert found == [Letters().decode([token for token in best if token != END])]


@pytest.mark.parametrize("search", [BeamSearch(3), BeamSearch(2, 2.0, True)], ids=["patient", "early"])
def test_a_search_finds_the_same_alone_and_beside_others(search: BeamSearch) -> None:
    requests = [Request(source) for source in SOURCES]
    together = answers(requests, max_tokens=6, search=search)
    assert together == [answers([request], max_tokens=6, search=search)[0] for request in requests]


def test_a_stop_string_ends_a_target_and_a_source_that_is_too_long_is_refused() -> None:
    (text,) = answers([Request(SOURCES[0])], max_tokens=7)
    assert len(text) > 1
    assert answers([Request(SOURCES[0])], max_tokens=7, stop=[text[-1]]) == [text[: text.index(text[-1])]]
    with pytest.raises(TrainkitError, match="source 3 of 3 has 5 tokens, and the model reads 4"):
        TargetGenerator(toy(), Letters(), (END,), context_length=4).check(SOURCES)


def test_the_tokens_that_every_target_begins_with_are_no_part_of_an_answer() -> None:
    (text,) = answers([Request(SOURCES[0])], max_tokens=7)
    first, *_ = Letters().encode(text)
    for begin, expected in (((first,), text[1:]), ((first, VOCAB), text)):
        ours = TargetGenerator(toy(), Letters(), (END,), begin=begin)
        (answer,) = ours.answers([Request(SOURCES[0])], max_tokens=7, sampling=GREEDY)
        assert answer.text == expected


#: The settings of `generate` in transformers, and ours.
SEARCHES = {
    "greedy": ({}, ONE),
    "ruled": (
        {"forced_bos_token_id": 3, "forced_eos_token_id": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
        BeamSearch(rules=TargetRules(first=3, last=2, no_repeat=2, least=4)),
    ),
    "ruled beams": (
        {
            "num_beams": 3,
            "forced_bos_token_id": 3,
            "forced_eos_token_id": 2,
            "no_repeat_ngram_size": 1,
            "min_length": 6,
        },
        BeamSearch(3, rules=TargetRules(first=3, last=2, no_repeat=1, least=5)),
    ),
    "long": ({"num_beams": 4, "length_penalty": 2.0}, BeamSearch(4, 2.0)),
    "early": ({"num_beams": 3, "early_stopping": True, "length_penalty": 0.6}, BeamSearch(3, 0.6, True)),
}


@pytest.mark.parametrize(("name", "seed"), [("t5", 3), ("bart", 7)])
def test_targets_are_those_of_transformers_token_for_token(
    name: str, seed: int, reference: Reference, tmp_path: Path
) -> None:
    config = ENCODER_DECODERS[name]
    reference.make_encoder_decoder(tmp_path, config, seed=seed, size=(2, 8), padded=3)
    chance, most = np.random.default_rng(1), 10
    sources = [chance.integers(3, config["vocab_size"], length).tolist() for length in (9, 4, 7)]
    # so many that most targets end before they are cut off
    ends = tuple(range(1, config["vocab_size"], 4))
    settings = [{**how, "eos_token_id": list(ends), "max_new_tokens": most} for how, _ in SEARCHES.values()]
    theirs = reference.write(tmp_path, sources=sources, settings=settings)["ids"]
    lengths, model = set(), _read(tmp_path)
    for (_, search), wanted in zip(SEARCHES.values(), theirs, strict=True):
        ours = TargetGenerator(model, Letters(), ends, start=config["decoder_start_token_id"], search=search)
        found = ours.answers([Request(source) for source in sources], max_tokens=most, sampling=GREEDY)
        for answer, row in zip(found, wanted, strict=True):
            end = next((place for place, token in enumerate(row) if token in ends), len(row))
            assert answer.ids == row[:end]
            lengths.add(end)
    assert len(lengths) > 1 and min(lengths) < most
