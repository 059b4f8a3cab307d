"""What is in a file of each format: the documents that were written, and each mistake with its place."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import data_room as room
import fsspec
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from trainkit.data.documents.chat_template import resolve_template
from trainkit.data.documents.pieces import PIECE, Piece, Refused, Span
from trainkit.data.sources.files import DAMAGED, open_binary
from trainkit.data.sources.formats.arrays import IDS
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.source_file import SourceFile, read, read_all, row_spans
from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.recipe.sections.document import Chat
from trainkit.recipe.sections.source import FILE_FORMATS, Files, Tokens
from trainkit.recipe.spec import import_named

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=8)


def zst(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="zstd", asbytes=True)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zst,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def one(path: Path | str, **options: Any) -> SourceFile:
    (file,) = list_files(Files(path=str(path), **options), Path("no-cache"))
    return file


def tokens(path: Path | str, **options: Any) -> SourceFile:
    (file,) = list_files(Tokens(type="tokens", path=str(path), **options), Path("no-cache"))
    return file


def documents(file: SourceFile, span: Span | None = None) -> dict[int, str]:
    found: dict[int, str] = {}
    for piece in read(file, room.never, span):
        assert piece.first == (piece.index not in found)
        found[piece.index] = found.get(piece.index, "") + piece.text
    return found


def texts(path: Path | str, **options: Any) -> list[str]:
    return list(documents(one(path, **options)).values())


def ids_of(piece: Piece) -> list[int]:
    assert piece.ids is not None
    return piece.ids.tolist()


def refusals(file: SourceFile) -> tuple[list[Piece], list[Refused]]:
    refused: list[Refused] = []
    return list(read(file, refused.append)), refused


def as_lines(rows: Sequence[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in rows).encode()


def write_csv(path: Path, rows: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([("id", "text"), *((str(i), text) for i, text in enumerate(rows))])


def write_arrow(path: Path, table: pyarrow.Table, *, batch: int, stream: bool = False) -> None:
    with (ipc.new_stream if stream else ipc.new_file)(path, table.schema) as out:
        out.write_table(table, max_chunksize=batch)


def write_every_format(directory: Path, rows: Sequence[str]) -> None:
    lines = as_lines(rows)
    # compressed in two members, as parallel compressors write them
    for suffix, pack in PACKED.items():
        (directory / f"a.jsonl{suffix}").write_bytes(pack(lines[:20]) + pack(lines[20:]))
    listed = [{"id": 1, "text": text} for text in rows]
    (directory / "a.json").write_text(json.dumps(listed), encoding="utf-8")
    (directory / "b.json").write_text(json.dumps({"version": 1, "data": listed}, indent=1), encoding="utf-8")
    write_csv(directory / "a.csv", rows)
    write_csv(directory / "a.tsv", rows)
    (directory / "a.csv.gz").write_bytes(gzip.compress((directory / "a.csv").read_bytes()))
    table = pyarrow.table({"id": list(range(len(rows))), "text": rows})
    parquet.write_table(table, directory / "a.parquet", row_group_size=3)
    write_arrow(directory / "a.arrow", table, batch=3)
    write_arrow(directory / "b.arrow", table, batch=3, stream=True)


@settings(max_examples=25, deadline=None)
@given(rows=TEXTS)
def test_the_same_documents_are_read_from_every_format(tmp_path_factory, rows):
    directory = tmp_path_factory.mktemp("formats")
    write_every_format(directory, rows)
    for path in sorted(directory.iterdir()):
        assert documents(one(path)) == dict(enumerate(rows)), path.name
    for suffix, pack in PACKED.items():
        (directory / f"b.txt{suffix}").write_bytes(pack(rows[0].encode()))
        assert texts(directory / f"b.txt{suffix}") == [rows[0].removeprefix("\ufeff")], suffix


def test_what_lies_in_a_store_is_read_as_what_lies_here(tmp_path):
    rows = ["one", "two\nlines", "", "naïve 𝕏"]
    write_every_format(tmp_path, rows)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/formats-elsewhere", recursive=True)
    try:
        here = list_files(Files(path=str(tmp_path / "*")), tmp_path)
        there = list_files(Files(path="memory://formats-elsewhere/*"), tmp_path)
        assert [file.name for file in there] == [file.name for file in here]
        assert [file.size for file in there] == [file.size for file in here]
        for file in there:
            assert not file.local
            assert file.path == f"memory:///formats-elsewhere/{file.name}"
            assert documents(file) == dict(enumerate(rows)), file.name
    finally:
        store.rm("/formats-elsewhere", recursive=True)


@settings(max_examples=40, deadline=None)
@given(rows=TEXTS, data=st.data())
def test_spans_of_lines_are_together_the_whole_file(tmp_path_factory, rows, data):
    lines = [*as_lines(rows).splitlines(keepends=True), b"\n"]
    path = tmp_path_factory.mktemp("spans") / "a.jsonl"
    path.write_bytes(b"".join(lines))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(lines) - 1), max_size=4)))
    found: dict[int, str] = {}
    for first, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        begin, stop = len(b"".join(lines[:first])), len(b"".join(lines[:end]))
        found |= documents(one(path), Span(begin, stop, first, ""))
    assert found == documents(one(path)) == dict(enumerate(rows))


def test_a_mistake_in_a_span_is_reported_with_its_line_in_the_file(tmp_path):
    lines = as_lines(["a", "b"]), b"{\n"
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    refused: list[Refused] = []
    span = Span(len(lines[0]), len(lines[0]) + 2, 2, "")
    assert not list(read(one(tmp_path / "a.jsonl"), refused.append, span))
    assert [found.place for found in refused] == [":3"]


@pytest.mark.parametrize("kind", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("size", [1, 600, 5000])
def test_spans_of_a_table_are_together_the_whole_file(tmp_path, kind, size):
    rows = [f"{i} " * (1 + i % 7) for i in range(200)]
    table = pyarrow.table({"text": rows})
    if kind == "a.parquet":
        parquet.write_table(table, tmp_path / kind, row_group_size=7)
    else:
        write_arrow(tmp_path / kind, table, batch=7)
    file = one(tmp_path / kind)
    spans = row_spans(file, size)
    assert len(spans) > 1 if size < 5000 else len(spans) in (0, 2, 3)
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
    for span in spans:
        assert min(documents(file, span)) == span.first
    joined: dict[int, str] = {}
    for span in spans:
        joined |= documents(file, span)
    assert (joined or documents(file)) == documents(file) == dict(enumerate(rows))


def test_what_is_small_or_a_stream_or_damaged_has_no_spans(tmp_path):
    table = pyarrow.table({"text": ["a"] * 100})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    write_arrow(tmp_path / "b.arrow", table, batch=10, stream=True)
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    (tmp_path / "d.jsonl").write_bytes(as_lines(["a"] * 100))
    assert row_spans(one(tmp_path / "a.parquet")) == ()
    assert [row_spans(file, 1) for file in list_files(Files(path=str(tmp_path / "[bcd]*")), tmp_path)] == [(), (), ()]


@pytest.mark.parametrize("suffix", [suffix for suffix in PACKED if suffix])
def test_a_compressed_stream_that_is_cut_anywhere_is_noticed(tmp_path, suffix):
    whole = PACKED[suffix](os.urandom(40).hex().encode())
    path = tmp_path / f"a.txt{suffix}"
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DAMAGED), open_binary(str(path)) as stream:
            stream.read()
        pieces, refused = refusals(one(path))
        assert not pieces
        assert [found.problem.partition(":")[0] for found in refused] == ["is damaged or cut off"]


def test_what_the_disk_refuses_is_no_damage_and_is_never_skipped(tmp_path):
    for suffix, pack in PACKED.items():
        path = tmp_path / f"a.jsonl{suffix}"
        path.write_bytes(pack(as_lines(["a"])))
        file = one(path)
        path.unlink()
        path.mkdir()
        with pytest.raises(TrainkitError, match="cannot read it"):
            list(read_all([(file, None)], on_error="skip", refused=[]))


def test_a_long_document_is_read_in_pieces_cut_at_line_ends_and_is_whole_together(tmp_path):
    long = "".join(f"line {i} of é\n    indented\n" for i in range(90_000))
    (tmp_path / "a.txt").write_text(long, encoding="utf-8")
    (tmp_path / "a.jsonl").write_bytes(as_lines([long]))
    write_csv(tmp_path / "a.csv", [long])
    for name in ("a.txt", "a.jsonl", "a.csv"):
        pieces = list(read(one(tmp_path / name), room.never))
        assert "".join(p.text for p in pieces) == long
        assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True]
        assert len(pieces) > 2
        assert all(len(p.text) <= PIECE and p.text.endswith("\n") for p in pieces)
        assert all(p.text.startswith("line") for p in pieces)
        assert sum(p.bytes for p in pieces) == len(long.encode())


def test_line_ends_and_blank_lines_of_jsonl_are_no_documents(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b\\u2028c"}')
    assert documents(one(tmp_path / "a.jsonl")) == {0: "a", 3: "b\u2028c"}


def test_a_table_of_text_may_begin_with_a_mark_and_have_blank_lines_and_windows_line_ends(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,n\r\n\r\n"a\r\nb",1\r\nc,2')
    assert texts(tmp_path / "a.csv") == ["a\r\nb", "c"]


def test_only_what_is_needed_is_taken_from_a_table(tmp_path):
    table = pyarrow.table({"a": ["x"], "huge": [b"\xff"], "b": ["y"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    write_arrow(tmp_path / "a.arrow", table, batch=1)
    for name in ("a.parquet", "a.arrow"):
        assert texts(tmp_path / name, text_key=("b", "a")) == ["y\n\nx"]


def test_labels_of_csv_are_numbers_or_names(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,0\nb,12\n", encoding="utf-8")
    document = {"type": "labelled", "texts": ("text",), "label": "label"}
    pieces, refused = refusals(one(tmp_path / "a.csv", document=document))
    assert not refused
    assert [(piece.text, piece.label) for piece in pieces] == [("a", 0), ("b", 12)]
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,no\nc,-1\n", encoding="utf-8")
    for classes, numbers in ((("no", "yes"), [1, 0]), (("no", "1"), [1, 0]), (("1", "no"), [0, 1])):
        pieces, (refused,) = refusals(one(tmp_path / "a.csv", document={**document, "classes": classes}))
        assert [piece.label for piece in pieces] == numbers
        assert ("is -1; labels count from 0" in refused.problem) == (classes == ("no", "yes")), refused.problem


GOOD = as_lines(["good"])
CUT_GZIP = gzip.compress(GOOD * 5000)[:-20]
ROWS = pyarrow.table({"text": ["a", "b"]})
BYTES = pyarrow.array([b"a", b"\xff", b"c"], pyarrow.binary()).view(pyarrow.string())


def as_parquet(table: pyarrow.Table) -> bytes:
    with pyarrow.BufferOutputStream() as out:
        parquet.write_table(table, out)
        return out.getvalue().to_pybytes()


def as_arrow(table: pyarrow.Table, new: Any = ipc.new_file) -> bytes:
    with pyarrow.BufferOutputStream() as out:
        with new(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue().to_pybytes()


WRONG: dict[str, tuple[str, bytes, str]] = {
    "not JSON": ("a.jsonl", GOOD + b'{"text": \n', ":2: is not JSON"),
    "not an object": ("a.jsonl", GOOD + GOOD + b"[1]\n", ":3: is a list, not an object"),
    "no such key": ("a.jsonl", b'{"txt": "a", "id": 1}\n', ":1: has no 'text'; found: 'txt', 'id'"),
    "not a string": ("a.jsonl", GOOD + b'{"text": 5}\n', ":2: 'text' is a number, not a string"),
    "null": ("a.jsonl", b'{"text": null}\n', ":1: 'text' is null, not a string"),
    "half a pair": ("a.jsonl", b'{"text": "\\ud800"}\n', ":1: 'text' has half of a surrogate pair"),
    "too deep": ("a.jsonl", b"[" * 100_000 + b"\n", ":1: cannot be read as JSON"),
    "jsonl not UTF-8": ("a.jsonl", GOOD + b'{"text": "\xff"}\n', ":2: is not UTF-8"),
    "text not UTF-8": ("a.txt", b"ab\xc3\xa9\xff", ":byte 4: is not UTF-8"),
    "text cut in a character": ("a.txt", b"ab\xc3", ":byte 2: is not UTF-8"),
    "UTF-16": ("a.txt", "ab".encode("utf-16"), ":byte 0: is not UTF-8"),
    "cut gzip": ("a.jsonl.gz", CUT_GZIP, "is damaged or cut off"),
    "cut gzip text": ("a.txt.gz", CUT_GZIP, "is damaged or cut off"),
    "no gzip": ("a.txt.gz", b"plain", "is damaged or cut off"),
    "no zst": ("a.jsonl.zst", b"plain", ":1: is damaged or cut off"),
    "no bz2": ("a.csv.bz2", b"plain", ":1: is damaged or cut off"),
    "no xz": ("a.json.xz", b"plain", "is damaged or cut off"),
    "json cut": ("a.json", b'[\n{"text": "a"},\n', ":3: is not JSON"),
    "json of lines": ("a.json", GOOD + GOOD, ":2: is not JSON: Extra data"),
    "json of a string": ("a.json", b'"text"', "is a string, not a list of objects"),
    "json without rows": ("a.json", b'{"a": 1}', "it has no list"),
    "json of columns": ("a.json", b'{"a": [1], "b": [2]}', "it has 2 lists: 'a', 'b'"),
    "json of strings": ("a.json", b'[{"text": "a"}, "b"]', ":row 1: is a string, not an object"),
    "json not UTF-8": ("a.json", b'["\xff"]', ":byte 2: is not UTF-8"),
    "csv row too long": ("a.csv", b"id,text\n1,a\n2,b,c\n", ":3: has 3 columns, but the header 2: id, text"),
    "csv row too short": ("a.csv", b'id,text\n1,"a\nb"\n2\n', ":4: has 1 columns, but the header 2"),
    "csv of semicolons": ("a.csv", b"id;text\n1;a\n", ":2: has no 'text'; found: 'id;text'"),
    "csv quote open": ("a.csv", b'id,text\n1,"a\n2,b\n', ":2: is not CSV: unexpected end of data"),
    "csv quote astray": ("a.csv", b'id,text\n1,"a"b"\n', ":2: is not CSV"),
    "csv not UTF-8": ("a.csv", b"id,text\n1,a\n2,\xff\n", ":3: is not UTF-8"),
    "csv column twice": ("a.csv", b"text,text\n1,a\n", ":1: has two columns 'text'"),
    "no parquet": ("a.parquet", b"plain", "is damaged or cut off"),
    "parquet cut": ("a.parquet", as_parquet(ROWS)[:-1], "is damaged or cut off"),
    "parquet without": ("a.parquet", as_parquet(pyarrow.table({"body": ["a"]})), "has no 'text'; found: 'body'"),
    "parquet of numbers": ("a.parquet", as_parquet(pyarrow.table({"text": [1]})), "'text' holds int64, not strings"),
    "parquet null": ("a.parquet", as_parquet(pyarrow.table({"text": ["a", None]})), ":row 1: 'text' is null"),
    "parquet bytes": ("a.parquet", as_parquet(pyarrow.table({"text": BYTES})), ":row 1: is not UTF-8"),
    "no arrow": ("a.arrow", b"plain text", "is damaged or cut off"),
    "arrow cut": ("a.arrow", as_arrow(ROWS)[:-1], "is damaged or cut off"),
    "arrow stream cut": ("a.arrow", as_arrow(ROWS, ipc.new_stream)[:-30], "is damaged or cut off"),
    "arrow without": ("a.arrow", as_arrow(pyarrow.table({"body": ["a"]})), "has no 'text'; found: 'body'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_document_that_cannot_be_read_stops_with_its_place_or_is_skipped_and_reported(tmp_path, case):
    name, content, expected = WRONG[case]
    (tmp_path / name).write_bytes(content)
    file = one(tmp_path / name)
    with pytest.raises(TrainkitError) as caught:
        list(read_all([(file, None)], on_error="stop", refused=[]))
    assert f"{caught.value.where}: {caught.value.problem}".startswith(file.path)
    assert expected in f"{caught.value.where}: {caught.value.problem}"
    assert 'on_error = "skip"' in caught.value.hint
    assert caught.value.exit_code == WRONG_INPUT
    refused: list[tuple[str, Refused]] = []
    list(read_all([(file, None)], on_error="skip", refused=refused))
    ((where, found),) = refused
    assert where.startswith(name)
    assert expected in f"{where}: {found.problem}"


def test_what_can_be_read_beside_a_mistake_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"{\n" + GOOD)
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,\xff\n2,"a"b"\n3\n4,good\n')
    (tmp_path / "a.json").write_bytes(b'[1, {"text": "good"}]')
    (tmp_path / "a.parquet").write_bytes(as_parquet(pyarrow.table({"text": BYTES})))
    for name, left in (("a.jsonl", "good"), ("a.csv", "good"), ("a.json", "good"), ("a.parquet", "ac")):
        pieces, refused = refusals(one(tmp_path / name))
        assert "".join(piece.text for piece in pieces) == left
        assert refused


def test_of_a_cut_file_the_documents_before_the_cut_are_read(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(GOOD * 50_000)[:-30])
    pieces, refused = refusals(one(tmp_path / "a.jsonl.gz"))
    assert 0 < len(pieces) <= 50_000
    assert [found.place for found in refused] == [f":{len(pieces) + 1}"]


def test_json_that_is_a_file_of_lines_is_reported_with_how_to_read_it(tmp_path):
    (tmp_path / "a.json").write_bytes(GOOD + GOOD)
    _, (found,) = refusals(one(tmp_path / "a.json"))
    assert 'format = "jsonl"' in found.hint
    assert texts(tmp_path / "a.json", format="jsonl") == ["good", "good"]


def test_what_is_shorter_or_longer_than_asked_for_is_filtered_and_never_an_error(tmp_path):
    rows = ["a" * n for n in (1, 3, 5)]
    write_every_format(tmp_path, rows)
    for path in sorted(tmp_path.iterdir()):
        refused: list[tuple[str, Refused]] = []
        file = one(path, min_characters=2, max_characters=4)
        found = list(read_all([(file, None)], on_error="stop", refused=refused))
        assert [piece.text for _, piece in found] == ["aaa"], path.name
        assert [(r.problem, r.filtered) for _, r in refused] == [
            ("has 1 characters, fewer than min_characters = 2", True),
            ("has 5 characters, more than max_characters = 4", True),
        ]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\xc3\xa9")
    assert texts(tmp_path / "a.txt", min_characters=2, max_characters=2) == ["aé"]
    assert refusals(one(tmp_path / "a.txt", min_characters=3))[1][0].filtered


ARRAYS = st.lists(st.integers(0, 60_000), max_size=30)


@settings(max_examples=25, deadline=None)
@given(ids=ARRAYS, dtype=st.sampled_from(["uint16", "uint32", "int32", "int64"]))
def test_a_flat_array_is_one_document(tmp_path_factory, ids, dtype):
    directory = tmp_path_factory.mktemp("arrays")
    array = np.array(ids, dtype)
    np.save(directory / "a.npy", array)
    (directory / "a.bin").write_bytes(array.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
    store = fsspec.filesystem("memory")
    store.put(str(directory), "/arrays-elsewhere", recursive=True)
    try:
        for base in (str(directory), "memory://arrays-elsewhere"):
            for name in ("a.npy", "a.bin"):
                given = {"dtype": dtype} if name == "a.bin" else {}
                (piece,) = read(tokens(f"{base}/{name}", **given), room.never)
                assert ids_of(piece) == ids
                assert (piece.index, piece.first, piece.last) == (0, True, True)
    finally:
        store.rm("/arrays-elsewhere", recursive=True)


def test_a_long_array_is_read_in_pieces_and_is_whole_together(tmp_path):
    array = np.arange(2 * IDS + 5, dtype=np.uint32)
    array.tofile(tmp_path / "a.bin")
    pieces = list(read(tokens(tmp_path / "a.bin", dtype="uint32"), room.never))
    assert np.array_equal(np.concatenate([ids_of(p) for p in pieces]), array)
    assert [(p.first, p.last) for p in pieces] == [(True, False), (False, False), (False, True)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_table_of_ids_is_a_document_a_row_with_runs_that_are_learned_or_not(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("tokens") / "a.parquet"
    kind = data.draw(st.sampled_from([pyarrow.list_(pyarrow.uint16()), pyarrow.large_list(pyarrow.int64())]))
    mask = data.draw(st.sampled_from([pyarrow.list_(pyarrow.bool_()), pyarrow.list_(pyarrow.uint8())]))
    ids = pyarrow.array([[i for i, _ in row] for row in rows], kind)
    learned = pyarrow.array([[m for _, m in row] for row in rows], pyarrow.list_(pyarrow.bool_())).cast(mask)
    parquet.write_table(pyarrow.table({"tokens": ids, "learned": learned}), path, row_group_size=2)
    pieces = list(read(tokens(path), room.never))
    found: list[list[tuple[int, bool]]] = [[] for _ in rows]
    for piece in pieces:
        assert piece.first == (not found[piece.index])
        found[piece.index] += [(i, piece.learn) for i in ids_of(piece)]
        assert piece.last == (len(found[piece.index]) == len(rows[piece.index]))
    assert found == rows
    spans = row_spans(tokens(path), 1)
    joined = [piece for span in spans for piece in read(tokens(path), room.never, span)]
    assert not spans or [(p.index, ids_of(p)) for p in joined] == [(p.index, ids_of(p)) for p in pieces]


def test_rows_of_a_two_dimensional_array_are_documents_and_a_table_may_have_no_mask(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray([[1, 2, 3], [4, 5, 6]]))
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([1, 2, 3, 4, 5, 6]), 3)
    parquet.write_table(pyarrow.table({"ids": fixed}), tmp_path / "a.parquet")
    for name in ("a.npy", "a.parquet"):
        key = {"tokens_key": "ids"} if name == "a.parquet" else {}
        pieces = list(read(tokens(tmp_path / name, **key), room.never))
        assert [(p.index, ids_of(p), p.learn) for p in pieces] == [(0, [1, 2, 3], True), (1, [4, 5, 6], True)]


def _save_cut(path: Path) -> None:
    np.save(path, np.arange(99))
    os.truncate(path, 200)


WRONG_ARRAYS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "floats": ("a.npy", lambda p: np.save(p, np.ones(3)), "holds float64, not token ids"),
    "a cube": ("a.npy", lambda p: np.save(p, np.ones((2, 2, 2), int)), "has shape (2, 2, 2)"),
    "a number": ("a.npy", lambda p: np.save(p, np.array(3)), "has shape ()"),
    "objects": ("a.npy", lambda p: np.save(p, np.array([{}]), allow_pickle=True), "is damaged or cut off"),
    "no array": ("a.npy", lambda p: p.write_bytes(b"plain"), "is damaged or cut off"),
    "cut": ("a.npy", _save_cut, "is damaged or cut off"),
    "negative": ("a.npy", lambda p: np.save(p, np.array([1, -100])), "holds -100, which is not a token id"),
    "negative in a row": ("a.npy", lambda p: np.save(p, np.array([[1], [-2]])), ":row 1: holds -2"),
    "negative in a table": (
        "a.parquet",
        lambda p: parquet.write_table(pyarrow.table({"tokens": [[1], [2, -3]]}), p),
        ":row 1: 'tokens' holds -3, which is not a token id",
    ),
    "odd": ("a.bin", lambda p: p.write_bytes(b"123"), "has 3 bytes, which is not a multiple of uint16"),
    "no lists": (
        "a.parquet",
        lambda p: parquet.write_table(pyarrow.table({"tokens": [1]}), p),
        "column 'tokens' holds int64, not lists of whole numbers",
    ),
    "no column": ("a.parquet", lambda p: parquet.write_table(pyarrow.table({"ids": [[1]]}), p), "has no 'tokens'"),
    "null": (
        "a.parquet",
        lambda p: parquet.write_table(pyarrow.table({"tokens": [[1], None]}), p),
        ":row 1: 'tokens' is null",
    ),
    "a null": ("a.parquet", lambda p: parquet.write_table(pyarrow.table({"tokens": [[1, None]]}), p), "holds null"),
    "another length": (
        "a.parquet",
        lambda p: parquet.write_table(pyarrow.table({"tokens": [[1, 2]], "learned": [[True]]}), p),
        ":row 0: has 2 'tokens', but 1 'learned'",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_an_array_that_is_none_of_token_ids_is_reported(tmp_path, case):
    name, write, expected = WRONG_ARRAYS[case]
    write(tmp_path / name)
    _, refused = refusals(tokens(tmp_path / name))
    assert [expected in f"{found.place}: {found.problem}" for found in refused] == [True], refused


def test_a_directory_that_holds_a_dataset_gives_the_rows_that_were_written(tmp_path, monkeypatch, capfd):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    rows = [f"text {i} 𝕏" for i in range(30)]
    whole = datasets.Dataset.from_dict({"id": list(range(30)), "text": rows})
    whole.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": whole, "test": whole.select(range(3))}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train-0.jsonl").write_bytes(as_lines(rows))
    expected = dict(enumerate(rows))
    capfd.readouterr()
    for directory in (tmp_path / "saved", tmp_path / "splits", tmp_path / "files"):
        file = room.dataset(tmp_path, directory)
        assert documents(file) == expected
        assert documents(room.dataset(tmp_path, directory, streaming=True)) == expected
        spans = row_spans(file, 300)
        assert len(spans) > 1
        joined: dict[int, str] = {}
        for span in spans:
            joined |= documents(file, span)
        assert joined == expected
        assert documents(room.dataset(tmp_path, directory, split="train[:4]")) == dict(enumerate(rows[:4]))
    assert list(documents(room.dataset(tmp_path, tmp_path / "splits", split="test")).values()) == rows[:3]
    with pytest.raises(TrainkitError, match="has no split 'validation'; found: train, test"):
        documents(room.dataset(tmp_path, tmp_path / "splits", split="validation"))
    with pytest.raises(TrainkitError, match="cannot be loaded"):
        documents(room.dataset(tmp_path, tmp_path / "files", split="validation"))
    with pytest.raises(AssertionError, match="has no 'txt'; found: 'id', 'text'"):
        documents(room.dataset(tmp_path, tmp_path / "saved", text_key="txt"))
    assert not capfd.readouterr().out


def test_images_are_read_from_bytes_and_paths_of_rows_and_from_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    (tmp_path / "below").mkdir()
    picture = tmp_path / "below" / "a.png"
    pillow.fromarray(pixels).save(picture)
    (tmp_path / "a.jsonl").write_text('{"image": "below/a.png", "label": 2}\n', encoding="utf-8")
    parquet.write_table(pyarrow.table({"image": [picture.read_bytes()], "label": [2]}), tmp_path / "a.parquet")
    rows = datasets.Dataset.from_dict({"image": [str(picture)], "label": [2]})
    rows.cast_column("image", datasets.Image()).save_to_disk(str(tmp_path / "saved"))
    document = {"type": "image", "size": (2, 3)}
    files = [one(tmp_path / name, document=document) for name in ("a.jsonl", "a.parquet")]
    files += [
        room.dataset(tmp_path, tmp_path / "saved", document=document, streaming=streaming)
        for streaming in (False, True)
    ]
    for file in files:
        (piece,) = read(file, room.never)
        assert (ids_of(piece), piece.label) == (pixels.ravel().tolist(), 2), file.path


def test_conversations_are_read_from_every_format_alike(tmp_path):
    answer = {"role": "assistant", "content": "a"}
    rows = [{"messages": [{"role": "user", "content": f"q{i}"}, answer]} for i in range(3)]
    turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template = turns + "{% if add_generation_prompt %}<assistant>{% endif %}"
    room.write_rows(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    document = {"type": "chat", "template": template}
    for name in ("a.jsonl", "a.json", "a.parquet"):
        file = one(tmp_path / name, document=document)
        assert isinstance(file.reading.document, Chat)
        chat = resolve_template(file.reading.document.chat_template, tmp_path / "tokenizer.json")
        pieces = list(read(replace(file, reading=replace(file.reading, chat=chat)), room.never))
        assert pieces[0].text.startswith("<user>q0<assistant>a") and pieces[0].learned == ((19, 20),), name
        assert len(pieces) == 3


def test_each_suffix_belongs_to_one_format_and_each_format_has_a_reader() -> None:
    suffixes = [suffix for each in FILE_FORMATS for suffix in each.suffixes]
    assert len(suffixes) == len(set(suffixes)) and len({each.name for each in FILE_FORMATS}) == len(FILE_FORMATS)
    for each in FILE_FORMATS:
        for name in filter(None, (each.reader, each.spans)):
            assert callable(import_named(f"trainkit.data.sources.{name}"))
        if each.suffixes:
            assert Files(path="a", format=each.name).format == each.name
        else:
            with pytest.raises(ValueError, match="Input should be 'auto'"):
                Files(path="a", format=each.name)
