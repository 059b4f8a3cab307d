"""Checks of questions before the first step: a question that fills its window, answers that no window holds."""

from __future__ import annotations

from collections.abc import Iterator

from trainkit.data.batches.evaluation_set import validation_sources
from trainkit.data.batches.examples import examples_of
from trainkit.data.batches.questions import QuestionWindows
from trainkit.data.cache.token_cache import Cache
from trainkit.data.problems import DataProblem
from trainkit.data.show import place_of
from trainkit.recipe import Recipe


def question_problems(cache: Cache, recipe: Recipe, *, learns: bool = True) -> Iterator[DataProblem]:
    """Yield what is wrong with the questions of each set that is complete; nothing where documents are no questions.

    `learns` says whether the training set is learned, or only evaluated.
    """
    sources = [recipe.data.train[0], *validation_sources(recipe)]
    for (name, stream), source in zip([("train", cache.train), *cache.validation.items()], sources, strict=True):
        examples = examples_of(stream, source, recipe.data, cache.directory, shifted=recipe.task.shifted)
        if not isinstance(examples, QuestionWindows) or not stream.complete:
            continue
        length = f"data.sequence_length = {recipe.data.sequence_length}"
        if (place := examples.too_long()) is not None:
            where = place_of(cache, name, place.section.source, place.section.unit, place.file, place.index)
            yield DataProblem(
                "error" if recipe.data.on_error == "stop" else "warning",
                f"{name}: with {length} the question at {where}, {place.end - place.first} tokens with those around it,"
                " leaves no room for its context: make examples longer, or leave such rows out",
            )
        answered, whole = examples.count_answers()
        if name == "train" and learns and not whole:
            yield DataProblem("error", f"train: no answer can be learned: none of {answered:,} is whole in a window")
        elif whole < answered:
            yield DataProblem(
                "warning",
                f"{name}: {answered - whole:,} of {answered:,} answers are whole in no window of {length}, so that the"
                " first token is their target: make examples longer or data.encoding.stride smaller",
            )
