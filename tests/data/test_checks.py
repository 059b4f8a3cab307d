"""What is suspicious about the data is found before the first step, with counts and an example."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from trainkit.data import checks
from trainkit.data.cache import build as caches
from trainkit.data.checks import find_problems
from trainkit.data.problems import DataProblem
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

DISTINCT = [f"{i} {room.text(i)}" for i in range(120)]


def findings(recipe: Recipe) -> list[DataProblem]:
    return find_problems(caches.build(recipe), recipe)


def the_one(recipe: Recipe, level: str) -> str:
    """The message of the only finding of a recipe."""
    (finding,) = findings(recipe)
    assert finding.level == level
    return finding.message


def prompts(path: Path, rows: list[tuple[str, str]]) -> dict[str, Any]:
    room.write_rows(path, [{"q": question, "a": answer} for question, answer in rows])
    return {"path": str(path), "document": {"type": "prompt", "prompt": "{q}", "response": "{a}"}}


def test_nothing_is_said_of_ordinary_data(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", DISTINCT)
    room.write_jsonl(tmp_path / "b.jsonl", ["another"])
    encodings = ({"type": "concatenate"}, {"type": "pack", "too_long": "split"}, {"type": "windows"}, {"type": "pad"})
    for encoding in encodings:
        recipe = room.recipe(
            tmp_path,
            tmp_path / "a.jsonl",
            held_out=0.1,
            encoding=encoding,
            sequence_length=256,
            validation=({"path": str(tmp_path / "b.jsonl")},),
        )
        assert findings(recipe) == []


def masked(path: Path, rows: list[tuple[list[int], list[bool]]]) -> dict[str, Any]:
    """A table of token ids, and which are learned."""
    import pyarrow as pa
    from pyarrow import parquet

    ids, learned = zip(*rows, strict=True)
    parquet.write_table(pa.table({"tokens": list(ids), "learned": list(learned)}), path)
    return {"type": "tokens", "path": str(path)}


def test_where_nothing_is_learned_it_is_an_error_that_shows_the_first_document(tmp_path):
    ids = Tokenizer.from_str(room.tokenizer_json()).encode("masked text").ids
    source = masked(tmp_path / "a.parquet", [(ids, [False] * len(ids))])
    message = the_one(room.recipe(tmp_path, source, encoding={"eos": False}), "error")
    assert message.startswith(f"train: of {len(ids)} tokens none are learned")
    assert f"'masked text' (learned: 0 of {len(ids)})" in message


def test_where_hardly_anything_is_learned_it_is_a_warning_with_the_count(tmp_path):
    source = prompts(tmp_path / "a.jsonl", [(room.text(i, 200), "a") for i in range(3)])
    recipe = room.recipe(tmp_path, source)
    tokens = caches.build(recipe).train.tokens
    message = the_one(recipe, "warning")
    assert f"train: of {tokens:,} tokens only 6 are learned" in message
    assert repr(room.text(0, 200)[:20])[:-1] in message
    enough = prompts(tmp_path / "a.jsonl", [(room.text(i, 50), room.text(i, 5)) for i in range(3)])
    assert findings(room.recipe(tmp_path, enough)) == []


def test_tokens_that_are_unknown_are_counted_and_shown_where_they_are(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, room.END: 1, "known": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    given = {"tokenizer": {"path": str(tmp_path / "words.json")}}
    rows = [f"{'known ' * (i + 1)}" for i in range(60)]
    recipe = room.recipe(tmp_path, room.write_jsonl(tmp_path / "a.jsonl", rows), **given)
    assert findings(recipe) == []
    recipe = room.recipe(tmp_path, room.write_jsonl(tmp_path / "a.jsonl", [*rows, "known other known else"]), **given)
    tokens = caches.build(recipe).train.tokens
    message = the_one(recipe, "warning")
    assert f"train: 2 of {tokens:,} tokens ({2 / tokens:.1%}) are unknown to the tokenizer, as in" in message
    assert "known <unk> known <unk>" in message


@pytest.mark.parametrize(
    ("encoding", "told", "lost"),
    [
        ({"type": "pack"}, "10 cut off", 10 * 20),
        ({"type": "pad", "too_long": "drop"}, "10 dropped", 10 * 30),
        ({"type": "pad", "too_long": "split", "min_length": 5}, "110 dropped", 110),
        ({"type": "windows", "min_length": 5}, "110 dropped", 110),
    ],
)
def test_what_is_cut_off_or_dropped_is_counted(tmp_path, encoding, told, lost):
    assert len(Tokenizer.from_str(room.tokenizer_json()).encode("q" * 30).ids) == 30
    rows = ["q" * 30] * 10 + ["z"] * 110
    recipe = room.recipe(tmp_path, room.write_jsonl(tmp_path / "a.jsonl", rows), encoding=encoding, sequence_length=10)
    (found,) = [finding for finding in findings(recipe) if "targets" in finding.message]
    assert found.level == "warning"
    assert found.message == f"train: of 120 documents {told}; {lost} of 410 targets ({lost / 410:.1%}) are lost"


def test_a_little_that_is_cut_off_is_worth_a_line_and_no_warning(tmp_path):
    rows = [*DISTINCT, "q" * 300]
    recipe = room.recipe(
        tmp_path, room.write_jsonl(tmp_path / "a.jsonl", rows), encoding={"type": "pack"}, sequence_length=256
    )
    message = the_one(recipe, "info")
    assert "train: of 121 documents 1 cut off; 44 of " in message


def test_duplicates_are_counted_with_two_places_where_one_is(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", [*DISTINCT[:7], "twice", *DISTINCT[7:90], "twice", "twice"])
    message = the_one(room.recipe(tmp_path, path), "warning")
    assert message == f"train: 2 of 93 documents (2.2%) repeat an earlier one, such as {path}:8 and {path}:92"


def test_documents_of_a_validation_set_that_are_trained_on_are_counted_with_a_place(tmp_path):
    train = room.write_jsonl(tmp_path / "a.jsonl", DISTINCT)
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text"], ["another"], [DISTINCT[3]]])
    recipe = room.recipe(tmp_path, train, validation=({"path": str(tmp_path / "own.csv"), "name": "own"},))
    message = the_one(recipe, "warning")
    assert message.startswith("own: 1 of 2 documents are also in the training data, such as ")
    assert message.endswith(f"{tmp_path / 'own.csv'}:row 1")


def test_of_very_many_documents_a_part_is_compared_and_it_is_the_same_part_in_every_set(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_COMPARED", 16)
    train = room.write_jsonl(tmp_path / "a.jsonl", DISTINCT)
    own = room.write_jsonl(tmp_path / "own.jsonl", DISTINCT[:60])
    cache = caches.build(room.recipe(tmp_path, train, validation=({"path": str(own)},)))
    shift = max(0, cache.train.documents.bit_length() - checks._COMPARED.bit_length())
    assert shift
    trained, validated = (checks._hashes(stream, shift) for stream in (cache.train, cache.validation["validation"]))
    assert 0 < len(trained) < 60
    assert np.isin(validated, trained).all()
    (finding,) = checks._duplicates(cache)
    assert (
        f"validation: {len(validated)} of {len(validated)} documents are also in the training data" in finding.message
    )


def test_documents_beyond_a_limit_are_no_duplicates(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", [*DISTINCT, *DISTINCT])
    assert findings(room.recipe(tmp_path, {"path": str(path), "limit": 120})) == []
    assert "120 of 240" in the_one(room.recipe(tmp_path, path), "warning")


@pytest.mark.parametrize("highest", [300, 40_000, 70_000])
def test_an_id_that_the_tokenizer_does_not_have_is_an_error_with_its_file(tmp_path, highest):
    np.save(tmp_path / "a.npy", np.array([5, highest, 7]))
    source = {"type": "tokens", "path": str(tmp_path / "a.npy")}
    with pytest.raises(
        TrainkitError, match=f"the token id {highest:,} is not in the tokenizer's vocabulary of 300"
    ) as e:
        caches.build(room.recipe(tmp_path, source))
    assert e.value.where == str(tmp_path / "a.npy")


def test_what_was_left_out_is_counted(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", [*DISTINCT, "short", "", "short too"])
    with path.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    source = {"path": str(path), "min_characters": 1}
    messages = [(f.level, f.message) for f in findings(room.recipe(tmp_path, source, on_error="skip"))]
    assert messages[0][0] == "warning"
    told = r"1 document \(0.8% of all, 0.\d% of the bytes\) was skipped as unreadable: a.jsonl:124: is not JSON"
    assert re.match(told, messages[0][1]), messages[0][1]
    longer = source | {"min_characters": 20}
    messages = [(f.level, f.message) for f in findings(room.recipe(tmp_path, longer, on_error="skip"))]
    assert ("info", "3 documents are too short or too long (min_characters, max_characters) and left out") in messages
    with path.open("a", encoding="utf-8") as file:
        file.write("{broken too\n")
    messages = [(f.level, f.message) for f in findings(room.recipe(tmp_path, {"path": str(path)}, on_error="skip"))]
    told = r"2 documents \(1.6% of all, 0.\d% of the bytes\) were skipped as unreadable: such as a.jsonl:124: is"
    assert re.match(told, messages[0][1]), messages[0][1]
    assert ("info", "1 document has no text and was left out") in messages


def test_what_was_skipped_is_reported_by_reason_with_its_share_of_documents_and_of_bytes(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", DISTINCT[:50])
    size = sum(len(text.encode()) for text in DISTINCT[:50])
    rows = [{"text": number} for number in range(7)] + [{"body": "x" * 30}] * 2
    room.write_rows(tmp_path / "b.jsonl", [*rows, {"text": "fine"}])
    (tmp_path / "latin.txt").write_bytes(b"na\xefve " * size)
    sources = {"path": (str(tmp_path / "*.jsonl"), str(tmp_path / "*.txt"))}
    messages = [f.message for f in findings(room.recipe(tmp_path, sources, on_error="skip"))]
    assert len(messages) == 3
    assert re.match(r"1 document \(1.6% of all, 85\.\d% of the bytes\) .*: latin.txt:byte 2: is not UTF-8", messages[0])
    assert re.match(
        r"2 documents \(3.3% of all, 0.\d% of the bytes\) .*: such as b.jsonl:8: has no 'text'", messages[1]
    )
    assert re.match(r"7 documents \(11.5% of all\) .*: such as b.jsonl:1: 'text' is a number", messages[2])


@pytest.mark.parametrize("kind", ["train", "validation"])
@pytest.mark.parametrize("begin", [caches.build, caches.begin])
def test_a_source_of_which_every_document_is_skipped_is_an_error_that_names_it(tmp_path, kind, begin):
    good = {"path": str(room.write_jsonl(tmp_path / "a.jsonl", DISTINCT))}
    bad = {"path": str(room.write_rows(tmp_path / "b.jsonl", [{"body": "one"}, {"body": "two"}]))}
    sets = {"train": [good, bad]} if kind == "train" else {"train": [good], "validation": (good | {"name": "a"}, bad)}
    recipe = room.recipe(tmp_path, *sets.pop("train"), on_error="skip", shuffle=False, **sets)
    with pytest.raises(
        TrainkitError, match=r"all of its 2 documents cannot be read.*b.jsonl:1: has no 'text'"
    ) as found:
        begin(recipe).wait()
    assert found.value.where == f"data.{kind}.1"
    with pytest.raises(TrainkitError, match="all of its 2 documents cannot be read"):
        caches.find(recipe)


def test_where_no_document_can_be_read_a_tokenizer_that_is_to_be_trained_names_the_first(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    recipe = room.recipe(tmp_path, tmp_path / "a.txt", on_error="skip", tokenizer={"train": {"vocab_size": 300}})
    with pytest.raises(TrainkitError, match=r"1 document cannot be read, such as a.txt:byte 3: is not UTF-8"):
        caches.build(recipe)


def test_a_reason_keeps_the_name_of_the_encoding_and_leaves_out_the_numbers(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    good = room.write_jsonl(tmp_path / "b.jsonl", DISTINCT)
    with pytest.raises(TrainkitError, match=r"a.txt:byte 3: is not UTF-8\n") as found:
        caches.build(room.recipe(tmp_path, good, tmp_path / "a.txt", on_error="skip"))
    assert found.value.where == "data.train.1"


def test_of_a_growing_cache_only_what_is_there_is_looked_at(tmp_path, monkeypatch):
    import threading

    room.small_units(monkeypatch)
    for number in range(20):
        room.write_jsonl(tmp_path / f"{number:02d}.jsonl", ["same"] * 30)
    recipe = room.recipe(tmp_path, tmp_path / "*.jsonl", shuffle=False)
    opened = threading.Event()
    room.before_each_unit(monkeypatch, lambda unit: unit.files[0].name == "00.jsonl" or opened.wait(60))
    cache = caches.begin(recipe)
    cache.train.wait(10)
    assert find_problems(cache, recipe) == []
    opened.set()
    cache.wait()
    (finding,) = find_problems(cache, recipe)
    assert "599 of 600 documents" in finding.message


@pytest.mark.parametrize("learned", [True, False], ids=["learned", "masked"])
def test_an_end_of_turn_that_is_never_learned_is_an_error_with_the_row(tmp_path: Path, learned: bool) -> None:
    said = "{% generation %}{{ m.content }}END{% endgeneration %}"
    said = said if learned else "{% generation %}{{ m.content }}{% endgeneration %}END"
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}SAID{% else %}{{ m.content }}END{% endif %}{% endfor %}"
    )
    template = template.replace("SAID", said).replace("END", room.END)
    (tmp_path / "chat.jinja").write_text(template)
    rows = [
        {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": f"{i} more"}] * 2}
        for i in range(5)
    ]
    room.write_rows(tmp_path / "chats.jsonl", rows)
    document = {"type": "chat", "template": str(tmp_path / "chat.jinja")}
    source = {"path": str(tmp_path / "chats.jsonl"), "document": document}
    found = findings(room.recipe(tmp_path, source, encoding={"type": "pad", "eos": False}))
    errors = [problem.message for problem in found if problem.level == "error"]
    if learned:
        assert not errors
    else:
        (message,) = errors
        assert "chats.jsonl:1" in message and room.END in message and "generation" in message
