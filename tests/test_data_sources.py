"""Which files a source means, and what is in them; wrong input is told with its place."""

from __future__ import annotations

import gzip
import json
import os
import sysconfig
from pathlib import Path

import data_room as room
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from trainkit.data import cache as caches
from trainkit.data.documents import PIECE, read
from trainkit.data.files import expand_braces, match_files
from trainkit.data.sources import list_files
from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.recipe.data import Files, PythonStdlib


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a", ["a"]),
        ("{a,b}c", ["ac", "bc"]),
        ("x{a,b{c,d}}{1,2}", ["xa1", "xa2", "xbc1", "xbc2", "xbd1", "xbd2"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{a,}", ["a", ""]),
        ("{}", ["{}"]),
        ("{a}", ["{a}"]),
        ("{a,b", ["{a,b"]),
        ("a}{b,c}", ["a}b", "a}c"]),
    ],
)
def test_braces_are_expanded_as_a_shell_expands_them(pattern, expanded):
    assert expand_braces(pattern) == expanded


def test_files_come_in_the_order_of_their_names_with_names_below_the_first_wildcard(tmp_path):
    room.write_texts(tmp_path / "text", 6)
    files = list_files(Files(path=str(tmp_path / "text" / "**" / "*.txt")))
    assert [f.name for f in files] == sorted(f.name for f in files)
    assert files[0].name == "part0/0000.txt"
    several = (str(tmp_path / "text" / "part1" / "0001.txt"), str(tmp_path / "text" / "{part0,part1}" / "*"))
    assert [f.name for f in list_files(Files(path=several))] == [
        "0001.txt",
        "part0/0000.txt",
        "part0/0003.txt",
        "part1/0004.txt",
    ]


def test_a_directory_whose_name_looks_like_a_pattern_is_taken_as_written(tmp_path):
    room.write_texts(tmp_path / "odd [1] {a,b}", 2)
    assert len(match_files(str(tmp_path / "odd [1] {a,b}" / "*" / "*.txt"))[1]) == 2


def test_a_missing_part_of_a_numbered_set_is_told_though_others_are_there(tmp_path):
    for i in (0, 1, 3):
        (tmp_path / f"s-{i:02d}.txt").write_text("x", encoding="utf-8")
    with pytest.raises(TrainkitError) as caught:
        match_files(str(tmp_path / "s-{00..03}.txt"))
    assert caught.value.problem == f"no such file: {tmp_path}/s-02.txt"


def test_a_pattern_that_matches_nothing_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.text").touch()
    with pytest.raises(TrainkitError) as caught:
        list_files(Files(path="corpus/*.txt"))
    assert f"no file matches {tmp_path}/corpus/*.txt" in str(caught.value)
    assert "train.text" in caught.value.hint
    assert caught.value.exit_code == WRONG_INPUT


def test_a_directory_and_an_unknown_suffix_are_told(tmp_path):
    with pytest.raises(TrainkitError, match="is a directory"):
        list_files(Files(path=str(tmp_path)))
    (tmp_path / "a.doc").write_text("x", encoding="utf-8")
    with pytest.raises(TrainkitError, match=r"cannot tell the format of a '\.doc' file"):
        list_files(Files(path=str(tmp_path / "a.doc")))
    (file,) = list_files(Files(path=str(tmp_path / "a.doc"), format="text"))
    assert [p.text for p in read(file, _never)] == ["x"]


def test_the_standard_library_is_all_of_it_without_tests_and_other_packages():
    names = [file.name for file in list_files(PythonStdlib(type="python-stdlib"))]
    assert {"json/decoder.py", "os.py"} <= set(names)
    assert names == sorted(names)
    assert not [n for n in names if {"test", "tests", "site-packages", "idle_test"} & set(n.split("/"))]
    root = Path(sysconfig.get_path("stdlib"))
    assert all((root / name).is_file() for name in names)


def _never(found):
    raise AssertionError(found)


def _texts(path: Path, **options: str) -> list[str]:
    (file,) = list_files(Files(path=str(path), **options))
    documents: dict[int, str] = {}
    for piece in read(file, _never):
        documents[piece.index] = documents.get(piece.index, "") + piece.text
    return list(documents.values())


def _zst(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="zstd", asbytes=True)


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=8))
def test_the_same_documents_are_read_from_every_format(tmp_path_factory, texts):
    directory = tmp_path_factory.mktemp("formats")
    lines = "".join(json.dumps({"id": 1, "text": t}) + "\n" for t in texts).encode()
    (directory / "a.jsonl").write_bytes(lines)
    (directory / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    # several frames, as parallel compressors write them
    (directory / "a.jsonl.zst").write_bytes(_zst(lines[:20]) + _zst(lines[20:]))
    parquet.write_table(pyarrow.table({"text": texts}), directory / "a.parquet", row_group_size=3)
    for path in sorted(directory.iterdir()):
        assert _texts(path) == texts, path.name
    for suffix, packed in ((".txt", bytes), (".txt.gz", gzip.compress), (".md.zst", _zst)):
        (directory / f"b{suffix}").write_bytes(packed(texts[0].encode()))
        assert _texts(directory / f"b{suffix}") == [texts[0].removeprefix("\ufeff")], suffix


def test_a_long_document_is_read_in_pieces_cut_at_line_ends_and_is_whole_together(tmp_path):
    long = "".join(f"line {i} of é\n    indented\n" for i in range(90_000))
    (tmp_path / "a.txt").write_text(long, encoding="utf-8")
    (file,) = list_files(Files(path=str(tmp_path / "a.txt")))
    pieces = list(read(file, _never))
    assert "".join(p.text for p in pieces) == long
    assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) > 2
    assert all(len(p.text) <= PIECE and p.text.endswith("\n") for p in pieces)
    assert all(p.text.startswith("line") for p in pieces)
    assert sum(p.bytes for p in pieces) == len(long.encode())


