"""Hard negatives become sequences beside the query and its positive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import likeness
import pytest

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Pad

ROWS = [
    {"query": "the cat", "positive": "sat on the mat", "negatives": ["a dog", "barked at the cat", "hello"]},
    {"query": "a dog", "positive": "barked", "negatives": ["sat", "on the mat and still", "there"]},
]


def recipe_of(directory: Path, rows: list[dict[str, Any]], *, length: int = 16, **document: Any) -> Recipe:
    path = likeness.write("wordpiece", directory / "wordpiece")
    room.write_rows(directory / "rows.jsonl", rows)
    document = {"type": "positive-pair", "negatives": "negatives", "negative_count": 2} | document
    source = {"path": str(directory / "rows.jsonl"), "document": document}
    data = {"encoding": {"type": "pad", "bos": True}, "shuffle": False, "sequence_length": length}
    return room.recipe(directory, source, tokenizer={"path": str(path)}, batch_size=len(rows), **data)


class Unshifted:
    """The task of vectors learns no next tokens."""

    shifted, reference = False, {}


def test_each_text_of_a_row_is_a_sequence_of_its_own(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ROWS)
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe.model_copy(update={"task": Unshifted()}))
    batch = data.batch(0)
    for number, row in enumerate(ROWS):
        texts = [row["query"], row["positive"], *row["negatives"][:2]]
        for side, text in enumerate(texts):
            used = int(batch["filled"][number, side])
            ids = batch["tokens"][number, side, :used].tolist()
            assert cache.text_tokenizer.decode(ids) == f"[CLS] {text} [SEP]"
    layout = longest_layout(recipe.data, batch_size=2, vocab_size=300, shifted=False)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == layout
    (shown, _) = show(cache, data, 0)
    assert [piece.part for piece in shown.pieces] == ["query", "positive", "negative 1", "negative 2"]


def test_one_text_may_be_the_only_negative(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, [ROWS[0] | {"negatives": "hello"}], negative_count=1)
    batch = TrainSet(caches.build(recipe), recipe.model_copy(update={"task": Unshifted()})).batch(0)
    assert batch["tokens"].shape == (1, 3, 16) and (batch["filled"] > 2).all()


@pytest.mark.parametrize(("template", "before"), [("hello {positive}", "hello "), ("{query} {positive}", "")])
def test_negatives_have_the_words_around_the_positive(tmp_path: Path, template: str, before: str) -> None:
    recipe = recipe_of(tmp_path, ROWS[:1], positive=template)
    cache = caches.build(recipe)
    batch = TrainSet(cache, recipe.model_copy(update={"task": Unshifted()})).batch(0)
    used = batch["filled"][0].tolist()
    texts = [cache.text_tokenizer.decode(batch["tokens"][0, side, : used[side]].tolist()) for side in range(4)]
    assert texts[2:] == [f"[CLS] {before}{text} [SEP]" for text in ROWS[0]["negatives"][:2]]


@pytest.mark.parametrize(
    ("negatives", "words"),
    [
        (["sat"], ["1 texts", "document.negative_count = 2"]),
        (["sat", " "], ["'negatives[1]' is empty"]),
        (["sat", 3], ["'negatives[1]'", "a number, not a string"]),
        (["sat", "barked"], ["its positive"]),
        (None, ["null", "a list"]),
    ],
)
def test_negatives_that_cannot_be_used_are_refused_with_their_row(
    tmp_path: Path, negatives: Any, words: list[str]
) -> None:
    with pytest.raises(TrainkitError) as error:
        caches.build(recipe_of(tmp_path, [ROWS[0], ROWS[1] | {"negatives": negatives}]))
    said = error.value.problem + error.value.hint
    assert error.value.where.endswith("rows.jsonl:2") and all(word in said for word in words), said


def test_a_row_without_the_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="'negatives'") as error:
        caches.build(recipe_of(tmp_path, [{"query": "a", "positive": "b", "negative": "c"}]))
    assert 'did you mean "negative"' in error.value.hint


def test_a_negative_without_tokens_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[1] | {"negatives": ["sat", "\N{COMBINING ACUTE ACCENT}"]}]  # the tokenizer leaves it out
    encoding = {"type": "pad", "bos": False, "eos": False}
    recipe = recipe_of(tmp_path, rows)
    bare = recipe.model_copy(update={"data": recipe.data.model_copy(update={"encoding": Pad.model_validate(encoding)})})
    with pytest.raises(TrainkitError, match="makes no token of a text of this row") as error:
        caches.build(bare)
    assert error.value.where.endswith("rows.jsonl:2")
