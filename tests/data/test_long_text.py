"""A text that comes in pieces has the tokens of the whole text, whatever the tokenizer, and is not held whole."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import data_room as room
import likeness
import numpy as np
import pytest
from tokenizers import Tokenizer, models

from trainkit.data.cache import build as caches
from trainkit.data.cache import encode
from trainkit.data.documents import pieces
from trainkit.data.jobs import Stopped
from trainkit.data.sources import splits
from trainkit.data.tokenizer import long_text, vocabulary
from trainkit.data.tokenizer.long_text import LongText
from trainkit.files import read_json

WORDS = " ".join(likeness.CORPUS).split()
PIECE = 6000


def characters(letters: str) -> str:
    return "".join(random.Random(0).choices(letters, k=3 * PIECE + 500))


def words(*between: str) -> str:
    rng = random.Random(0)
    return "".join(rng.choice(WORDS) + rng.choice(between) for _ in range(PIECE))


TEXTS = {
    "lines": words(" ", "  ", "\n", "\n\n", "\n    "),
    "one line": words(" "),
    "neither a line end nor a space": words(""),
    "digits": characters("0123456789"),
    "several bytes a character": characters("aé漢🙂e\u0301ﬁ\u1100\u1161 "),
    "one character": "a" * 3 * PIECE,
    "two characters": "ab" * 2 * PIECE,
    "spaces": " " * 3 * PIECE,
    "line ends": "\n" * 3 * PIECE,
}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    monkeypatch.setattr(long_text, "JOINT", 900)
    monkeypatch.setattr(long_text, "AFTER", 300)


def loaded(name, directory):
    return vocabulary.load(likeness.write(name, directory / name))


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_the_tokens_of_the_pieces_are_those_of_the_whole_text(tmp_path, small_pieces, name):
    tokenizer = loaded(name, tmp_path)
    for kind, whole in TEXTS.items():
        text, ids, held = LongText(tokenizer), [], []
        for piece in pieces.text_pieces(0, [whole]):
            ids += text.add(piece.text, continued=piece.continued).tolist()
            held.append(text.carried)
        assert len(held) > 2 and not text.carried and not text.is_open
        assert ids == tokenizer.encode(whole), kind
        if kind in ("lines", "one line", "several bytes a character"):
            assert max(held) <= long_text.JOINT + long_text.AFTER, "only the end of a piece is held"


@pytest.mark.parametrize("name", ["llama-2", "gpt2", "unigram"])
def test_texts_of_the_size_at_which_they_come_in_pieces_too(tmp_path, name):
    tokenizer, whole = loaded(name, tmp_path), "".join(random.Random(0).choices(WORDS, k=pieces.PIECE // 3))
    text = LongText(tokenizer)
    parts = list(pieces.text_pieces(0, [whole]))
    found = [text.add(piece.text, continued=piece.continued) for piece in parts]
    assert len(parts) > 1 and all(len(ids) for ids in found)
    assert np.concatenate(found).tolist() == tokenizer.encode(whole)
    assert [i for piece in parts for i in tokenizer.encode(piece.text)] != tokenizer.encode(whole), (
        "pieces alone differ"
    )


@pytest.mark.parametrize("name", likeness.FAMILIES)
def test_after_every_cut_another_process_can_continue(tmp_path, small_pieces, name):
    tokenizer, whole = loaded(name, tmp_path), TEXTS["lines"]
    parts = list(pieces.text_pieces(0, [whole]))
    text, done = LongText(tokenizer), 0
    for number, piece in enumerate(parts[:-1], 1):
        done += len(text.add(piece.text, continued=True))
        assert text.can_resume
        other = LongText(tokenizer)
        for before in parts[:number]:
            other.pass_over(before.text, continued=True)
        other.resume(text.carried)
        rest = [id_ for p in parts[number:] for id_ in other.add(p.text, continued=p.continued).tolist()]
        assert rest == tokenizer.encode(whole)[done:]


def test_a_text_that_cannot_be_cut_is_held_to_its_end(tmp_path, small_pieces):
    tokenizer, text = loaded("wordpiece", tmp_path), LongText(loaded("wordpiece", tmp_path))
    for _ in range(4):
        assert not len(text.add("x" * PIECE, continued=True))
        assert not text.can_resume
    assert text.add("x", continued=False).tolist() == tokenizer.encode("x" * (4 * PIECE + 1))
    assert len(tokenizer.encode("x" * PIECE)) == 1, "a long word is one unknown token"


def test_a_unigram_tokenizers_long_run_has_the_tokens_of_the_whole_text_wherever_it_ends(tmp_path):
    vocab = [("<unk>", 0.0), *((letters, -1.0) for letters in ("<|endoftext|>", "a", "b", "aaaa", "abababab"))]
    Tokenizer(models.Unigram(vocab, unk_id=0)).save(str(tmp_path / "tokenizer.json"))
    tokenizer, size = vocabulary.load(tmp_path / "tokenizer.json"), 80_000
    for pattern in ("a", "ab"):
        whole = "b" * 9_000 + (pattern * 3 * size)[: 2 * size + 3]
        text, ids = LongText(tokenizer), []
        for begin in range(0, len(whole), size):
            ids += text.add(whole[begin : begin + size], continued=begin + size < len(whole)).tolist()
        assert ids == tokenizer.encode(whole), pattern


def test_where_a_joint_has_other_tokens_after_all_no_character_is_lost_or_doubled(tmp_path, small_pieces, monkeypatch):
    tokenizer, whole = loaded("gpt2", tmp_path), TEXTS["lines"]
    placed = tokenizer.encode_placed
    carried = next(n for n in range(500, 600) if whole[PIECE - n - 1 : PIECE - n + 1].isalpha())
    text = LongText(tokenizer)
    text.pass_over(whole[:PIECE], continued=True)
    text.resume(carried)  # in the middle of a word: other tokens than an earlier version saw there
    monkeypatch.setattr(text, "_place", lambda part: placed(part[1:] if len(part) < 1300 else part))
    assert tokenizer.decode(text.add(whole[PIECE:], continued=False).tolist()) == whole[PIECE - carried :]


@pytest.mark.parametrize(("name", "held_out"), [("llama-2", 0.0), ("llama-2", 0.3), ("gpt2", 0.0)])
def test_a_cache_holds_a_long_file_as_its_whole_texts_wherever_it_was_interrupted(
    tmp_path, small_pieces, monkeypatch, name, held_out
):
    monkeypatch.setattr(encode, "_BATCH_BYTES", 100)
    monkeypatch.setattr(encode, "SHARD_TOKENS", 4000)
    for size in ("STRETCH", "LONG_PART"):
        monkeypatch.setattr(splits, size, PIECE // 2)
    monkeypatch.setattr(encode, "divide", room_divide := _recorded(encode.divide))
    (tmp_path / "a.txt").write_text(" ".join([TEXTS["lines"]] * 6), encoding="utf-8")
    path = likeness.write(name, tmp_path / "tokenizer")
    given = {"tokenizer": {"path": str(path)}, "held_out": held_out}
    cache = caches.build(room.recipe(tmp_path / "whole", tmp_path / "a.txt", **given))
    streams = {"train" if held_out else "all": cache.train, "held-out": cache.validation.get("held-out")}
    for split, texts in room_divide.texts.items():
        stream, end = streams[split], cache.tokenizer.end_of_text
        assert room.tokens_of(stream).tolist() == [i for text in texts for i in [*cache.tokenizer.encode(text), end]]
    expected, sections = room.stored(tmp_path / "whole"), cache.train.sections
    assert len(sections) > 3 and any(section.shard.carried for section in sections)

    commit, made = encode._Part.commit, []

    def watched(part, *args, **options):
        if len(made) == 2:
            raise Stopped
        made.append(part)
        return commit(part, *args, **options)

    monkeypatch.setattr(encode._Part, "commit", watched)
    recipe = room.recipe(tmp_path / "parts", tmp_path / "a.txt", **given)
    for _ in expected:
        made.clear()
        try:
            caches.build(recipe)
        except Stopped:
            continue
        break
    assert room.stored(tmp_path / "parts") == expected


def _recorded(divide):
    """`divide`, which keeps the texts that each split has in `texts`."""

    def recorded(found, share):
        recorded.texts.clear()
        texts: dict[str, list[str]] = {}
        continued: dict[str, bool] = {}
        for split, file, piece in divide(found, share):
            if continued.get(split):
                texts[split][-1] += piece.text
            else:
                texts.setdefault(split, []).append(piece.text)
            continued[split] = piece.continued
            yield split, file, piece
        recorded.texts |= texts

    recorded.texts = {}
    return recorded


def test_the_two_texts_of_a_pair_are_not_joined(tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(encode, "_BATCH_BYTES", 100)
    first, second = TEXTS["one line"], TEXTS["lines"]
    room.write_rows(tmp_path / "a.jsonl", [{"a": first, "b": second, "label": 1}, {"a": "cat", "b": "mat", "label": 0}])
    document = {"type": "labelled", "texts": ("a", "b"), "label": "label"}
    path = likeness.write("llama-2", tmp_path / "tokenizer")
    source = {"path": str(tmp_path / "a.jsonl"), "document": document}
    cache = caches.build(room.recipe(tmp_path, source, tokenizer={"path": str(path)}))
    encoded = [cache.tokenizer.encode(text) for text in (first, second, "cat", "mat")]
    end = [cache.tokenizer.end_of_text]
    assert room.tokens_of(cache.train).tolist() == [*encoded[0], *encoded[1], *end, *encoded[2], *encoded[3], *end]


def test_a_begin_token_is_put_once_before_a_long_text(tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(encode, "_BATCH_BYTES", 100)
    room.write_jsonl(tmp_path / "a.jsonl", [TEXTS["spaces"] + "a", "cat"])
    path = likeness.write("wordpiece", tmp_path / "tokenizer")
    recipe = room.recipe(
        tmp_path, tmp_path / "a.jsonl", tokenizer={"path": str(path)}, encoding={"type": "pack", "bos": True}
    )
    cache = caches.build(recipe)
    codec = cache.tokenizer
    expected = [[codec.beginning_of_text, *codec.encode(text), codec.end_of_text] for text in ("a", "cat")]
    assert room.tokens_of(cache.train).tolist() == [*expected[0], *expected[1]]


def test_a_cache_of_an_earlier_version_is_used_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_text(TEXTS["lines"], encoding="utf-8")
    recipe = room.recipe(tmp_path, tmp_path / "a.txt")
    cache = caches.build(recipe)
    for path in [*(tmp_path / "cache/shards").glob("*.json"), *(tmp_path / "cache/ledgers").glob("*.json")]:
        content = read_json(path)
        for shard in (content, *content.get("shards", ())):
            shard.pop("carried", None)
        path.write_text(json.dumps(content))
    found = caches.find(recipe)
    assert found is not None and found.fingerprint == cache.fingerprint
    assert [one.shard for one in found.train.sections] == [one.shard for one in cache.train.sections]


def test_pieces_are_together_their_text_and_say_where_it_is_continued():
    parts = list(pieces.text_pieces(0, ["a" * (2 * pieces.PIECE + 1)]))
    assert "".join(p.text for p in parts) == "a" * (2 * pieces.PIECE + 1)
    assert [p.continued for p in parts] == [True, True, False]
    assert all(one.last is False and other.first is False for one, other in pairwise(parts))
