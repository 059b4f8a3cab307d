"""Sources with their targets as data: what a row becomes, what a batch holds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models

from trainkit.data.batches.dataset import TrainSet, counts_of
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

DOCUMENT = {"type": "source-target", "source": "reverse {text}", "target": "{answer}"}
WORDS = ["<pad>", "</s>", "<s>", "<unk>", "reverse", "one", "two", "three"]
TEMPLATES = {"t5": "$A </s>", "bart": "<s> $A </s>"}


def tokenizer_of(kind: str) -> Tokenizer:
    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(name, ids[name]) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=TEMPLATES[kind], special_tokens=special)
    return tokenizer


def recipe_of(directory: Path, rows: list[dict[str, str]], *, kind: str = "t5", **changes: Any) -> Recipe:
    room.write_rows(directory / "rows.jsonl", rows)
    tokenizer_of(kind).save(str(directory / "tokenizer.json"))
    source = {"path": str(directory / "rows.jsonl"), "document": DOCUMENT}
    encoding = {"type": "pad", "bos": kind == "bart", **changes.pop("encoding", {})}
    tokenizer = {"path": str(directory / "tokenizer.json")}
    return room.recipe(directory, source, tokenizer=tokenizer, **{"encoding": encoding, "batch_size": 4, **changes})


def rows_of(count: int) -> list[dict[str, str]]:
    chance = np.random.default_rng(0)
    texts = [chance.choice(WORDS[5:], size=chance.integers(1, 12)).tolist() for _ in range(count)]
    return [{"text": " ".join(words), "answer": " ".join(reversed(words))} for words in texts]


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("buckets", [(), (5,)], ids=["one length", "buckets"])
def test_source_and_target_are_tokenised_apart_and_truncated_as_transformers_does(tmp_path, kind, buckets) -> None:
    rows, length = rows_of(8), 9
    recipe = recipe_of(tmp_path, rows, kind=kind, sequence_length=length, encoding={"buckets": buckets})
    cache = caches.build(recipe)
    data, wanted, seen = TrainSet(cache, recipe), tokenizer_of(kind), 0
    wanted.enable_truncation(length)
    if not buckets:
        vocab = cache.text_tokenizer.vocab_size
        assert data.layouts()[length] == longest_layout(recipe.data, batch_size=4, vocab_size=vocab, shifted=False)
    for step in range(data.batches or 2):
        batch = data.batch(step)
        shown = list(show(cache, data, step))
        for number in range(4):
            if not batch["filled"][number].any():
                continue
            its_row = rows[int(batch["example"][number])]
            for side, text in enumerate((f"reverse {its_row['text']}", its_row["answer"])):
                used = int(batch["filled"][number, side])
                tokens, weights = (batch[name][number, side] for name in ("tokens", "weights"))
                assert tokens[:used].tolist() == wanted.encode(text).ids
                assert weights.tolist() == [float(side)] * used + [0.0] * (len(weights) - used), "the target alone"
                (run,) = shown[number].pieces[side].runs
                assert run[1] == bool(side) and ("reverse" in run[0]) == (side == 0)
            seen += 1
    assert seen == 8
    counts = counts_of(cache.train, recipe.data.train[0], recipe, cache.directory)
    around = 1 + (kind == "bart")
    assert counts is not None
    assert counts.truncated == sum(len(row["text"].split()) + 1 + around > length for row in rows) > 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"answer": "  "}, "empty target"), ({"answer": None}, "'answer' is")],
    ids=["empty", "null"],
)
def test_a_row_without_a_target_is_an_error_with_its_place_or_is_skipped(tmp_path, changes, problem) -> None:
    rows = [*rows_of(2), rows_of(1)[0] | changes]
    with pytest.raises(TrainkitError, match=problem) as error:
        caches.build(recipe_of(tmp_path, rows))
    assert "rows.jsonl:3" in str(error.value.where)
    cache = caches.build(recipe_of(tmp_path, rows, on_error="skip"))
    assert cache.train.documents == 2 and cache.left_out.refused == 1


def test_limits_of_characters_count_both_texts(tmp_path: Path) -> None:
    for limit, documents in (({"max_characters": 14}, 2), ({"max_characters": 13}, 1)):
        recipe = recipe_of(tmp_path, [{"text": "one", "answer": "two"}, {"text": "one", "answer": "x"}])
        source = recipe.data.train[0].model_copy(update=limit)
        data = recipe.data.model_copy(update={"train": (source,)})
        cache = caches.build(recipe.model_copy(update={"data": data}))
        assert (cache.train.documents, cache.left_out.filtered) == (documents, 2 - documents)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": {"type": "seq2seq"}}, ["seq2seq", "gpt2", "causal", "models that fit"]),
        ({"task": {"type": "causal-lm"}}, ["causal-lm", "source-target"]),
    ],
    ids=["model", "documents"],
)
def test_a_task_that_does_not_fit_is_refused_before_anything_is_tokenised(tmp_path, change, words) -> None:
    values = recipe_of(tmp_path, rows_of(1)).model_dump(by_alias=True, exclude_none=True)
    with pytest.raises(ValueError) as error:
        Recipe.model_validate(values | change)
    assert all(word in str(error.value) for word in words), error.value
