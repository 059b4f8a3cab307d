"""One long text file gives both a training and a held-out part, and what is decided once stays decided."""

from __future__ import annotations

import gzip
import itertools
import re

import data_room as room
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.data.cache import build as caches
from trainkit.data.cache.encode import threads
from trainkit.data.documents.pieces import PIECE, Piece, text_pieces
from trainkit.data.sources import splits
from trainkit.data.sources.splits import divide, shortest_divided, whole
from trainkit.errors import TrainkitError

shares = st.sampled_from([0.001, 0.03, 0.05, 0.1, 0.3, 0.5, 0.9])
#: What lines are made of: not indented, indented, no line ends at all, no spaces either, wider characters.
line_kinds = st.sampled_from(["{} some words\n", "  {} indented\n", "{} all one line ", "{}x", "{} Ωmega 𝕏\r\n\r\n"])


def a_text(size: int, line: str = "{} some words\n") -> str:
    return "".join(line.format(i) for i in range(size // len(line.format(0)) + 1))[:size]


def divided(text: str, share: float, name: str = "input.txt", kind: str = "text") -> list[tuple[str, Piece]]:
    return [
        (split, piece)
        for split, _, piece in divide([(room.a_file(name, kind), piece) for piece in text_pieces(0, [text])], share)
    ]


def of_split(parts: list[tuple[str, Piece]], split: str) -> list[Piece]:
    return [piece for name, piece in parts if name == split]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3_000_000), line_kinds, shares, st.text("abc", min_size=1, max_size=3))
def test_the_parts_are_together_the_text_and_end_where_their_split_does_not_continue(size, line, share, name):
    text = a_text(size, line)
    parts = divided(text, share, name)
    assert "".join(piece.text for _, piece in parts) == text
    assert sum(piece.bytes for _, piece in parts) == len(text.encode())
    for (split, piece), (following, _) in itertools.pairwise(parts):
        assert piece.text
        assert piece.last == (following != split)
    assert parts[-1][1].last
    for split in {split for split, _ in parts}:
        firsts = [piece.first for piece in of_split(parts, split)]
        assert firsts == [True] + [False] * (len(firsts) - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1 << 15, 3_000_000), line_kinds, shares, st.text("abc", min_size=1, max_size=3))
def test_every_long_text_has_about_the_share_held_out_and_never_none_nor_all(size, line, share, name):
    size = max(size, shortest_divided(share))
    parts = divided(a_text(size, line), share, name)
    held_out = sum(len(piece.text) for piece in of_split(parts, "held-out"))
    assert 0 < held_out < size
    # at worst a stretch of one length is followed by one of two that lacks its part, or that ends after it: 1/3 or 3
    assert 0.3 * share < held_out / size < min(1 - 0.3 * (1 - share), 3.1 * share)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("line", ["{}x", "{}" + "x" * 1500 + "\n", "{}" + "x" * 4000 + "\n"])
def test_the_shortest_text_that_is_divided_has_both_whatever_its_name(share, line):
    size = shortest_divided(share)
    text = a_text(size, line)
    smaller = min(share, 1 - share) * size
    for i in range(200):
        parts = divided(text, share, f"{i}.txt")
        held_out = sum(len(piece.text) for piece in of_split(parts, "held-out"))
        assert abs(held_out - share * size) <= smaller / 2 + 1


@pytest.mark.parametrize("share", [0.03, 0.05, 0.2])
def test_over_many_files_the_share_is_met(share):
    sizes = {f"{i}.txt": 40_000 + 3_000 * (i % 100) for i in range(200)}
    held_out = 0
    for name, size in sizes.items():
        held_out += sum(len(piece.text) for piece in of_split(divided(a_text(size), share, name), "held-out"))
    assert held_out / sum(sizes.values()) == pytest.approx(share, rel=0.1)


@settings(max_examples=30, deadline=None)
@given(st.integers(100_000, 1_500_000), st.integers(1, 800_000), shares.filter(lambda share: share >= 0.03))
def test_text_added_at_the_end_moves_nothing_that_is_not_near_the_end(size, more, share):
    text = a_text(size + more)
    before, after = (splits_of_lines(divided(t, share)) for t in (text[:size], text))
    # the old end may lie where a line end is looked for, at most half a part further on
    near = size - PIECE // 2 if size > PIECE else size - splits.LONG_PART
    lines = text[: max(0, near)].count("\n")
    assert [before[i] for i in range(lines)] == [after[i] for i in range(lines)]


def splits_of_lines(parts: list[tuple[str, Piece]]) -> list[str]:
    return [split for split, piece in parts for _ in piece.text.splitlines()]


