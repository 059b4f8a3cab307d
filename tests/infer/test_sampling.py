"""Each way to choose a token against its definition, written out without jax."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.errors import TrainkitError
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.sampling import Sampling, candidates, draw, penalise
from trainkit.infer.settings import OURS, Generation, GenerationSettings, generation, settle, settle_search
from trainkit.infer.target_rules import NO_RULES, TargetRules
from trainkit.recipe.sections.outputs import Sample

VOCAB = 23
#: Far enough apart that rounding puts no two the other way round; with equals among them.
LOGITS = st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB).map(np.array)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def ranked(logits: np.ndarray) -> list[int]:
    """Ids, the likeliest first, of equals the lower id first."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def drawable(logits: np.ndarray, sampling: Sampling) -> dict[int, float]:
    """The probability of each token that may be drawn, as ours has it."""
    found, ids = candidates(jnp.asarray(logits, jnp.float32)[None], sampling)
    p = np.asarray(jax.nn.softmax(found, axis=-1))[0]
    names = range(VOCAB) if ids is None else np.asarray(ids)[0].tolist()
    return {i: float(x) for i, x in zip(names, p, strict=True) if x > 0}


def same(ours: dict[int, float], kept: list[int], logits: np.ndarray) -> None:
    assert set(ours) == set(kept)
    for token, p in zip(kept, softmax(logits[kept]), strict=True):
        assert ours[token] == pytest.approx(p, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(LOGITS, st.integers(1, VOCAB + 3))
def test_top_k_keeps_the_likeliest_k(logits: np.ndarray, k: int) -> None:
    same(drawable(logits, Sampling(top_k=k)), ranked(logits)[:k], logits)


@settings(max_examples=60, deadline=None)
@given(LOGITS, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_have_so_much_probability(logits: np.ndarray, p: float) -> None:
    order, probabilities = ranked(logits), softmax(logits)
    sums = np.cumsum(probabilities[order])
    if np.abs(sums - p).min() < 1e-5:
        return  # where float32 may say either
    same(drawable(logits, Sampling(top_p=p)), order[: int((sums < p).sum()) + 1], logits)


@settings(max_examples=60, deadline=None)
@given(LOGITS, st.floats(0.01, 1.0))
def test_min_p_keeps_those_that_are_so_many_times_as_likely_as_the_likeliest(logits: np.ndarray, p: float) -> None:
    ratios = softmax(logits) / softmax(logits).max()
    if np.abs(ratios - p).min() < 1e-5 and p != 1:
        return
    same(drawable(logits, Sampling(min_p=p)), [i for i in range(VOCAB) if ratios[i] >= p], logits)


@settings(max_examples=30, deadline=None)
@given(LOGITS, st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_the_temperature_divides(logits: np.ndarray, temperature: float) -> None:
    same(drawable(logits, Sampling(temperature)), list(range(VOCAB)), logits / temperature)


@settings(max_examples=30, deadline=None)
@given(LOGITS, st.integers(2, 8), st.floats(0.3, 0.9), st.floats(0.05, 0.5))
def test_each_filter_sees_what_the_one_before_has_left(logits: np.ndarray, k: int, p: float, least: float) -> None:
    kept = ranked(logits / 0.5)[:k]
    sums = np.cumsum(softmax(logits[kept] / 0.5))
    ratios = softmax(logits[kept] / 0.5) / softmax(logits[kept] / 0.5).max()
    if np.abs(sums - p).min() < 1e-5 or np.abs(ratios - least).min() < 1e-5:
        return
    kept = [i for i, r in zip(kept[: int((sums < p).sum()) + 1], ratios, strict=False) if r >= least]
    same(drawable(logits, Sampling(0.5, k, p, least)), kept, logits / 0.5)


@settings(max_examples=30, deadline=None)
@given(LOGITS, st.sets(st.integers(0, VOCAB - 1)), st.floats(0.5, 3.0))
def test_the_penalty_makes_what_was_there_less_likely_whatever_its_sign(
    logits: np.ndarray, there: set[int], penalty: float
) -> None:
    expected = [(x / penalty if x > 0 else x * penalty) if i in there else x for i, x in enumerate(logits.tolist())]
    seen = jnp.array([[i in there for i in range(VOCAB)]])
    np.testing.assert_allclose(penalise(jnp.asarray(logits)[None], seen, penalty)[0], expected, rtol=1e-5)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = np.array([2.0, 1.0, 0.0, 1.0, -9.0])
    sampling, n = Sampling(top_k=3), 4000
    keys = jax.random.split(jax.random.key(0), n)
    drawn = np.asarray(draw(jnp.tile(jnp.asarray(logits), (n, 1)), keys, sampling, seen_NV=None))
    expected = softmax(logits[[0, 1, 3]])
    np.testing.assert_allclose([(drawn == i).mean() for i in (0, 1, 3)], expected, atol=0.03)
    assert set(drawn.tolist()) == {0, 1, 3}


def test_without_a_temperature_the_likeliest_is_taken_and_the_penalty_still_counts() -> None:
    logits, keys = jnp.array([[1.0, 3.0, 2.0]]), jax.random.split(jax.random.key(0), 1)
    assert draw(logits, keys, Sampling(temperature=0), seen_NV=None).tolist() == [1]
    seen = jnp.array([[False, True, False]])
    assert draw(logits, keys, Sampling(temperature=0, repetition_penalty=2.0), seen_NV=seen).tolist() == [2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_named(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(TrainkitError, match=f"{name} must be .*, found {value}"):
        Sampling(**wrong)  # type: ignore[arg-type]


# what the model's maker says


def config(directory: Path, **values: object) -> Generation:
    (directory / "generation_config.json").write_text(json.dumps(values))
    found = generation([directory / "none", directory])
    assert found is not None
    return found


def test_what_is_typed_goes_before_what_the_config_says_and_that_before_what_is_ours(tmp_path: Path) -> None:
    theirs = config(tmp_path, do_sample=True, temperature=0.6, top_k=20, top_p=0.95, max_new_tokens=64)
    found = settle({"top_k": 5, "min_p": 0.1}, theirs, max_tokens=100)
    assert (found.sampling, found.max_tokens) == (Sampling(0.6, 5, 0.95, 0.1), 64)
    (told,) = found.notes
    assert told == f"as {theirs.path} says: temperature 0.6, top-p 0.95, max-tokens 64"
    assert settle({"max_tokens": 7}, None, max_tokens=100) == GenerationSettings(OURS, 7, ())


def test_a_top_k_of_zero_that_is_typed_draws_from_all_as_one_in_a_config_does(tmp_path: Path) -> None:
    assert Sample(top_k=0).most_candidates is None and Sample().most_candidates == 50
    assert settle({"top_k": 0}, config(tmp_path, top_k=20), max_tokens=1).sampling == OURS
    assert settle({"top_k": 0}, None, max_tokens=1).sampling == OURS


def test_where_a_config_does_not_sample_the_likeliest_is_taken_unless_something_is_typed_to_draw_by(
    tmp_path: Path,
) -> None:
    theirs = config(tmp_path, do_sample=False, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    assert settle({}, theirs, max_tokens=1).sampling == Sampling(0.0, repetition_penalty=1.1)
    assert settle({"top_k": 3}, theirs, max_tokens=1).sampling == Sampling(0.6, 3, 0.9, repetition_penalty=1.1)
    assert settle({"temperature": 0.5}, theirs, max_tokens=1).sampling.temperature == 0.5


def test_a_config_that_does_not_ask_for_sampling_is_greedy_as_in_transformers(tmp_path: Path) -> None:
    theirs = config(tmp_path, eos_token_id=2, temperature=0.6, top_p=0.9)
    found = settle({}, theirs, max_tokens=1)
    assert found.sampling == Sampling(0.0)
    assert found.notes == (f"as {theirs.path} says: temperature 0.0 (it has no do_sample)",)
    assert settle({"temperature": 0.5}, theirs, max_tokens=1).sampling == Sampling(0.5, top_p=0.9)


def test_a_config_that_asks_for_sampling_draws_with_what_transformers_takes_where_it_says_no_more(
    tmp_path: Path,
) -> None:
    assert settle({}, config(tmp_path, do_sample=True), max_tokens=1).sampling == Sampling(1.0, top_k=50)
    assert settle({}, config(tmp_path, do_sample=True, top_k=0), max_tokens=1).sampling == Sampling(1.0)


def test_what_says_nothing_is_not_reported_and_what_is_not_done_is_reported_once(tmp_path: Path) -> None:
    silent = {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "num_beams": 1,
        "typical_p": 1.0,
    }
    silent |= {"eos_token_id": [1, 2], "max_length": 4096, "bad_words_ids": None, "suppress_tokens": []}
    assert settle({}, config(tmp_path, **silent), max_tokens=100) == GenerationSettings(OURS, 100, ())
    assert settle({}, config(tmp_path, **silent | {"top_k": -1}), max_tokens=100) == GenerationSettings(OURS, 100, ())
    asking = config(tmp_path, **silent | {"num_beams": 4, "no_repeat_ngram_size": 3})
    (told,) = settle({}, asking, max_tokens=100).notes
    assert told.endswith("asks for what is not done here: num_beams = 4, no_repeat_ngram_size = 3")


def test_a_search_with_beams_takes_from_a_config_what_counts_beside_beams(tmp_path: Path) -> None:
    said = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "max_new_tokens": 64, "top_p": 0.9}
    theirs = config(tmp_path, **said)
    found, search = settle_search({}, theirs, beams=3, max_tokens=100)
    assert (search, found.sampling.temperature, found.max_tokens) == (BeamSearch(3, 2.0, True), 0, 64)
    told = f"as {theirs.path} says: length-penalty 2.0, early-stopping True, max-tokens 64"
    assert found.notes == (told,)
    found, search = settle_search({"length_penalty": 1.0, "max_tokens": 5}, theirs, beams=3, max_tokens=100)
    assert (search, found.max_tokens) == (BeamSearch(3, 1.0, True), 5)
    assert settle_search({}, None, beams=2, max_tokens=9)[1] == BeamSearch(2)
    assert settle({}, theirs.of_searcher(), max_tokens=9).notes[-1].endswith("num_beams = 4 (without --beams)")


def test_what_a_search_with_beams_does_not_do_is_reported_and_an_id_of_zero_asks_for_something(tmp_path: Path) -> None:
    asking = {"early_stopping": "never", "do_sample": True, "repetition_penalty": 1.2, "forced_bos_token_id": 0}
    found, search = settle_search({}, config(tmp_path, **asking), beams=2, max_tokens=9)
    assert search == BeamSearch(2)
    (told,) = found.notes
    undone = 'do_sample = true, early_stopping = "never", repetition_penalty = 1.2'
    assert told.endswith(f"asks for what is not done here: forced_bos_token_id = 0, {undone}")


def test_rules_for_targets_are_applied_by_a_model_that_writes_targets(tmp_path: Path) -> None:
    said = {"forced_bos_token_id": 0, "no_repeat_ngram_size": 3, "min_length": 12, "forced_eos_token_id": [1]}
    theirs = config(tmp_path, **said)
    found = settle({}, theirs, max_tokens=9)
    assert found.rules == NO_RULES and "no_repeat" in found.notes[-1]
    greedy = settle({}, theirs.of_searcher(), max_tokens=9)
    found, search = settle_search({}, theirs.of_searcher(), beams=2, max_tokens=9)
    assert greedy.rules == found.rules == search.rules == TargetRules(first=0, no_repeat=3, least=11)
    for notes in (greedy.notes, found.notes):
        assert notes[0].endswith("forced_bos_token_id = 0, no_repeat_ngram_size = 3, min_length = 12")
        assert notes[1].endswith("asks for what is not done here: forced_eos_token_id = [1]")


def test_settings_in_the_config_of_an_older_encoder_decoder_count_without_a_file_of_their_own(tmp_path: Path) -> None:
    said = {"is_encoder_decoder": True, "num_beams": 4, "no_repeat_ngram_size": 3, "vocab_size": 9, "min_length": 0}
    (tmp_path / "config.json").write_text(json.dumps(said))
    found = generation([tmp_path / "other", tmp_path])
    assert found is not None and found.path == tmp_path / "config.json" and found.rules == TargetRules(no_repeat=3)
    assert set(found.unknown) == {"num_beams = 4", "no_repeat_ngram_size = 3"}
    (tmp_path / "config.json").write_text(json.dumps(said | {"is_encoder_decoder": False}))
    assert generation([tmp_path]) is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"do_sample": 1}, "do_sample = 1: it must be true or false"),
        ({"temperature": "hot"}, 'temperature = "hot": it must be a number'),
        ({"top_k": 2.5}, "top_k = 2.5: it must be a whole number"),
        ({"do_sample": True, "top_p": 3}, "top_p must be above 0 and at most 1, found 3"),
        ({"max_new_tokens": 0}, "max_tokens must be at least 1, found 0"),
    ],
    ids=str,
)
def test_what_a_config_cannot_mean_names_the_file(tmp_path: Path, values: dict[str, object], problem: str) -> None:
    with pytest.raises(TrainkitError) as raised:
        settle({}, config(tmp_path, **values), max_tokens=100)
    assert str(raised.value).startswith(f"{tmp_path / 'generation_config.json'}: {problem}")
    assert "override it with an option" in raised.value.hint or not values.keys() & {"top_p", "max_new_tokens"}
