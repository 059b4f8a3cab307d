"""A plugin adds a source that makes its rows itself, and a type of document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.errors import TrainkitError
from trainkit.infer.text_format import chat_of
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import load

PLUGIN = '''
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from trainkit.recipe.sections.document_spec import ChatTemplateChoice, DocumentSpec
from trainkit.recipe.sections.source import CustomRows
from trainkit.recipe.spec import Count


class Squares(CustomRows):
    """The first whole numbers and their squares."""

    type: Literal["squares"]
    count: Count
    """How many."""
    folder: str | None = None

    path_keys: ClassVar[tuple[str, ...]] = ("folder",)

    def identity(self) -> str:
        return f"squares {self.count}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for number in range(self.count):
            yield {"n": number, "square": 1 / (number - 7) if self.count == 13 else number * number}


class Byte(DocumentSpec):
    """One whole number below 256."""

    type: Literal["byte"]
    key: str

    examples: ClassVar[str] = "trainkit.data.batches.examples:record_examples"
    stored_as: ClassVar[str] = "byte"

    @property
    def form(self) -> str:
        return "byte"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def make(self, row, index, context):
        import numpy as np

        from trainkit.data.documents.pieces import Piece

        number = row[self.key]
        if number > 255:
            return f"{number} is no byte", ""
        return [Piece(index=index, ids=np.array([number], np.uint8))]

    def width(self) -> int:
        return 1

    def decode(self, rows):
        return {"byte": rows[:, 0]}


class Digits(DocumentSpec):
    """The digits of a whole number, as text."""

    type: Literal["digits"]
    key: str

    def make(self, row, index, context):
        from trainkit.data.documents.pieces import text_pieces

        return list(text_pieces(index, [str(row[self.key])]))


class Question(DocumentSpec):
    """A number that a person asks for, as a chat template writes it."""

    type: Literal["quiz"]
    key: str
    jinja: str

    @property
    def chat_template(self) -> ChatTemplateChoice:
        return ChatTemplateChoice(path=self.jinja)

    @property
    def path_keys(self) -> tuple[str, ...]:
        return ("jinja",)

    def make(self, row, index, context):
        from trainkit.data.documents.chat_template import render
        from trainkit.data.documents.pieces import text_pieces

        asked = {"role": "user", "content": str(row[self.key])}
        return list(text_pieces(index, [render(context.chat, [asked])]))
'''
RECIPE = """
schema = 1
[plugins]
files = ["mine.py"]
[model]
type = "gpt2"
layers = 1
hidden = 16
heads = 2
[data]
[[data.train]]
type = "squares"
count = 12
document = { type = "columns", features = ["n"], target = "square" }
[train]
steps = 1
batch_size = 12
[optimizer]
learning_rate = 1e-3
"""


def opened(directory: Path, recipe: str = RECIPE, *, cache: Path | None = None, plugin: str = PLUGIN) -> Recipe:
    (directory / "mine.py").write_text(plugin)
    (directory / "mine.toml").write_text(recipe)
    return load(directory / "mine.toml", (f"data.cache={cache or directory / 'cache'}",)).recipe


def test_a_source_of_a_plugin_is_cached_shuffled_and_found_again(tmp_path: Path) -> None:
    recipe = opened(tmp_path)
    batch = TrainSet(caches.build(recipe), recipe).batch(0)
    assert sorted(zip(batch["features"][:, 0], batch["target"], strict=True)) == [(n, n * n) for n in range(12)]
    assert caches.find(recipe) is not None
    assert caches.find(opened(tmp_path, RECIPE.replace("count = 12", "count = 11"))) is None


def test_a_document_of_a_plugin_may_be_written_with_a_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asks.jinja").write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}")
    text = RECIPE.replace(
        '{ type = "columns", features = ["n"], target = "square" }',
        '{ type = "quiz", key = "square", jinja = "asks.jinja" }',
    ).replace("[data]\n", "[tokenizer]\ntrain = { vocab_size = 260 }\n[data]\nsequence_length = 16\n")
    recipe = opened(tmp_path, text)
    template = chat_of(recipe)
    assert template is not None and template.path == str(tmp_path / "asks.jinja")
    cache = caches.build(recipe)
    rows = TrainSet(cache, recipe).batch(0)["tokens"].tolist()
    assert cache.tokenizer is not None and any("<user> " in cache.tokenizer.decode(row) for row in rows)


def test_a_document_of_a_plugin_makes_its_own_batches_and_refuses_rows(tmp_path: Path) -> None:
    text = RECIPE.replace(
        '{ type = "columns", features = ["n"], target = "square" }', '{ type = "byte", key = "square" }'
    )
    recipe = opened(tmp_path, text)
    batch = TrainSet(caches.build(recipe), recipe).batch(0)
    assert batch.keys() == {"byte"} and sorted(batch["byte"]) == [n * n for n in range(12)]
    assert batch["byte"].dtype == np.uint8
    with pytest.raises(TrainkitError, match=r"squares 20:row 16: .*256 is no byte"):
        caches.build(opened(tmp_path, text.replace("count = 12", "count = 20")))


def test_rows_are_made_again_after_the_plugin_that_makes_them_was_changed(tmp_path: Path) -> None:
    text = RECIPE.replace(
        '{ type = "columns", features = ["n"], target = "square" }', '{ type = "byte", key = "square" }'
    )
    caches.build(opened(tmp_path, text))
    assert caches.find(opened(tmp_path, text)) is not None
    recipe = opened(tmp_path, text, plugin=PLUGIN.replace("np.array([number]", "np.array([255 - number]"))
    assert sorted(TrainSet(caches.build(recipe), recipe).batch(0)["byte"]) == sorted(255 - n * n for n in range(12))


def test_the_cache_of_trainkits_own_documents_stays_after_a_plugin_was_changed(tmp_path: Path) -> None:
    caches.build(opened(tmp_path))
    assert caches.find(opened(tmp_path, plugin=PLUGIN + "\n# changed\n")) is not None


def test_every_task_that_learns_from_text_learns_from_a_text_document_of_a_plugin(tmp_path: Path) -> None:
    text = RECIPE.replace('{ type = "columns", features = ["n"], target = "square" }', '{ type = "digits", key = "n" }')
    text = text.replace("[data]", "[tokenizer]\ntrain = { vocab_size = 260 }\n[data]\nsequence_length = 2")
    recipe = opened(tmp_path, text.replace("[model]", '[task]\ntype = "causal-lm"\n[model]'))
    recipe.task.check_documents(recipe.data.train)
    assert TrainSet(caches.build(recipe), recipe).batch(0)["tokens"].shape == (12, 2)


def test_what_the_source_raises_names_it(tmp_path: Path) -> None:
    recipe = opened(tmp_path, RECIPE.replace("count = 12", "count = 13"))
    with pytest.raises(TrainkitError, match="the source cannot make its rows: ZeroDivisionError") as raised:
        caches.build(recipe)
    assert "squares 13" in str(raised.value)


def test_mistakes_in_the_keys_of_the_source_are_diagnosed(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError) as raised:
        opened(tmp_path, RECIPE.replace("count = 12", "cuont = 12"))
    assert "did you mean count?" in str(raised.value)
