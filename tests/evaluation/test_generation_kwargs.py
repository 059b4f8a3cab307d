"""How a task of lm-eval wants its texts generated."""

from __future__ import annotations

from typing import Any

import pytest

from trainkit.errors import TrainkitError
from trainkit.evaluation.generation_kwargs import read_generation_kwargs
from trainkit.infer.beam_search import GREEDY, BeamSearch
from trainkit.infer.sampling import Sampling


@pytest.mark.parametrize(
    ("kwargs", "sampling"),
    [
        ({}, Sampling(temperature=0)),
        ({"do_sample": False, "temperature": 0.7}, Sampling(temperature=0)),
        ({"do_sample": True, "top_k": 3}, Sampling(temperature=1, top_k=3)),
        ({"temperature": 0.5}, Sampling(temperature=0.5, top_k=50)),  # as in transformers
        ({"temperature": 1, "top_k": 0, "top_p": 0.9}, Sampling(temperature=1, top_p=0.9)),
        ({"num_beams": 1, "repetition_penalty": 2.0}, Sampling(temperature=0, repetition_penalty=2.0)),
    ],
)
def test_tokens_are_drawn_as_in_lm_eval(kwargs: dict[str, Any], sampling: Sampling) -> None:
    assert read_generation_kwargs(kwargs, where="here").sampling == sampling


def test_the_first_key_for_the_number_of_tokens_counts_and_one_stop_string_may_stand_alone() -> None:
    how = read_generation_kwargs({"max_tokens": 3, "max_gen_toks": 2, "until": "\n"}, where="here")
    assert (how.max_tokens, how.stop, how.search) == (2, ("\n",), GREEDY)
    assert read_generation_kwargs({"until": ["a", ""]}, where="here") == read_generation_kwargs(
        {"until": ["a"], "max_gen_toks": 256}, where="here"
    )


def test_only_models_that_search_take_beams_and_the_models_own_are_the_default() -> None:
    usual = BeamSearch(4, length_penalty=2.0)
    assert read_generation_kwargs({}, where="here", search=usual).search == usual
    assert read_generation_kwargs({"num_beams": 2}, where="here", search=usual).search == BeamSearch(2, 2.0)
    assert read_generation_kwargs({"temperature": 1.0}, where="here", search=usual).search.beams == 1
    with pytest.raises(TrainkitError, match="has num_beams, which trainkit does not support"):
        read_generation_kwargs({"num_beams": 4}, where="here")


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"top_a": 1, "foo": 2}, "has foo and top_a, which trainkit does not support"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, found 1.5"),
        ({"temperature": "hot"}, "temperature must be a number, found 'hot'"),
        ({"max_gen_toks": True}, "max_gen_toks must be a whole number, found True"),
        ({"do_sample": 1}, "do_sample must be true or false, found 1"),
        ({"do_sample": True, "num_beams": 2}, "num_beams must be 1 where tokens are drawn, found 2"),
    ],
)
def test_wrong_settings_are_refused_with_the_place(kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(TrainkitError, match=problem) as error:
        read_generation_kwargs(kwargs, where="--lm-eval cats", search=GREEDY)
    assert error.value.where == "--lm-eval cats"
