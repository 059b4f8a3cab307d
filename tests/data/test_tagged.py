"""Labels of words become labels of tokens, as the usual recipe with transformers gives them, in every encoding."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import data_room as room
import likeness
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Reference
from tokenizers import Tokenizer

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.cache import encode
from trainkit.data.cache.token_cache import Cache
from trainkit.data.checks import find_problems
from trainkit.data.documents.pieces import RowContext
from trainkit.data.documents.tagged import make
from trainkit.data.export import export
from trainkit.data.show import show
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.labelled_documents import Tagged

#: BERT's kind, and GPT-2's and RoBERTa's.
KINDS = ("wordpiece", "gpt2")
WORDS = st.text(st.sampled_from("aehtsn'-.,’é́Ω東🙂\u200b \n0A"), min_size=1, max_size=6)
ROWS = [
    {"words": ["The", "cat", "sat", "on", "naïve", "🙂", "mats"], "labels": ["O", "B", "O", None, "B", "O", "B"]},
    {"words": ["barked", "question:"], "labels": [1, -100]},
    {"words": ["", "cats", " dogs "], "labels": ["O", "B", "O"]},
]
CLASSES = ("O", "B")


def by_word(tokenizer: Tokenizer, words: list[str], labels: list[int], *, every: bool) -> tuple[list[int], list[int]]:
    """The ids of words that are tokenised one by one, and the label of each token: of a word's first, or of all."""
    encoding = tokenizer.encode(words, is_pretokenized=True, add_special_tokens=False)
    found, before = [], None
    for word in encoding.word_ids:
        found.append(-1 if word is None or (word == before and not every) else labels[word])
        before = word
    return encoding.ids, found


def with_prefix_space(content: str) -> Tokenizer:
    """A tokenizer as `AutoTokenizer.from_pretrained(…, add_prefix_space=True)` opens it."""
    tokenizer = Tokenizer.from_str(content)
    tokenizer.encode_special_tokens = True
    if hasattr(tokenizer.pre_tokenizer, "add_prefix_space"):
        tokenizer.pre_tokenizer.add_prefix_space = True
    return tokenizer


@pytest.mark.parametrize("subwords", ["first", "all"])
@pytest.mark.parametrize("name", KINDS)
def test_the_tokens_of_words_have_the_labels_that_word_ids_give_them(name: str, subwords: Any) -> None:
    content = likeness.FAMILIES[name]().content
    mine, other = vocabulary.LoadedTokenizer(Path("x"), content.encode()), with_prefix_space(content)
    document = Tagged(type="tagged", subwords=subwords)

    @given(st.lists(st.tuples(WORDS.filter(lambda word: word.strip() == word), st.integers(0, 9)), max_size=8))
    def check(tagged: list[tuple[str, int]]) -> None:
        words, labels = [word for word, _ in tagged], [label for _, label in tagged]
        (piece,) = make(document, {"words": words, "labels": labels}, 0, RowContext())
        ((ids, found),) = mine.encode_labelled([(piece.text, piece.token_labels)], words=True)
        assert (ids, found.tolist()) == by_word(other, words, labels, every=subwords == "all")

    check()


def recipe_of(directory: Path, rows: list[dict[str, Any]] = ROWS, *, name: str = "wordpiece", **data: Any) -> Recipe:
    path = likeness.write(name, directory / name)
    room.write_rows(directory / "rows.jsonl", rows)
    document = {"type": "tagged", "classes": CLASSES} | data.pop("document", {})
    source = {"path": str(directory / "rows.jsonl"), "document": document}
    data = {"encoding": {"type": "pad", "bos": True}, "shuffle": False, "sequence_length": 64} | data
    return room.recipe(directory, source, tokenizer={"path": str(path)}, batch_size=3, **data)


class Unshifted:
    """A task whose targets are not the next tokens: so every token is in a batch."""

    shifted, reference = False, {}


def batch_of(recipe: Recipe) -> tuple[Cache, TrainSet]:
    cache = caches.build(recipe)
    return cache, TrainSet(cache, recipe.model_copy(update={"task": Unshifted()}))


