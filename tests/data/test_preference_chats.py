"""Preferences that are conversations: the tokens that trl gives them, and which rows are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import likeness
import pytest
from reference import Reference

from trainkit.data.cache import build as caches
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.documents.pieces import RowContext
from trainkit.data.documents.preferences import make
from trainkit.infer.text_format import chat_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.paired_documents import PreferenceChat

CHATS = [name for name in likeness.FAMILIES if likeness.FAMILIES[name]().template]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


#: As UltraFeedback has them: both are whole conversations.
ROWS = [
    {
        "chosen": [user("question: naïve?"), assistant("a value 🙂")],
        "rejected": [user("question: naïve?"), assistant("no")],
    },
    {
        "chosen": [user("hello"), assistant("good day"), user("42 cats?"), assistant("there are 42 cats\n\nand a dog")],
        "rejected": [user("hello"), assistant("good day"), user("42 cats?"), assistant("there are 4")],
    },
    {"chosen": [user("key"), assistant("<s> </s>?")], "rejected": [user("key"), assistant("value")]},
]


def recipe_of(directory: Path, name: str, rows: list[dict[str, Any]], **document: Any) -> Recipe:
    path = likeness.write(name, directory / name)
    room.write_rows(directory / "rows.jsonl", rows)
    source = {"path": str(directory / "rows.jsonl"), "document": {"type": "preference-chat"} | document}
    encoding = {"type": "pad", "bos": False, "eos": False}
    return room.recipe(directory, source, tokenizer={"path": str(path)}, encoding=encoding, sequence_length=256)


def sequences(recipe: Recipe) -> list[tuple[int, list[list[int]]]]:
    """Of each pair, how many tokens are not learned, and the ids of both sequences."""
    cache, found = caches.build(recipe), []
    for number in range(len(cache.train.sections)):
        arrays = cache.train.arrays(number)
        assert arrays.marks is not None
        for begin, end in zip([0, *arrays.ends[:-1]], arrays.ends, strict=True):
            ids, marks = arrays.tokens[begin:end], arrays.marks[begin:end]
            second = marks & SECOND > 0
            (first,) = {int((marks[side] & LEARNED == 0).sum()) for side in (second, ~second)}
            assert all((marks[side][first:] & LEARNED).all() for side in (second, ~second))
            found.append((first, [ids[~second].tolist(), ids[second].tolist()]))
    return found


@pytest.mark.parametrize("explicit", [False, True], ids=["whole conversations", "prompt"])
@pytest.mark.parametrize("name", CHATS)
def test_the_tokens_of_both_conversations_are_those_of_trl(
    tmp_path: Path, reference: Reference, name: str, explicit: bool
) -> None:
    if not reference.has("trl"):
        pytest.skip("no trl to compare with: the Python of the reference has torch, but .ci/run has not installed trl")
    rows = ROWS
    if explicit:
        rows = [{"prompt": r["chosen"][:-1], "chosen": r["chosen"][-1:], "rejected": r["rejected"][-1:]} for r in ROWS]
    mine = sequences(recipe_of(tmp_path, name, rows, **({"prompt": "prompt"} if explicit else {})))
    theirs = [(one["begin"], one["ids"]) for one in reference.pairs(tmp_path / name, rows)]
    assert mine == theirs


TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    "here",
)
#: What it writes of each earlier turn depends on how many turns there are.
COUNTS = ChatTemplate("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", "here")


@pytest.mark.parametrize(
    ("row", "template", "problem"),
    [
        ({"chosen": ROWS[0]["chosen"]}, TEMPLATE, "has no 'rejected'; found: 'chosen'"),
        ({"chosen": ROWS[0]["chosen"], "rejected": "no"}, TEMPLATE, "'rejected' is a string, not a list of messages"),
        ({"chosen": ROWS[0]["chosen"], "rejected": ROWS[0]["chosen"]}, TEMPLATE, "the same answer"),
        ({"chosen": ROWS[0]["chosen"], "rejected": ROWS[0]["chosen"][:1]}, TEMPLATE, "'rejected' has no answer of"),
        ({"chosen": [assistant("a")], "rejected": [assistant("b")]}, TEMPLATE, "no messages before the answers"),
        (
            {"chosen": ROWS[0]["chosen"], "rejected": [*ROWS[0]["chosen"][:1], assistant(" ")]},
            TEMPLATE,
            "has an empty answer in 'rejected'",
        ),
        (ROWS[0], COUNTS, "differently when an answer follows"),
    ],
)
def test_conversations_that_cannot_be_compared_are_refused(row: Any, template: ChatTemplate, problem: str) -> None:
    found = make(PreferenceChat(type="preference-chat"), row, 0, RowContext(chat=template))
    assert isinstance(found, tuple)
    assert problem in found[0]


def test_a_table_and_lines_of_json_give_the_same_pairs_and_the_recipe_its_chat_template(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    recipe = recipe_of(tmp_path, "qwen", ROWS)
    expected = sequences(recipe)
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    document = recipe.data.train[0].document  # type: ignore[union-attr]
    stored = recipe.data.train[0].model_copy(update={"path": (str(tmp_path / "rows.parquet"),)})
    other = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": (stored,)})})
    assert sequences(other) == expected
    assert chat_of(recipe) == document.chat_template
