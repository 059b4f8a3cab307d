"""Judged answers as data: what a row becomes, what a batch holds, and which rows are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet, counts_of
from trainkit.data.batches.judged import judged_spans
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.cache.shards import LEARNED
from trainkit.data.checks import find_problems
from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.documents.judged import make
from trainkit.data.documents.pieces import RowContext
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.data import Pad
from trainkit.recipe.sections.paired_documents import JudgedChat

DOCUMENT = {"type": "judged", "answer": " {completion}"}


def row(seed: int, **changes: Any) -> dict[str, Any]:
    return {
        "prompt": f"alpha {seed}",
        "completion": "beta " * (1 + seed % 5) + str(seed),
        "label": seed % 3 > 0,
    } | changes


def recipe_of(directory: Path, rows: list[dict[str, Any]], **changes: Any):
    room.write_rows(directory / "answers.jsonl", rows)
    source = {"path": str(directory / "answers.jsonl"), "document": DOCUMENT}
    return room.recipe(directory, source, **{"encoding": {"type": "pad"}, "batch_size": 4, **changes})


def test_a_batch_has_each_prompt_with_its_answer_and_with_the_answer_before_it(tmp_path: Path) -> None:
    rows = [row(seed) for seed in range(8)]
    recipe = recipe_of(tmp_path, rows, sequence_length=64)
    cache = caches.build(recipe)
    data, codec, seen = TrainSet(cache, recipe), cache.tokenizer, set()
    assert data.layouts()[64] == longest_layout(recipe.data, batch_size=4, vocab_size=codec.vocab_size)
    for step in range(2):
        batch, shown = data.batch(step), list(show(cache, data, step))
        assert batch["labels"].tolist() == [rows[k]["label"] for k in batch["example"].tolist()]
        for number, which in enumerate(batch["example"].tolist()):
            pieces = iter(shown[number].pieces)
            for side, other in enumerate((which, which - 1)):
                used = int(batch["filled"][number, side])
                tokens, targets = (batch[name][number, side] for name in ("tokens", "targets"))
                learned = batch["weights"][number, side] > 0
                assert not learned[used:].any() and tokens[1:used].tolist() == targets[: used - 1].tolist()
                text = codec.decode([int(tokens[0]), *targets[:used].tolist()])
                answer = f" {rows[other]['completion']}{room.END}"
                assert text == rows[which]["prompt"] + answer
                assert codec.decode(targets[learned].tolist()) == answer
                parts = [next(pieces)] if side == 0 else [next(pieces), next(pieces)]
                assert "".join(text for piece in parts for text, _ in piece.runs) == text
            seen.add(which)
    assert seen == set(range(8))


def test_what_does_not_fit_is_cut_off_or_dropped_and_counted() -> None:
    made = [(2, 3), (9, 1), (2, 9), (1, 1)]  # tokens of prompts and answers
    marks = np.concatenate([np.array([0] * prompt + [LEARNED] * answer, np.uint8) for prompt, answer in made])
    ends = np.cumsum([sum(sizes) for sizes in made])
    found = judged_spans(Pad(type="pad"), 8, ends, marks)
    assert found.lengths.reshape(-1, 3).tolist() == [[2, 3, 1], [2, 9, 3], [1, 1, 9]]
    assert (found.counts.documents, found.counts.dropped, found.counts.truncated) == (4, 1, 1)
    whole = judged_spans(Pad(type="pad", too_long="drop"), 8, ends, marks)
    assert whole.lengths.reshape(-1, 3)[:, 0].tolist() == [2, 1] and whole.counts.dropped == 2


def test_a_sequence_that_is_cut_off_is_shown_as_it_is_learned(tmp_path: Path) -> None:
    rows = [row(0, completion="beta " * 40), row(1), row(2)]
    recipe = recipe_of(tmp_path, rows, sequence_length=24, batch_size=3)
    cache = caches.build(recipe)
    counts = counts_of(cache.train, recipe.data.train[0], recipe, cache.directory)
    assert counts is not None and (counts.documents, counts.truncated) == (3, 1)
    data = TrainSet(cache, recipe)
    batch = data.batch(0)
    assert sorted(batch["filled"].max(1).tolist())[-2:] == [24, 24]
    assert len(list(show(cache, data, 0))) == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"label": "maybe"}, "'maybe', neither true nor false"),
        ({"label": 2}, "is 2, neither"),
        ({"label": None}, "neither true nor false"),
        ({"completion": " "}, "empty answer"),
    ],
    ids=["word", "number", "null", "empty"],
)
def test_a_row_that_cannot_be_used_is_reported_with_its_place(tmp_path: Path, changes: Any, problem: str) -> None:
    with pytest.raises(TrainkitError, match=problem) as told:
        caches.build(recipe_of(tmp_path, [row(1), row(2) | changes]))
    assert "answers.jsonl:2" in str(told.value.where)


def test_answers_that_are_all_good_are_an_error(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(seed, label=True) for seed in range(4)])
    (problem,) = (p for p in find_problems(caches.build(recipe), recipe) if p.level == "error")
    assert "desirable" in problem.message


def test_a_conversation_is_learned_behind_the_words_that_ask_for_its_answer() -> None:
    template = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        origin="here",
    )
    asked, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
    for document, columns in (
        (JudgedChat(type="judged-chat"), {"completion": [asked, said]}),
        (JudgedChat(type="judged-chat", prompt="prompt"), {"prompt": [asked], "completion": [said]}),
    ):
        (piece,) = make(document, {**columns, "label": False}, 0, RowContext(chat=template))
        ((begin, end),) = piece.learned
        assert piece.text[begin:end] == "yes</s>" and piece.label == 0
    problem, _ = make(JudgedChat(type="judged-chat"), {"completion": [asked], "label": 1}, 0, RowContext(chat=template))
    assert "no messages before" in problem
    silent = {"completion": [asked, {**said, "content": ""}], "label": 1}
    assert make(JudgedChat(type="judged-chat"), silent, 0, RowContext(chat=template))[0] == "has an empty answer"