def test_line_ends_and_blank_lines_of_jsonl_are_no_documents(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b\\u2028c"}')
    assert _texts(tmp_path / "a.jsonl") == ["a", "b\u2028c"]


GOOD = b'{"text": "good"}\n'
CUT_GZIP = gzip.compress(GOOD * 5000)[:-20]
CUT_ZST = _zst(os.urandom(3000).hex().encode())[:-20]
WRONG = {
    "not JSON": ("a.jsonl", GOOD + b'{"text": \n', ":2: is not JSON"),
    "not an object": ("a.jsonl", GOOD + GOOD + b"[1]\n", ":3: is a list, not an object"),
    "no such key": ("a.jsonl", b'{"txt": "a", "id": 1}\n', ":1: has no 'text'; found: 'txt', 'id'"),
    "not a string": ("a.jsonl", GOOD + b'{"text": 5}\n', ":2: 'text' is a number, not a string"),
    "half a pair": ("a.jsonl", b'{"text": "\\ud800"}\n', ":1: 'text' has half of a surrogate pair"),
    "jsonl not UTF-8": ("a.jsonl", GOOD + b'{"text": "\xff"}\n', ":2: is not UTF-8"),
    "text not UTF-8": ("a.txt", b"ab\xc3\xa9\xff", ":byte 4: is not UTF-8"),
    "text cut in a character": ("a.txt", b"ab\xc3", ":byte 2: is not UTF-8"),
    "UTF-16": ("a.txt", "ab".encode("utf-16"), ":byte 0: is not UTF-8"),
    "cut gzip": ("a.jsonl.gz", CUT_GZIP, "is damaged or cut off"),
    "cut gzip text": ("a.txt.gz", CUT_GZIP, "is damaged or cut off"),
    "cut zst": ("a.txt.zst", CUT_ZST, "is damaged or cut off"),
    "no gzip": ("a.txt.gz", b"plain", "is damaged or cut off"),
    "no parquet": ("a.parquet", b"plain", "is damaged or cut off"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_document_that_cannot_be_read_stops_with_its_place_or_is_skipped_and_counted(tmp_path, case):
    name, content, expected = WRONG[case]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "zz.txt").write_text(room.text(1), encoding="utf-8")
    sources = tmp_path / name, tmp_path / "zz.txt"

    with pytest.raises(TrainkitError) as caught:
        caches.build(room.recipe(tmp_path, *sources))
    assert expected in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert 'on_error = "skip"' in caught.value.hint
    assert caught.value.exit_code == WRONG_INPUT
    left = sorted(path.name for path in tmp_path.glob("cache/*/*") if path.parent.name in ("shards", "ledgers"))
    cache = caches.build(room.recipe(tmp_path, *sources, on_error="skip"))
    assert not [name for name in left if not name.endswith((".tokens", ".json"))]
    assert len(left) in (0, 2), "only what was finished of the good file may stay"
    assert cache.skipped_documents == 1
    ((where, why),) = cache.skipped
    assert f"{where}: {why}".startswith(name)
    assert expected in f"{where}: {why}"

    # what was made by skipping is not silently taken where nothing may be skipped
    assert caches.find(room.recipe(tmp_path, *sources)) is None
    with pytest.raises(TrainkitError, match=r"a\."):
        caches.build(room.recipe(tmp_path, *sources))


def test_a_wrong_text_key_suggests_the_right_one(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"contents": "a", "id": 1}\n')
    with pytest.raises(TrainkitError) as caught:
        caches.build(room.recipe(tmp_path, {"path": str(tmp_path / "a.jsonl"), "text_key": "content"}))
    assert 'did you mean text_key = "contents"?' in caught.value.hint


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"body": ["a"]}, "has no 'text'; found: 'body'"),
        ({"text": [1]}, "column 'text' holds int64, not strings"),
        ({"text": ["a", None]}, ":row 1: 'text' is null"),
    ],
)
def test_a_parquet_file_without_the_text_is_told(tmp_path, table, expected):
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    with pytest.raises(TrainkitError) as caught:
        caches.build(room.recipe(tmp_path, tmp_path / "a.parquet"))
    assert expected in str(caught.value)


def test_of_a_cut_file_the_documents_before_the_cut_are_kept_when_skipping(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(GOOD * 50_000)[:-30])
    cache = caches.build(room.recipe(tmp_path, tmp_path / "a.jsonl.gz", on_error="skip"))
    assert cache.skipped_documents == 1
    assert 0 < cache.train.documents <= 50_000


def test_empty_files_are_left_out_and_counted_but_nothing_else_is_an_error(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").write_text("some text", encoding="utf-8")
    assert caches.build(room.recipe(tmp_path, tmp_path / "*.txt")).empty_documents == 1
    with pytest.raises(TrainkitError, match="holds no text: 1 empty and 0 unreadable"):
        caches.build(room.recipe(tmp_path, tmp_path / "a.txt"))
    with pytest.raises(TrainkitError, match="validation set 'validation' holds no text"):
        caches.build(room.recipe(tmp_path, tmp_path / "b.txt", validation=({"path": str(tmp_path / "a.txt")},)))
