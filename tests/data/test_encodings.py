"""Batches learn of every document what the recipe's encoding says: compared with the documents token by token."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.examples import examples_of
from trainkit.data.cache import build as caches
from trainkit.data.cache.section import SourceSpan
from trainkit.data.sources import units
from trainkit.recipe import Recipe

BOS = "<s>"
few = settings(max_examples=40, deadline=None)
too_long = st.sampled_from(["truncate", "split", "drop"])


@cache
def _tokenizer() -> str:
    """That of the room, with a token to begin with that is not the one to end with."""
    tokenizer = Tokenizer.from_str(room.tokenizer_json())
    tokenizer.add_special_tokens([BOS])
    return tokenizer.to_str()


Tokens = list[tuple[int, bool]]
"""Of a document: (id, whether it is learned)."""


class Corpus:
    """Some files of documents, cached with one encoding; and what their tokens are, one document at a time."""

    def __init__(self, directory: Path, words: list[int], *, prompts: bool, files: int, **data: Any) -> None:
        (directory / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
        rows = [{"text": room.text(i, n), "q": f"{i}?" * (i % 3 + 1)} for i, n in enumerate(words)]
        for number in range(files):
            room.write_rows(directory / f"{number}.jsonl", rows[number::files])
        document = {"document": {"type": "prompt", "prompt": "{q} ", "response": "{text}"}} if prompts else {}
        self.recipe: Recipe = room.recipe(
            directory,
            {"path": str(directory / "*.jsonl"), **document},
            tokenizer={"path": str(directory / "tokenizer.json")},
            **data,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(units, "LARGE", 1)  # every file becomes a shard
            self.cache = caches.build(self.recipe)
        codec, spec = self.cache.tokenizer, self.recipe.data.encoding
        bos = [Tokenizer.from_str(_tokenizer()).token_to_id(BOS)] if spec.bos is True else []
        eos = [codec.end_of_text] if spec.eos else []
        self.documents: dict[tuple[str, int], Tokens] = {}
        for number in range(files):
            for index, row in enumerate(rows[number::files]):
                given = row["q"] + " " if prompts else ""
                whole = Tokenizer.from_str(_tokenizer()).encode(given + row["text"], add_special_tokens=False)
                first = whole.char_to_token(len(given))
                tokens = [(id_, not given) for id_ in bos]
                tokens += [(id_, place >= first) for place, id_ in enumerate(whole.ids)]
                tokens += [(id_, True) for id_ in eos]
                self.documents[str(directory / f"{number}.jsonl"), index] = tokens

    def name_of(self, place: SourceSpan) -> tuple[str, int]:
        return self.cache.units["train"][0][place.section.unit].files[place.file].path, place.index


def seen(corpus: Corpus) -> Counter[tuple[tuple[str, int], int]]:
    """How much each token of each document counts as a target in one epoch. Compares every row with its documents."""
    data = TrainSet(corpus.cache, corpus.recipe)
    size = corpus.recipe.train.batch_size
    steps = data.batches or -(-data.examples // size)
    counts: Counter[tuple[tuple[str, int], int]] = Counter()
    left = data.examples
    for step in range(steps):
        batch, rows = data.batch(step), list(data.rows(step))
        for number, row in enumerate(rows[:left]):
            counts += _compared(corpus, {name: array[number] for name, array in batch.items()}, row.spans)
        if data.batches:
            assert not any(array[len(rows) :].any() for array in batch.values())
        left -= len(rows)
    assert left <= 0
    return counts


def _compared(
    corpus: Corpus, row: dict[str, np.ndarray], spans: tuple[tuple[SourceSpan, ...], ...]
) -> Counter[tuple[tuple[str, int], int]]:
    counts: Counter[tuple[tuple[str, int], int]] = Counter()
    filled = 0
    for number, span in enumerate(spans, 1):
        there = [(corpus.name_of(place), i) for place in span for i in range(place.first, place.end)]
        ids = [corpus.documents[name][i][0] for name, i in there]
        here = slice(filled, filled + len(ids) - 1)
        assert row["tokens"][here].tolist() == ids[:-1]
        assert row["targets"][here].tolist() == ids[1:]
        counts.update({there[i + 1]: int(w) for i, w in enumerate(row["weights"][here].tolist())})
        if corpus.recipe.data.encoding.type == "pack":
            assert row["segments"][here].tolist() == [number] * (len(ids) - 1)
            assert row["positions"][here].tolist() == list(range(len(ids) - 1))
        filled = here.stop
    assert not row["weights"][filled:].any()
    assert "segments" not in row or not row["segments"][filled + 1 :].any()
    return counts


encodings = st.one_of(
    st.fixed_dictionaries({"type": st.just("concatenate"), "separate": st.booleans()}),
    st.fixed_dictionaries(
        {"type": st.just("windows"), "stride": st.none() | st.integers(1, 20), "min_length": st.integers(1, 5)}
    ),
    st.fixed_dictionaries({"type": st.just("pack"), "too_long": too_long, "min_length": st.integers(1, 9)}),
    st.fixed_dictionaries({"type": st.just("pad"), "too_long": too_long, "min_length": st.integers(1, 9)}),
    st.fixed_dictionaries(
        {"type": st.just("pad"), "too_long": too_long, "buckets": st.lists(st.integers(1, 6), max_size=3).map(tuple)}
    ),
)


@few
@given(
    words=st.lists(st.integers(1, 15), min_size=1, max_size=14),
    spec=encodings,
    bos=st.booleans(),
    eos=st.booleans(),
    prompts=st.booleans(),
    files=st.integers(1, 3),
    length=st.integers(6, 40),
    shuffle=st.sampled_from(["full", False]),
)
def test_one_epoch_learns_of_every_document_what_the_encoding_says(
    tmp_path_factory, words, spec, bos, eos, prompts, files, length, shuffle
):
    if stride := spec.get("stride"):
        spec = spec | {"stride": min(stride, length)}
    corpus = Corpus(
        tmp_path_factory.mktemp("encoding"),
        [*words, 30],
        prompts=prompts,
        files=min(files, len(words)),
        sequence_length=length,
        batch_size=3,
        shuffle=shuffle,
        encoding={**spec, "bos": bos, "eos": eos},
    )
    expected: Counter[tuple[tuple[str, int], int]] = Counter()
    made = corpus.recipe.data.encoding
    for place, (name, tokens) in enumerate(corpus.documents.items()):
        kept = _kept_targets(made, length, len(tokens))
        if made.type == "concatenate" and place and (not made.separate or (eos and not bos)):
            kept |= {0}
        expected.update({(name, i): 1 for i in kept if tokens[i][1]})
    if not _makes_examples(corpus):
        return
    assert +seen(corpus) == expected


def _makes_examples(corpus: Corpus) -> bool:
    spec, length = corpus.recipe.data.encoding, corpus.recipe.data.sequence_length
    return any(_kept_targets(spec, length, len(tokens)) for tokens in corpus.documents.values())


def _kept_targets(spec: Any, length: int, tokens: int) -> set[int]:
    targets = set(range(1, tokens))
    match spec.type:
        case "concatenate":
            return targets
        case "windows":
            step = min(spec.stride or length, length)
            kept: set[int] = set()
            predicted = 0
            for begin in range(0, tokens, step):
                new = set(range(predicted + 1, min(begin + length, tokens - 1) + 1))
                kept |= new if len(new) >= spec.min_length else set()
                predicted = max(predicted, begin + length)
            return kept
    if len(targets) < spec.min_length or (spec.too_long == "drop" and len(targets) > length):
        return set()
    return targets if spec.too_long == "split" else {i for i in targets if i <= length}


@few
@given(
    words=st.lists(st.integers(1, 12), min_size=2, max_size=14),
    length=st.integers(1, 40),
    bos=st.booleans(),
    eos=st.booleans(),
    files=st.integers(1, 2),
)
def test_separate_segments_are_the_documents_and_none_sees_another(tmp_path_factory, words, length, bos, eos, files):
    corpus = Corpus(
        tmp_path_factory.mktemp("separate"),
        words,
        prompts=False,
        files=files,
        sequence_length=length,
        batch_size=1,
        shuffle=False,
        encoding={"type": "concatenate", "separate": True, "bos": bos, "eos": eos},
    )
    document: list[int] = []
    for number, tokens in enumerate(corpus.documents.values()):
        document += [number] * len(tokens)
        if eos and not bos:
            # the end of one is where the next one begins: it is predicted by its own, and predicts the next
            document[-1] = number + 1
    # every token, but the first, is a target; of the first of a document, where nothing is to predict it, none
    crosses = [False] + [one != other for one, other in pairwise(document)]
    data = TrainSet(corpus.cache, corpus.recipe)
    for step in range(data.examples):
        row = {name: array[0] for name, array in data.batch(step).items()}
        start = step * length
        here = document[start : start + length]
        assert row["segments"].tolist() == [n - here[0] + 1 for n in here] + [0] * (length - len(here))
        begins = {n: here.index(n) for n in here}
        assert row["positions"][: len(here)].tolist() == [i - begins[n] for i, n in enumerate(here)]
        ends = crosses[start + 1 : start + length + 1]
        learned = [1.0] * len(ends) if eos and not bos else [float(not crossed) for crossed in ends]
        assert row["weights"].tolist() == learned + [0.0] * (length - len(learned))


@few
@given(
    words=st.lists(st.integers(1, 30), min_size=2, max_size=20),
    buckets=st.lists(st.integers(1, 59), min_size=1, max_size=3),
    batch=st.integers(1, 5),
)
def test_a_batch_has_one_of_the_buckets_lengths_and_every_epoch_every_example_in_another_order(
    tmp_path_factory, words, buckets, batch
):
    corpus = Corpus(
        tmp_path_factory.mktemp("buckets"),
        words,
        prompts=False,
        files=1,
        sequence_length=60,
        batch_size=batch,
        encoding={"type": "pad", "buckets": tuple(buckets)},
    )
    data = TrainSet(corpus.cache, corpus.recipe)
    lengths = sorted({*buckets, 60})
    epochs = []
    for epoch in range(3):
        order = []
        for step in range(epoch * data.batches, (epoch + 1) * data.batches):
            rows = list(data.rows(step))
            longest = max(span[0].end - span[0].first - 1 for row in rows for span in row.spans)
            made = data.batch(step)
            assert made["tokens"].shape == (batch, next(n for n in lengths if n >= min(60, longest)))
            assert {n: (a.shape, a.dtype) for n, a in made.items()} == data.layouts()[made["tokens"].shape[1]]
            order += [row.example for row in rows]
        assert sorted(order) == list(range(data.examples))
        epochs.append(order)
    if data.examples > 8 and data.batches > 3:
        assert epochs[0] != epochs[1]
    again = TrainSet(corpus.cache, corpus.recipe)
    for step in (2 * data.batches, 0):
        np.testing.assert_array_equal(again.batch(step)["tokens"], data.batch(step)["tokens"])


@few
@given(words=st.lists(st.integers(1, 15), min_size=2, max_size=12), spec=encodings, batch=st.integers(1, 5))
def test_a_validation_set_has_every_example_of_every_encoding_once(tmp_path_factory, words, spec, batch):
    corpus = Corpus(
        tmp_path_factory.mktemp("evaluation"), [*words, 30], prompts=True, files=1, sequence_length=30, encoding=spec
    )
    data, source = corpus.recipe.data, corpus.recipe.data.train[0]
    # where every document is dropped there is no set
    assume(examples_of(corpus.cache.train, source, data, corpus.cache.directory).wait(None))
    evaluation = EvalSet(corpus.cache.train, source, data, corpus.cache.directory, batch_size=batch)
    total = sum(float(evaluation.batch(i)["weights"].sum()) for i in range(len(evaluation)))
    assert total == seen(corpus).total()
    assert all(len(evaluation.batch(i)["tokens"]) == batch for i in range(len(evaluation)))
    assert evaluation.bytes == 0, "some tokens are no targets"


def test_sources_of_prompts_and_of_plain_text_side_by_side_keep_their_masks(tmp_path):
    room.write_jsonl(tmp_path / "plain.jsonl", ["plain text"])
    room.write_rows(tmp_path / "prompts.jsonl", [{"q": "qqqq", "a": "zz"}])
    prompts = {
        "path": str(tmp_path / "prompts.jsonl"),
        "document": {"type": "prompt", "prompt": "{q}", "response": "{a}"},
    }
    recipe = room.recipe(tmp_path, tmp_path / "plain.jsonl", prompts, sequence_length=64, batch_size=1)
    cache = caches.build(recipe)
    batch = TrainSet(cache, recipe).batch(0)
    learned = cache.tokenizer.decode(batch["targets"][batch["weights"] == 1].tolist())
    assert learned == f"lain text{room.END}zz{room.END}"
