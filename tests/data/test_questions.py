"""Questions become windows over their contexts, with the answers where the rows say that they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import data_room as room
import likeness
import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.checks import find_problems
from trainkit.data.documents.question import FIRST_ANSWER, TARGET
from trainkit.data.recorded import check_same_data
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.task import QuestionAnswering

CONTEXT = "the cat sat on the mat. a dog barked at the cat, and the cat sat still."
LONG = " ".join([CONTEXT] * 4)
QUESTION = "how many cats"


def row(context: str = CONTEXT, *answers: str, question: str = QUESTION) -> dict[str, Any]:
    """A row as SQuAD has it, with answers that the context has."""
    starts = [context.rindex(answer) for answer in answers]
    return {"question": question, "context": context, "answers": {"text": list(answers), "answer_start": starts}}


def recipe_of(directory: Path, rows: list[dict[str, Any]], *, name: str = "wordpiece", **data: Any) -> Recipe:
    path = likeness.write(name, directory / name)
    room.write_rows(directory / "rows.jsonl", rows)
    source = {"path": str(directory / "rows.jsonl"), "document": {"type": "question"} | data.pop("document", {})}
    encoding = {"type": "windows", "bos": True} | data.pop("encoding", {})
    data = {"encoding": encoding, "shuffle": False, "sequence_length": 64} | data
    return room.recipe(directory, source, tokenizer={"path": str(path)}, batch_size=1, **data)


def windows_of(recipe: Recipe) -> tuple[Cache, list[dict[str, np.ndarray]]]:
    """The windows of a recipe's documents, in their order, without padding."""
    cache = caches.build(recipe)
    data = EvalSet(cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=1, shifted=False)
    found = []
    for index in range(len(data)):
        batch = data.batch(index)
        filled = int(batch["filled"][0])
        assert (batch["labels"][0, filled:] == -1).all() and not batch["weights"][0, filled:].any()
        found.append({name: batch[name][0, :filled] for name in ("tokens", "labels", "weights", "second")})
    return cache, found


def text_of(cache: Cache, window: dict[str, np.ndarray], bit: int) -> str:
    """The text of the tokens whose label has a bit."""
    which = (window["labels"] > 0) & (window["labels"] & bit > 0)
    return cache.text_tokenizer.decode(window["tokens"][which].tolist())


def test_a_window_is_the_question_then_a_part_of_the_context_and_marks_all_answers(tmp_path: Path) -> None:
    cache, (window,) = windows_of(recipe_of(tmp_path, [row(CONTEXT, "dog barked", "a dog barked at", "the cat")]))
    assert cache.text_tokenizer.decode(window["tokens"].tolist()) == f"[CLS] {QUESTION} [SEP] {CONTEXT} [SEP]"
    assert [text_of(cache, window, FIRST_ANSWER << n) for n in range(3)] == ["dog barked", "a dog barked at", "the cat"]
    assert text_of(cache, window, TARGET) == "dog barked"
    assert ((window["labels"] > 0) & (window["labels"] & TARGET > 0) == (window["weights"] > 0)).all()
    in_context = np.flatnonzero(window["labels"] >= 0)
    assert (np.flatnonzero(window["second"])[:-1] == in_context).all(), "the last token ends the text"
    shape = longest_layout(recipe_of(tmp_path, [row(CONTEXT, "dog")]).data, batch_size=1, vocab_size=300, shifted=False)
    assert {"tokens", "labels", "second", "weights", "filled", "example"} == shape.keys()


def test_a_token_with_parts_of_two_answers_is_in_both(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(CONTEXT, "the ca", "t sat", "mat")])
    cache, (window,) = windows_of(recipe)
    assert [text_of(cache, window, FIRST_ANSWER << n) for n in range(3)] == ["the cat", "cat sat", "mat"]
    with pytest.raises(TrainkitError, match="the data is not what this run was trained on") as refused:
        check_same_data(cache, recipe, "that of an earlier version", where=tmp_path)
    assert "(now a token of two answers has both)" in refused.value.hint


@pytest.mark.parametrize("stride", [5, 12, None])
def test_windows_of_a_long_context_repeat_the_question_and_miss_nothing(tmp_path: Path, stride: int | None) -> None:
    length = 32
    recipe = recipe_of(
        tmp_path, [row(LONG, "barked at"), row(CONTEXT, "mat")], sequence_length=length, encoding={"stride": stride}
    )
    cache, windows = windows_of(recipe)
    tokenizer = cache.text_tokenizer
    (question,) = tokenizer.encode_batch([QUESTION])
    (context,) = tokenizer.encode_batch([LONG])
    before, room_left = len(question) + 2, length - len(question) - 3
    stride = min(stride or room_left, room_left)
    of_long = windows[: -1 if len(tokenizer.encode_batch([CONTEXT])[0]) <= room_left else -2]
    begins = [k * stride for k in range(len(of_long))]
    assert begins[-1] + room_left >= len(context) > begins[-1] + room_left - stride
    answer = tokenizer.encode_batch(["barked at"])[0]
    place = max(at for at in range(len(context)) if context[at : at + len(answer)] == answer)
    for begin, window in zip(begins, of_long, strict=True):
        assert window["tokens"][1 : before - 1].tolist() == question
        assert window["tokens"][before:-1].tolist() == context[begin : begin + room_left]
        holds = begin <= place and place + len(answer) <= begin + room_left
        target = np.flatnonzero(window["weights"]).tolist()
        assert target == ([before + place - begin + n for n in range(len(answer))] if holds else [0])


