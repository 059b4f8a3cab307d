"""Tokens that a recipe adds to a tokenizer are one id each, and change nothing else."""

from __future__ import annotations

from pathlib import Path

import data_room as room
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from trainkit.data.cache import build
from trainkit.data.tokenizer.load import find_cached, peek_vocab_size
from trainkit.data.tokenizer.long_text import AFTER, JOINT, LongText
from trainkit.data.tokenizer.new_tokens import add_tokens
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer, load
from trainkit.errors import TrainkitError
from trainkit.infer.text_format import keep_tokenizer

NEW = ("<positive>", "[X Y]")


def _bytes() -> LoadedTokenizer:
    return LoadedTokenizer(Path("tokenizer.json"), room.tokenizer_json().encode())


def _word_piece() -> LoadedTokenizer:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "[SEP]": 1, "a": 2, "##b": 3, "c": 4}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[UNK]", "[SEP]"])
    return LoadedTokenizer(Path("tokenizer.json"), made.to_str().encode())


def _unigram() -> LoadedTokenizer:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -1.1), ("a", -2.3), ("▁a", -2.0), ("b", -2.0), ("c", -2.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens(["<unk>", "</s>"])
    return LoadedTokenizer(Path("tokenizer.json"), made.to_str().encode())


@pytest.mark.parametrize("make", [_bytes, _word_piece, _unigram])
def test_a_new_token_is_one_id_in_texts_templates_and_parts_and_other_text_stays(make):
    codec = make()
    larger = add_tokens(codec, NEW)
    first, second = range(codec.vocab_size, larger.vocab_size)
    text = "ab<positive>c [X Y]a"
    for special in (False, True):
        (ids,) = larger.encode_batch([text], special_tokens=special)
        assert (ids.count(first), ids.count(second)) == (1, 1)
        (placed,) = larger.encode_parts([(text, [(2, 12)])], special_tokens=special)
        assert [id_ for id_, within in zip(*placed, strict=True) if within] == [first]
    assert NEW[0] in larger.decode(ids) and NEW[1] in larger.decode(ids)
    assert larger.encode("abc a b") == codec.encode("abc a b")
    for role in ("end_of_text", "beginning_of_text", "padding", "unknown", "special_tokens"):
        assert getattr(larger, role) == getattr(codec, role), role


def test_a_new_token_in_a_long_text_is_never_cut():
    larger = add_tokens(_bytes(), NEW)
    text = " ".join(f"w{n} <positive>" for n in range(9000))
    size = 2 * (JOINT + AFTER)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    long = LongText(larger)
    found = [long.add(piece, continued=n < len(pieces) - 1) for n, piece in enumerate(pieces)]
    ids = np.concatenate(found).tolist()
    assert len(found[0]) and ids == larger.encode(text)
    assert ids.count(larger.vocab_size - 2) == 9000


def test_the_run_has_a_copy_with_the_tokens_which_is_the_same_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text(room.tokenizer_json(), encoding="utf-8")
    (tmp_path / "text.txt").write_text(room.text(3))
    plain = {"path": str(tmp_path / "tokenizer.json")}
    before, with_none, after = (
        room.recipe(tmp_path, tmp_path / "text.txt", tokenizer=plain | new)
        for new in ({}, {"new_tokens": ()}, {"new_tokens": NEW})
    )
    data = [build.build(recipe).fingerprint for recipe in (before, with_none, after)]
    assert data[0] == data[1] != data[2]
    codec = find_cached(after, (), {})
    assert codec is not None and codec.vocab_size == peek_vocab_size(after) == 302
    (tmp_path / "run").mkdir()
    keep_tokenizer(codec, after, tmp_path / "run")
    assert load(tmp_path / "run" / "tokenizer.json").fingerprint == codec.fingerprint
    # a digest of the content: no version of the tokenizers library may change it
    assert add_tokens(_bytes(), NEW).content == add_tokens(codec_of(tmp_path), NEW).content


def codec_of(directory: Path) -> LoadedTokenizer:
    """The tokenizer in a directory."""
    return load(directory / "tokenizer.json")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["<new>", "<|endoftext|>"], r"has '<\|endoftext\|>' already, as id 0\nhint: leave it out"),
        (["a"], "has 'a' already, as id 65"),
        (["<é>"], "does not keep '<é>' as it is: .*\nhint: use ASCII"),
    ],
)
def test_a_token_that_cannot_be_added_is_refused(names, said):
    with pytest.raises(TrainkitError, match=f"tokenizer.new_tokens: the tokenizer {said}"):
        add_tokens(_bytes(), names)


def test_a_tokenizer_whose_ids_have_gaps_is_refused():
    made = Tokenizer(models.WordLevel({"</s>": 0, "a": 7}, unk_token="a"))
    with pytest.raises(TrainkitError, match="ids of the tokenizer have gaps: '<x>' would be id 2, and not 8"):
        add_tokens(LoadedTokenizer(Path("tokenizer.json"), made.to_str().encode()), ["<x>"])