def expected(recipe: Recipe, cache: Cache, row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """A document's ids and labels with what stands around it."""
    pairs = [(word.strip(), label) for word, label in zip(row["words"], row["labels"], strict=True) if word.strip()]
    numbers = [CLASSES.index(label) if isinstance(label, str) else label for _, label in pairs]
    numbers = [-1 if label in (None, -100) else label for label in numbers]
    tokenizer = with_prefix_space(likeness.wordpiece().content)
    ids, labels = by_word(tokenizer, [word for word, _ in pairs], numbers, every=False)
    assert cache.tokenizer is not None
    return [cache.tokenizer.beginning_of_text, *ids, cache.tokenizer.end_of_text], [-1, *labels, -1]


@pytest.mark.parametrize("encoding", ["pad", "pack", "windows"])
def test_each_token_of_a_batch_has_its_label_and_counts_where_it_has_one(tmp_path: Path, encoding: str) -> None:
    recipe = recipe_of(tmp_path, encoding={"type": encoding, "bos": True})
    cache, data = batch_of(recipe)
    batch = data.batch(0)
    documents = [expected(recipe, cache, row) for row in ROWS]
    if encoding == "pack":
        documents = [([*chain(*(ids for ids, _ in documents))], [*chain(*(labels for _, labels in documents))])]
        assert batch["segments"].max() == 3
    rows = sorted((batch["tokens"][row].tolist(), batch["labels"][row].tolist()) for row in range(len(documents)))
    padded = [(ids + [0] * (64 - len(ids)), labels + [-1] * (64 - len(labels))) for ids, labels in documents]
    assert rows == sorted(padded)
    np.testing.assert_array_equal(batch["weights"], batch["labels"] >= 0)
    assert cache.train.sections[0].shard.learned == sum(label >= 0 for _, labels in documents for label in labels)


def test_a_window_has_the_labels_of_its_new_tokens_only(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ROWS[:1], encoding={"type": "windows", "stride": 4}, sequence_length=8)
    cache, data = batch_of(recipe)
    seen = np.concatenate([data.batch(step)["labels"] for step in range(-(-data.examples // 3))])[: data.examples]
    labels = expected(recipe, cache, ROWS[0])[1][1:]
    assert sorted(label for row in seen.tolist() for label in row if label >= 0) == sorted(
        label for label in labels if label >= 0
    )


@pytest.mark.parametrize("of_tokens", [False, True], ids=["labelled", "tagged"])
def test_batches_of_labelled_texts_look_as_planned_and_padding_rows_have_no_label(
    tmp_path: Path, of_tokens: bool
) -> None:
    rows = ROWS[:2] if of_tokens else [{"text": "the cat", "label": 1}, {"text": "a dog", "label": 0}]
    document = {"type": "tagged" if of_tokens else "labelled"}
    recipe = recipe_of(tmp_path, rows, document=document)
    cache = caches.build(recipe)
    assert cache.tokenizer is not None
    evaluated = EvalSet(
        cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=3, shifted=False
    ).batch(0)
    layout = longest_layout(recipe.data, batch_size=3, vocab_size=cache.tokenizer.vocab_size, shifted=False)
    assert layout == {name: (array.shape, array.dtype) for name, array in evaluated.items()}
    assert (evaluated["labels"][2] == -1).all() and (evaluated["labels"][:2] >= 0).any()


def test_a_shard_that_loses_copies_keeps_the_labels_of_the_others(tmp_path: Path) -> None:
    rows = [{"words": [f"cat{n % 40}", "sat"], "labels": [n % 2, (n // 2) % 2]} for n in range(60)]
    cache = caches.build(recipe_of(tmp_path, rows, name="gpt2", held_out=0.4))
    assert cache.copies
    (stream,) = cache.validation.values()
    by_text = {f"cat{n} sat": [n % 2, (n // 2) % 2] for n in range(40)}
    found = 0
    for number in range(len(stream.sections)):
        arrays = stream.arrays(number)
        assert cache.tokenizer is not None and arrays.labels is not None
        for begin, end in zip([0, *arrays.ends[:-1]], arrays.ends, strict=True):
            text = cache.tokenizer.decode(arrays.tokens[begin + 1 : end - 1].tolist()).strip()
            labels = arrays.labels[begin:end]
            assert labels[labels >= 0].tolist() == by_text[text]
            found += 1
    assert found


def test_inspect_shows_each_token_with_its_label(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ROWS[:1], name="gpt2", encoding={"type": "pad"})
    cache, data = batch_of(recipe)
    (piece,) = next(show(cache, data, 0)).pieces
    text = "".join(text for text, _ in piece.runs)
    assert text.replace(room.END, "") == " [O]The cat[B] sat[O] on [B]naïve [O]🙂 mat[B]s"
    assert sum(learned for _, learned in piece.runs) == 6


def test_exported_tokens_have_their_labels_beside_them(tmp_path: Path) -> None:
    from pyarrow import parquet

    recipe = recipe_of(tmp_path)
    cache = caches.build(recipe)
    (path,) = export(cache, recipe.data, tmp_path / "out")
    rows = parquet.read_table(path).to_pylist()
    assert [(row["tokens"], row["labels"]) for row in rows] == [expected(recipe, cache, row) for row in ROWS]


@pytest.mark.parametrize(
    ("row", "document", "problem", "hint"),
    [
        ({"tokens": [], "labels": []}, {}, "has no 'words'; found: 'tokens', 'labels'", 'did you mean "tokens"?'),
        ({"words": ["a"], "ner_tags": [0]}, {}, "has no 'labels'", 'did you mean "ner_tags"?'),
        ({"words": "a b", "labels": [0, 1]}, {}, "'words' is a string, not a list", "document.words"),
        ({"words": ["a", "b"], "labels": [0]}, {}, "differ in length: 2 words, 1 labels", "each word has a label"),
        ({"words": ["a", 7], "labels": [0, 0]}, {}, "'words[1]' is a number, not a string", ""),
        ({"words": ["a"], "labels": [2]}, {"classes": CLASSES}, "'labels[0]' is 2, but there are 2 classes", "0 to 1"),
        ({"words": ["a"], "labels": ["b"]}, {"classes": CLASSES}, "none of the classes: 'O', 'B'", "mean 'B'?"),
        ({"words": ["a"], "labels": ["B"]}, {}, "'labels[0]' is 'B', not a number", 'classes = ["B", …]'),
        ({"words": ["a"], "labels": [-1]}, {}, "'labels[0]' is -1; labels count from 0", ""),
        ({"words": ["a"], "labels": [1 << 15]}, {}, "labels of words are less than 32768", ""),
    ],
)
def test_words_that_cannot_be_labelled_are_refused(row: Any, document: Any, problem: str, hint: str) -> None:
    found = make(Tagged(type="tagged", **document), row, 0, RowContext())
    assert isinstance(found, tuple)
    assert problem in found[0] and hint in found[1]


def test_a_label_outside_the_classes_stops_the_caching_with_file_and_row(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match=r"'labels\[1\]' is 5, but there are 2 classes") as told:
        caches.build(recipe_of(tmp_path, [*ROWS, {"words": ["a", "b"], "labels": [0, 5]}]))
    assert told.value.where == f"{tmp_path / 'rows.jsonl'}:4"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"words": ["cat", "dog"], "labels": [1, None]}] * 3, "every label is 1 (B): with one class there is nothing"),
        ([{"words": ["cat", "dog"], "labels": [None, -100]}], "of 4 tokens none are learned"),
    ],
    ids=["one class", "no label"],
)
def test_labels_that_teach_nothing_are_an_error(tmp_path: Path, rows: list[dict[str, Any]], problem: str) -> None:
    recipe = recipe_of(tmp_path, rows)
    problems = find_problems(caches.build(recipe), recipe)
    assert [found.level for found in problems].count("error") == 1
    assert problem in problems[0].message


def test_concatenated_documents_have_no_labels_and_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'"pad", "pack" or "windows"'):
        recipe_of(tmp_path, encoding={"type": "concatenate"})


@pytest.mark.parametrize("name", KINDS)
def test_ids_and_labels_are_those_of_the_usual_recipe_with_transformers(
    tmp_path: Path, reference: Reference, name: str
) -> None:
    path = likeness.write(name, tmp_path / name)
    rng = np.random.default_rng(0)
    pool = ["cat's", "naïve", "東京", "U.S.", "barked,", "🙂", "the", "42nd", "don’t", "re-entry", "ẞharp"]
    rows = [
        {"words": words, "labels": rng.integers(0, 5, len(words)).tolist()}
        for words in (rng.choice(pool, rng.integers(1, 9)).tolist() for _ in range(40))
    ]
    document = Tagged(type="tagged")
    pieces = [make(document, row, 0, RowContext())[0] for row in rows]
    found = vocabulary.load(path).encode_labelled([(p.text, p.token_labels) for p in pieces], words=True)
    for (ids, labels), other in zip(found, reference.tagged(tmp_path / name, rows), strict=True):
        assert ids == other["ids"]
        assert np.where(labels < 0, -100, labels).tolist() == other["labels"]


@pytest.mark.parametrize(("shift", "beside"), [(0, ""), (1, "before"), (-1, "after")])
def test_labels_that_fit_the_words_beside_theirs_are_a_warning(tmp_path: Path, shift: int, beside: str) -> None:
    """The word "cat" has the label B, and no other."""
    chance, rows = np.random.default_rng(0), []
    for _ in range(40):
        words = chance.choice(["The", "cat", "sat", "on"], size=9).tolist()
        labels = [CLASSES[word == "cat"] for word in words]
        rows.append({"words": words, "labels": labels[-shift:] + labels[:-shift]})
    recipe = recipe_of(tmp_path, rows)
    found = [each for each in find_problems(caches.build(recipe), recipe) if "shifted" in each.message]
    assert len(found) == bool(shift)
    if shift:
        assert found[0].level == "warning" and f"fit the words {beside} theirs better" in found[0].message
        assert found[0].message.endswith("rows.jsonl:1")


def test_shifted_labels_are_found_where_the_first_shard_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "_BATCH_BYTES", 1)
    monkeypatch.setattr(encode, "SHARD_TOKENS", 1)
    chance, rows = np.random.default_rng(0), [{"words": ["sat", "on"], "labels": [None, None]}]
    for _ in range(40):
        words = chance.choice(["The", "cat", "sat", "on"], size=9).tolist()
        labels = [CLASSES[word == "cat"] for word in words]
        rows.append({"words": words, "labels": [*labels[1:], labels[0]]})
    recipe = recipe_of(tmp_path, rows)
    cache = caches.build(recipe)
    assert len(cache.train.sections) > 1 and not cache.train.sections[0].shard.learned
    (found,) = [each for each in find_problems(cache, recipe) if "shifted" in each.message]
    assert found.message.endswith("rows.jsonl:2")