def test_an_evaluation_knows_where_each_token_of_a_window_comes_from(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(LONG, "barked at")], sequence_length=32, encoding={"stride": 10})
    cache = caches.build(recipe)
    data = EvalSet(cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=4, shifted=False)
    whole = cache.train.arrays(0).tokens
    for index in range(len(data)):
        batch = data.batch(index)
        for number, places in enumerate(data.places(index)):
            position = np.concatenate([np.arange(place.first, place.end) for place in places])
            assert batch["tokens"][number, : len(position)].tolist() == whole[position].tolist()
            assert len(position) == batch["filled"][number]


def test_questions_without_an_answer_have_the_first_token_as_their_target(tmp_path: Path) -> None:
    rows = [row(), row(CONTEXT, "cat")]
    with pytest.raises(TrainkitError, match=r"no answer") as error:
        caches.build(recipe_of(tmp_path, rows))
    assert error.value.where.endswith("rows.jsonl:1") and "document.unanswerable = true" in error.value.hint
    _, (without, _) = windows_of(recipe_of(tmp_path, rows, document={"unanswerable": True}))
    assert np.flatnonzero(without["weights"]).tolist() == [0] and without["labels"][0] == TARGET


@pytest.mark.parametrize("form", ["objects", "flat", "gpt2"])
def test_answers_may_be_written_in_other_ways(tmp_path: Path, form: str) -> None:
    rows = [{"question": QUESTION, "context": CONTEXT, "answers": [{"text": "dog", "answer_start": 26}]}]
    document = {}
    if form == "flat":
        rows = [{"q": QUESTION, "c": CONTEXT, "a": "dog", "s": 26}]
        document = {"question": "q", "context": "c", "answers": "a", "start": "s"}
    name = "gpt2" if form == "gpt2" else "wordpiece"
    cache, (window,) = windows_of(
        recipe_of(tmp_path, rows, name=name, document=document, encoding={"bos": name == "wordpiece"})
    )
    assert text_of(cache, window, TARGET).strip() == "dog"


WRONG = {
    "outside": ({"text": ["mat"], "answer_start": [80]}, ["80", "83", "71", "at character 19"]),
    "before": ({"text": ["mat"], "answer_start": [-1]}, ["-1"]),
    "elsewhere": ({"text": ["dog"], "answer_start": [4]}, ["character 4", "'cat'", "'dog'", "at character 26"]),
    "absent": ({"text": ["cow"], "answer_start": [4]}, ["'cow'", "does not have it"]),
    "lengths": ({"text": ["dog"], "answer_start": []}, ["1 texts", "0 starts"]),
    "no list": ({"text": "dog", "answer_start": 26}, ["answers.text", "a string, not a list"]),
    "no object": ("dog", ["'answers' is a string", "document.start"]),
    "no number": ({"text": ["dog"], "answer_start": ["26"]}, ["answers.text[0]", "a string, not a whole number"]),
    "blank": ({"text": [" "], "answer_start": [3]}, ["empty"]),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_an_answer_that_is_not_where_its_row_says_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    answers, words = WRONG[name]
    rows = [row(CONTEXT, "dog"), {"question": QUESTION, "context": CONTEXT, "answers": answers}]
    with pytest.raises(TrainkitError) as error:
        caches.build(recipe_of(tmp_path, rows))
    said = f"{error.value.problem} {error.value.hint}"
    assert error.value.where.endswith("rows.jsonl:2") and all(word in said for word in words), said


@pytest.mark.parametrize(
    ("rows", "length", "level", "words"),
    [
        ([row(CONTEXT, "dog", question="question: how many cats are there? " * 4)], 32, "error", ["rows.jsonl:1"]),
        ([row(LONG, LONG[:200])], 32, "error", ["no answer", "1 is whole"]),
        ([row(LONG, LONG[:200]), row(LONG, "dog")], 32, "warning", ["1 of 2 answers"]),
    ],
    ids=["long question", "no answer", "a long answer"],
)
def test_what_cannot_be_learned_is_found_before_the_first_step(
    tmp_path: Path, rows: list[dict[str, Any]], length: int, level: str, words: list[str]
) -> None:
    recipe = recipe_of(tmp_path, rows, sequence_length=length)
    found = [problem for problem in find_problems(caches.build(recipe), recipe) if problem.level == level]
    assert any(all(word in problem.message for word in words) for problem in found), found


def test_questions_are_divided_by_windows_alone(tmp_path: Path) -> None:
    with pytest.raises(Exception, match='"windows"'):
        recipe_of(tmp_path, [row(CONTEXT, "dog")], encoding={"type": "pad"})


def test_no_window_is_left_out_for_its_length(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(LONG, "cat")], encoding={"min_length": 5})
    with pytest.raises(ValueError, match=r"min_length = 5 leaves out .*: omit it"):
        QuestionAnswering(type="question-answering").check_sizes(recipe.model, recipe.data)


def test_a_batch_is_shown_with_its_answer_alone_as_learned(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(CONTEXT, "dog barked"), row(LONG, "cat")], sequence_length=64)
    cache = caches.build(recipe)
    (shown,) = show(cache, TrainSet(cache, recipe), 0)
    learned = ["".join(text for text, is_learned in piece.runs if is_learned).strip() for piece in shown.pieces]
    assert learned == ["dog barked"] and shown.label is None
    assert json.dumps([piece.where for piece in shown.pieces]).count("rows.jsonl:1") == 1
