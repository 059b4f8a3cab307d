"""Tokenizers give every text back, and are found, trained and refused as the recipe says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import data_room as room
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import SUPPORT
from tokenizers import Tokenizer, models, pre_tokenizers

from trainkit.data.tokenizer.load import peek_vocab_size
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError

CODEC = LoadedTokenizer(Path("tokenizer.json"), room.tokenizer_json().encode())
END = "<|endoftext|>"
some_text = st.lists(st.one_of(st.text(max_size=20), st.just(END), st.just(END[:7]))).map("".join)


@settings(max_examples=150, deadline=None)
@given(some_text)
def test_any_text_comes_back_also_where_it_names_the_end_of_text_token(text):
    ids = CODEC.encode(text)
    assert CODEC.decode(ids) == text
    assert CODEC.end_of_text not in ids


def test_special_tokens_are_shown_by_their_names():
    assert CODEC.decode([CODEC.end_of_text]) == END


def test_a_tokenizer_that_cuts_pads_and_adds_tokens_is_kept_from_it(tmp_path):
    tokenizer = Tokenizer.from_str(room.tokenizer_json())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(single=f"{END} $A {END}", special_tokens=[(END, 0)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    opened = room.open_tokenizer(room.recipe(tmp_path, "x", tokenizer={"path": str(path)}))
    assert opened.encode(room.text(1)) == CODEC.encode(room.text(1))


def test_a_directory_stands_for_the_tokenizer_in_it(tmp_path):
    (tmp_path / "tokenizer.json").write_text(room.tokenizer_json(310), encoding="utf-8")
    recipe = room.recipe(tmp_path, "x", tokenizer={"path": str(tmp_path)})
    assert room.open_tokenizer(recipe).vocab_size == peek_vocab_size(recipe) == 310


@pytest.mark.parametrize("name", ["</s>", "<eos>", "<|end_of_text|>"])
def test_the_end_of_text_token_is_found_by_its_usual_names(tmp_path, name):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_wordlevel({"a": 0, name: 7})), encoding="utf-8")
    opened = room.open_tokenizer(room.recipe(tmp_path, "x", tokenizer={"path": str(path)}))
    assert (opened.end_of_text, opened.vocab_size, opened.dtype) == (7, 8, "uint16")


def test_more_than_65536_entries_are_stored_in_four_bytes():
    def codec(size: int) -> LoadedTokenizer:
        return LoadedTokenizer(Path("t"), json.dumps(_wordlevel({END: 0, "a": size - 1})).encode())

    assert (codec(65536).dtype, codec(65537).dtype) == ("uint16", "uint32")


def _wordlevel(vocabulary: dict[str, int]) -> dict:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("not json", "is not a tokenizer"),
        ("{}", "is not a tokenizer"),
        (json.dumps(_wordlevel({"a": 0})), "no end-of-text token; looked for <|endoftext|>"),
    ],
)
def test_a_file_that_is_no_usable_tokenizer_is_reported(tmp_path, content, problem):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TrainkitError, match="(?s)" + problem.replace("|", r"\|")) as caught:
        room.open_tokenizer(room.recipe(tmp_path, "x", tokenizer={"path": str(path)}))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing.json", "no such file"), ("./some/where/else", "no such file"), (".", "holds no tokenizer.json")],
)
def test_a_tokenizer_that_is_not_there_is_reported(tmp_path, monkeypatch, name, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainkitError, match=problem):
        room.open_tokenizer(room.recipe(tmp_path, "x", tokenizer={"path": name}))


def test_a_hub_id_without_a_network_names_the_local_ways(tmp_path):
    recipe = room.recipe(tmp_path, "x", tokenizer={"path": "trainkit-tests/not-there"})
    assert peek_vocab_size(recipe) is None
    with pytest.raises(TrainkitError, match="fetching it from the Hugging Face hub failed") as caught:
        room.open_tokenizer(recipe)
    assert "local tokenizer.json" in caught.value.hint
    assert not list(tmp_path.glob("cache/tokenizers/*"))


def test_a_tokenizer_is_trained_once_on_training_documents_only_and_the_same_in_every_process(tmp_path):
    room.write_texts(tmp_path / "text", 30)
    held_out = next(i for i in range(1000, 1100) if _is_held_out(room.write_texts(tmp_path / "text", 1, first=i), i))
    path = tmp_path / "text" / f"part{held_out % 3}" / f"{held_out:04d}.txt"
    path.write_text("qzqz" * 1000, encoding="utf-8")
    recipe = room.recipe(
        tmp_path, tmp_path / "text" / "**" / "*.txt", tokenizer={"train": {"vocab_size": 320}}, held_out=0.1
    )
    opened = room.open_tokenizer(recipe)
    assert opened.vocab_size <= 320
    assert opened.path.is_relative_to(tmp_path / "cache")
    assert len(opened.encode("qzqz")) == 4, "held-out text has taught it"
    assert len(opened.encode("alpha")) < 5, "training text has not"
    written = opened.path.stat()
    assert room.open_tokenizer(recipe).path.stat() == written

    opened.path.unlink()
    script = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import data_room as room;"
        "from trainkit.recipe import Recipe;"
        "print(room.open_tokenizer(Recipe.model_validate_json(sys.stdin.read())).fingerprint)"
    )
    again = subprocess.run(
        [sys.executable, "-c", script],
        input=recipe.model_dump_json(by_alias=True),
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.strip() == opened.fingerprint


def test_a_trained_tokenizer_has_a_mask_token_where_the_recipe_asks_for_one(tmp_path):
    room.write_texts(tmp_path / "text", 5)
    source = tmp_path / "text" / "**" / "*.txt"
    plain, masked = (
        room.open_tokenizer(room.recipe(tmp_path, source, tokenizer={"train": {"vocab_size": 300} | mask}))
        for mask in ({}, {"mask": True})
    )
    assert plain.mask is None and masked.mask == masked.special_tokens["<|mask|>"]
    assert plain.path != masked.path and plain.end_of_text == masked.end_of_text == 0


def _is_held_out(root: Path, number: int) -> bool:
    from trainkit.data.sources.splits import whole

    return whole(room.a_file(f"part{number % 3}/{number:04d}.txt"), 0, 0.1) == "held-out"


def test_no_text_trains_no_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text("", encoding="utf-8")
    recipe = room.recipe(tmp_path, tmp_path / "a.txt", tokenizer={"train": {"vocab_size": 300}})
    with pytest.raises(TrainkitError, match="no text to train a tokenizer on"):
        room.open_tokenizer(recipe)
    assert not list(tmp_path.glob("cache/tokenizers/*"))