def test_text_is_cut_at_line_ends_else_before_spaces_else_anywhere():
    for line, starts, ends in (("{} words and\n  more\n\n", str.isdigit, "\n\n"), ("{} words ", str.isspace, "")):
        parts = divided(a_text(300_000, line), 0.05)
        assert len(parts) > 4
        assert all(starts(piece.text[0]) for _, piece in parts[1:])
        assert all(piece.text.endswith(ends) for _, piece in parts[:-1])
    assert len(divided("x" * 300_000, 0.05)) > 4


def test_short_texts_and_what_is_no_text_file_are_held_out_whole_or_not_at_all():
    both = set()
    for kind, size in (("text", 32_767), ("python", 500_000), ("jsonl", 2_500_000)):
        for name in "abcdefghij":
            ((split, _),) = itertools.groupby(divided(a_text(size), 0.3, name, kind), key=lambda part: part[0])
            assert split == whole(room.a_file(name, kind), 0, 0.3)
            both.add(split)
    assert both == {"train", "held-out"}


def test_which_whole_documents_are_held_out_never_changes():
    held_out = [i for i in range(60) if whole(room.a_file("a/b.txt"), i, 0.1) == "held-out"]
    assert held_out == [9, 12, 26, 39, 41, 54]


def test_with_nothing_held_out_every_piece_is_as_it_was_read():
    pieces = list(text_pieces(0, [a_text(2_500_000)]))
    assert divided(a_text(2_500_000), 0.0) == [("all", piece) for piece in pieces]


@pytest.mark.parametrize(("size", "suffix"), [(40_000, ".txt"), (60_000, ".txt"), (700_000, ".txt.gz")])
def test_one_text_file_is_enough_and_no_sequence_goes_on_over_a_gap(tmp_path, size, suffix):
    path = tmp_path / f"input{suffix}"
    text = a_text(size)
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    cache = caches.build(room.recipe(tmp_path, path, held_out=0.05))
    lines: list[int] = []
    for stream in (cache.train, cache.validation["held-out"]):
        runs = room.text_of(cache, stream).split(room.END)
        assert runs.pop() == ""
        assert all(run in text for run in runs)
        assert stream.bytes == sum(map(len, runs))
        assert stream.documents == 1 <= len(runs)
        numbers = [[int(line.split()[0]) for line in run.splitlines()] for run in runs]
        for one, following in itertools.pairwise(numbers):
            assert following[0] > one[-1] + 1, "there is an end of text only where something is missing"
        for run in numbers:
            assert run == list(range(run[0], run[-1] + 1)), "nothing is missing without an end of text"
        lines += itertools.chain(*numbers)
    assert sorted(lines) == list(range(len(text.splitlines())))


def test_the_split_is_the_same_for_any_number_of_workers_and_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "STRETCH", 3000)
    monkeypatch.setattr(splits, "SHORT_PART", 50)
    for i in range(6):
        (tmp_path / f"{i}.txt").write_text(a_text(20_000 + i), encoding="utf-8")
    room.small_units(monkeypatch)
    made = []
    for workers in (1, 3):
        cache = caches.build(
            room.recipe(tmp_path / str(workers), tmp_path / "*.txt", held_out=0.1), engine=threads(workers)
        )
        made.append((cache.fingerprint, room.stored(tmp_path / str(workers))))
    assert made[0] == made[1]
    assert len(made[0][1]) == 12


def test_the_tokenizer_never_sees_the_held_out_parts(tmp_path):
    text = a_text(200_000)
    parts = divided(text, 0.1)
    # the same line ends at the same places, so that the same parts are held out
    texts = [re.sub(r"[^\n]", "q", piece.text) if split == "held-out" else piece.text for split, piece in parts]
    (tmp_path / "input.txt").write_text("".join(texts), encoding="utf-8")
    tokenizer = {"train": {"vocab_size": 320}}
    opened = room.open_tokenizer(room.recipe(tmp_path, tmp_path / "*.txt", tokenizer=tokenizer, held_out=0.1))
    assert len(opened.encode("qqqq")) == 4
    assert len(opened.encode(" words")) == 1


def test_one_short_file_says_how_long_it_must_be(tmp_path):
    (tmp_path / "input.txt").write_text("too short", encoding="utf-8")
    with pytest.raises(TrainkitError) as caught:
        caches.build(room.recipe(tmp_path, tmp_path / "input.txt", held_out=0.01))
    assert "of 1 document holds out none" in caught.value.problem
    assert "102,400 characters" in caught.value.problem
    assert "give more text" in caught.value.hint
