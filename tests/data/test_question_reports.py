"""The answers to questions are those of all their windows, and are compared with every answer in the set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_questions import CONTEXT, LONG, recipe_of, row

from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.cache import build as caches
from trainkit.data.checks import find_evaluation_problems
from trainkit.evaluation.answers import AnswerReport
from trainkit.evaluation.results import PredictionTable

ROWS = [
    row(CONTEXT, "sat still", "the cat", question="how"),
    row(CONTEXT, question="many"),
    row(LONG, "barked at", question="cats"),
]


def reported(
    directory: Path, says: Any, *, threshold: float = 0.0, parts: slice = slice(None), eos: bool = True
) -> tuple[Any, Any]:
    """The values and the texts of a model that `says` (text, score, null score) of a question and a window's number."""
    encoding = {"stride": 10, "eos": eos}
    recipe = recipe_of(directory, ROWS, sequence_length=32, document={"unanswerable": True}, encoding=encoding)
    cache = caches.build(recipe)
    data = EvalSet(cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=1, shifted=False)
    table, codec, numbers = PredictionTable(), cache.text_tokenizer, {}
    for index in range(len(data))[parts]:
        batch = data.batch(index)
        tokens = batch["tokens"].astype(np.int32)
        question = codec.decode(tokens[0, 1:2].tolist())
        number = numbers[question] = numbers.get(question, -1) + 1
        text, score, null_score = says(question, number)
        (ids,) = codec.encode_batch([text])
        context = tokens[0].tolist()
        begins = (at for at in range(3, len(context)) if context[at : at + len(ids)] == ids)
        first = next(begins, 3)
        found = {"first": [first], "last": [first + len(ids) - 1], "score": [score], "null_score": [null_score]}
        arrays = {name: np.array(value) for name, value in found.items()}
        table.add(data.places(index), 1, arrays | {"tokens": tokens, "answers": batch["labels"], "weights": np.ones(1)})
    values = AnswerReport(codec, unanswerable=True, null_threshold=threshold)(None, data, table)
    return values, {texts["text"]: (texts["target"], texts["generated"]) for _, texts in table._texts}


def test_the_best_window_answers_and_the_most_similar_answer_counts(tmp_path: Path) -> None:
    def says(question: str, number: int) -> tuple[str, float, float]:
        return {"how": ("cat", 1.0, 0.0), "many": ("dog", 1.0, 3.0)}.get(question, ("barked", float(-number), -9.0))

    values, texts = reported(tmp_path, says)
    assert texts == {"how": ("the cat", "cat"), "many": ("", ""), "cats": ("barked at", "barked")}
    # "the" does not count: exact, exact, and one word of two
    assert values == pytest.approx({"exact_match": 2 / 3, "f1": (1 + 1 + 2 / 3) / 3})
    values, texts = reported(tmp_path, says, threshold=2.5)
    assert texts["many"] == ("", "dog") and values["exact_match"] == pytest.approx(1 / 3)


def test_questions_that_are_evaluated_are_checked_under_the_name_of_their_set(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [row(CONTEXT, CONTEXT[:60])], sequence_length=16)
    (problem,) = find_evaluation_problems(caches.build(recipe), recipe, "test")
    assert problem.level == "warning"  # nothing is learned from it, so that it is no error
    assert problem.message.startswith("test: 1 of 1 answers are whole in no window of data.sequence_length = 16")
    recipe = recipe_of(tmp_path, [row(CONTEXT, "cat", question=CONTEXT)], sequence_length=16)
    problem, *_ = find_evaluation_problems(caches.build(recipe), recipe, "test")
    assert problem.level == "error" and problem.message.startswith("test: ") and "rows.jsonl:1" in problem.message


@pytest.mark.parametrize("eos", [True, False])
def test_a_question_of_which_a_window_is_missing_does_not_count(tmp_path: Path, eos: bool) -> None:
    values, texts = reported(tmp_path, lambda question, number: ("sat", 1.0, 0.0), parts=slice(None, -1), eos=eos)
    assert texts.keys() == {"how", "many"} and values["exact_match"] == 0
