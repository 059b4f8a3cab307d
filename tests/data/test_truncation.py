"""Texts that are cut off keep the special tokens that end them, as with `truncation=True` of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import data_room as room
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.spans import longest_first
from trainkit.data.cache import build as caches

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "one", "two", "three", "four"]
TEMPLATES = {
    "bert": ("<s> $A </s>", "<s> $A </s> $B </s>"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
}
LENGTH = 10


def tokenizer_of(kind: str) -> Tokenizer:
    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(name, ids[name]) for name in ("<s>", "</s>")]
    one, two = TEMPLATES[kind]
    tokenizer.post_processor = processors.TemplateProcessing(single=one, pair=two, special_tokens=special)
    return tokenizer


def texts_of(count: int) -> list[list[str]]:
    chance = np.random.default_rng(0)
    return [[" ".join(chance.choice(WORDS[4:], size=chance.integers(1, 14))) for _ in "ab"] for _ in range(count)]


class Unshifted:
    """A task whose targets are not the next tokens."""

    shifted, reference = False, {}


def batch_of(
    directory: Path, kind: str, document: dict[str, Any], rows: list[dict[str, Any]], **encoding: Any
) -> Batch:
    room.write_rows(directory / "rows.jsonl", rows)
    tokenizer_of(kind).save(str(directory / "tokenizer.json"))
    recipe = room.recipe(
        directory,
        {"path": str(directory / "rows.jsonl"), "document": document},
        tokenizer={"path": str(directory / "tokenizer.json")},
        encoding={"type": "pad"} | encoding,
        sequence_length=LENGTH,
        batch_size=len(rows),
    )
    recipe = recipe.model_copy(update={"task": Unshifted(), "model": SimpleNamespace(kind="encoder-decoder")})
    return TrainSet(caches.build(recipe), recipe).batch(0)


def encoded(kind: str, *texts: str) -> Encoding:
    wanted = tokenizer_of(kind)
    wanted.enable_truncation(LENGTH)
    return wanted.encode(*texts)


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("kind", ["bert", "roberta", "t5"])
def test_labelled_texts(tmp_path: Path, kind: str, texts: int) -> None:
    rows = [{"a": one, "b": other, "label": number % 2} for number, (one, other) in enumerate(texts_of(40))]
    batch = batch_of(tmp_path, kind, {"type": "labelled", "texts": ("a", "b")[:texts]}, rows)
    lengths = set()
    for row, example in enumerate(batch["example"].tolist()):
        wanted = encoded(kind, *(rows[example][key] for key in ("a", "b")[:texts]))
        used = int(batch["filled"][row])
        assert batch["tokens"][row, :used].tolist() == wanted.ids
        # what stands between the texts belongs to the first of them here
        text_of = [int(which == 1) for which in wanted.sequence_ids[:-1]] + [texts - 1]
        assert batch["second"][row, :used].tolist() == text_of
        assert batch["labels"][row] == example % 2
        lengths.add((used, sum(text_of)))
    assert len(lengths) > 3


def test_a_packed_text(tmp_path: Path) -> None:
    rows = [{"a": one, "label": 0} for one, _ in texts_of(8)]
    batch = batch_of(tmp_path, "bert", {"type": "labelled", "texts": ("a",)}, rows, type="pack")
    found = [
        tokens[segments == number].tolist()
        for tokens, segments in zip(batch["tokens"], batch["segments"], strict=True)
        for number in range(1, int(segments.max()) + 1)
    ]
    assert sorted(found) == sorted(encoded("bert", row["a"]).ids for row in rows)


def test_tagged_words(tmp_path: Path) -> None:
    words = [one.split() for one, _ in texts_of(12)]
    rows = [{"words": each, "labels": list(range(len(each)))} for each in words]
    document = {"type": "tagged", "words": "words", "labels": "labels", "classes": tuple(map(str, range(14)))}
    batch = batch_of(tmp_path, "bert", document, rows)
    for row, example in enumerate(batch["example"].tolist()):
        wanted, used = encoded("bert", " ".join(words[example])), int(batch["filled"][row])
        assert batch["tokens"][row, :used].tolist() == wanted.ids
        assert batch["labels"][row, :used].tolist() == [-1, *range(used - 2), -1]
        assert batch["weights"][row].tolist() == (batch["labels"][row] >= 0).tolist()


def test_texts_of_a_positive_pair(tmp_path: Path) -> None:
    rows = [{"query": one, "positive": other} for one, other in texts_of(12) if one != other]
    document = {"type": "positive-pair", "query": "{query}", "positive": "{positive}"}
    batch = batch_of(tmp_path, "bert", document, rows)
    for row, example in enumerate(batch["example"].tolist()):
        for side, key in enumerate(("query", "positive")):
            used = int(batch["filled"][row, side])
            assert batch["tokens"][row, side, :used].tolist() == encoded("bert", rows[example][key]).ids


@given(first=st.integers(0, 9), second=st.integers(0, 9), room=st.integers(0, 20))
def test_the_longer_text_of_a_pair_is_cut_first(first: int, second: int, room: int) -> None:
    kept = longest_first(first, second, room)
    assert sum(kept) == min(room, first + second) and kept[0] <= first and kept[1] <= second
