"""Which files a source means; a source that means none is told with what there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import data_room as room
import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from trainkit.data.cache import build as caches
from trainkit.data.sources.braces import expand_braces
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.patterns import match_files
from trainkit.data.sources.source_file import SourceFile, read
from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.recipe.sections.source import Files, PythonStdlib, Tokens

NOWHERE = Path("no-cache")


def listed(*patterns: Path | str, **options: Any) -> tuple[SourceFile, ...]:
    paths = tuple(map(str, patterns))
    return list_files(Files(path=paths if len(paths) > 1 else paths[0], **options), NOWHERE)


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


@pytest.mark.parametrize(
    "pattern",
    [
        "{000..999999999}.txt",
        "{0..9999}/{0..9999}.txt",
        "{a,b}" * 40,
        "{a" * 5000,
        f"{{0..{'9' * 5000}}}",
        f"{{{'0' * 30}..1}}",
    ],
)
def test_braces_that_stand_for_too_many_paths_are_refused(pattern: str) -> None:
    with pytest.raises(TrainkitError, match="braces stand for more than 1,000,000 paths") as raised:
        expand_braces(pattern)
    assert len(str(raised.value)) < 300


def test_an_error_of_braces_names_the_whole_pattern_so_that_its_key_is_found(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/a-{{1..9999}}-{{1..9999}}.txt"
    with pytest.raises(TrainkitError, match="braces stand for more than") as raised:
        listed(Path(pattern))
    assert raised.value.where == pattern


def test_files_come_in_the_order_of_their_names_with_names_below_the_first_wildcard(tmp_path):
    room.write_texts(tmp_path / "text", 6)
    files = listed(tmp_path / "text" / "**" / "*.txt")
    assert [f.name for f in files] == sorted(f.name for f in files)
    assert files[0].name == "part0/0000.txt"
    several = tmp_path / "text" / "part1" / "0001.txt", tmp_path / "text" / "{part0,part1}" / "*"
    assert [f.name for f in listed(*several)] == ["0001.txt", "part0/0000.txt", "part0/0003.txt", "part1/0004.txt"]


def test_a_file_url_is_the_file(tmp_path):
    room.write_texts(tmp_path, 3)
    assert listed(f"file://{tmp_path}/*/*.txt") == listed(f"{tmp_path}/*/*.txt")


def test_a_directory_whose_name_looks_like_a_pattern_is_taken_as_written(tmp_path):
    room.write_texts(tmp_path / "odd [1] {a,b}", 2)
    assert len(match_files(str(tmp_path / "odd [1] {a,b}" / "*" / "*.txt"))) == 2


def test_a_missing_part_of_a_numbered_set_is_reported_though_others_are_there(tmp_path, store):
    for i in (0, 1, 3):
        (tmp_path / f"s-{i:02d}.txt").write_text("x", encoding="utf-8")
        store.pipe(f"/sources/s-{i:02d}.txt", b"x")
    for base in (str(tmp_path), "memory://sources"):
        with pytest.raises(TrainkitError) as caught:
            match_files(f"{base}/s-{{00..03}}.txt")
        assert caught.value.problem == f"no such file: {base}/s-02.txt"
        assert "holds s-00.txt, s-01.txt, s-03.txt" in caught.value.hint


def test_a_pattern_that_matches_nothing_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.text").touch()
    with pytest.raises(TrainkitError) as caught:
        listed("corpus/*.txt")
    assert f"no file matches {tmp_path}/corpus/*.txt" in str(caught.value)
    assert "train.text" in caught.value.hint
    assert caught.value.exit_code == WRONG_INPUT


def test_a_directory_and_an_unknown_suffix_are_reported(tmp_path):
    with pytest.raises(TrainkitError, match="is a directory"):
        listed(tmp_path)
    (tmp_path / "a.doc").write_text("x", encoding="utf-8")
    with pytest.raises(TrainkitError, match=r"cannot tell the format of a '\.doc' file"):
        listed(tmp_path / "a.doc")
    (file,) = listed(tmp_path / "a.doc", format="text")
    assert [p.text for p in read(file, room.never)] == ["x"]


def test_the_format_goes_by_the_suffix_before_that_of_the_compression(tmp_path):
    kinds = {
        "a.txt": "text", "a.md.gz": "text", "a.py": "text", "a.jsonl.zst": "jsonl", "a.ndjson": "jsonl",
        "a.json.xz": "json", "a.csv.bz2": "csv", "a.TSV": "csv", "a.parquet": "parquet", "a.arrow": "arrow",
    }  # fmt: skip
    for name in kinds:
        (tmp_path / name).touch()
    assert {file.name: file.kind for file in listed(tmp_path / "*")} == kinds
    assert {file.name for file in listed(tmp_path / "*") if file.compressed} == {
        "a.md.gz", "a.jsonl.zst", "a.json.xz", "a.csv.bz2"
    }  # fmt: skip
    (tmp_path / "b.parquet.gz").touch()
    for options in ({}, {"format": "parquet"}):
        with pytest.raises(TrainkitError, match=r"a parquet file cannot be read through \.gz"):
            listed(tmp_path / "b.parquet.gz", **options)
    with pytest.raises(TrainkitError, match=r"cannot tell the format of a '\.jsonl\.zst' file of tokens"):
        list_files(Tokens(type="tokens", path=str(tmp_path / "a.jsonl.zst")), NOWHERE)


def test_a_document_of_keys_belongs_to_rows_and_a_bad_template_is_reported_at_once(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(TrainkitError, match="is one text without rows"):
        listed(tmp_path / "a.txt", document={"type": "template", "template": "{a}"})
    with pytest.raises(TrainkitError, match="belongs to no key") as caught:
        listed(tmp_path / "a.txt", document={"type": "template", "template": "{a"})
    assert caught.value.where == "data.train"


def test_texts_do_not_depend_on_keys_but_rows_do(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.jsonl").touch()
    one, other = (listed(tmp_path / "a.*", text_key=key) for key in ("a", "b"))
    assert [a.reading.signature == b.reading.signature for a, b in zip(one, other, strict=True)] == [False, True]


def test_the_standard_library_is_all_of_it_without_tests_and_other_packages():
    names = [file.name for file in list_files(PythonStdlib(type="python-stdlib"), NOWHERE)]
    assert {"json/decoder.py", "os.py"} <= set(names)
    assert names == sorted(names)
    assert not [n for n in names if {"test", "tests", "site-packages", "idle_test"} & set(n.split("/"))]
    root = Path(sysconfig.get_path("stdlib"))
    assert all((root / name).is_file() for name in names)


@pytest.fixture
def store():
    found = fsspec.filesystem("memory")
    found.makedirs("/sources", exist_ok=True)
    yield found
    found.rm("/sources", recursive=True)


def test_files_of_a_store_have_the_order_and_names_of_the_same_files_here(tmp_path, store):
    room.write_texts(tmp_path, 6)
    store.put(str(tmp_path) + "/", "/sources/", recursive=True)
    for tail in ("**/*.txt", "*/0*.txt", "part{0,1}/*", "part{0..2}/000*.txt", "part0/0003.txt"):
        here, there = listed(tmp_path / tail), listed(f"memory://sources/{tail}")
        assert [(f.name, f.size, f.kind) for f in there] == [(f.name, f.size, f.kind) for f in here], tail
        assert all(f.local for f in here)
        assert not any(f.local for f in there)
    assert len(listed("memory://sources/part0/0003.txt", "memory://sources/*/*")) == 6


@pytest.mark.parametrize(
    ("url", "problem", "hint"),
    [
        ("memory://sources/b*.txt", "no file matches", "memory://sources/ holds a.txt"),
        ("memory://sources/part", "is a directory, not a file", "part/**/*.txt"),
        ("memory://else/a.txt", "no such file", "memory://else/ does not exist either"),
        ("s4://bucket/a.txt", "s4:// is not a supported kind of URL", "s3://"),
        ("zip://a.txt::memory://sources/a.zip", "is a chain of URLs", ""),
    ],
)
def test_a_url_that_leads_nowhere_is_reported(store, url, problem, hint):
    store.pipe({"/sources/a.txt": b"a", "/sources/part/b.txt": b"b"})
    with pytest.raises(TrainkitError) as caught:
        listed(url)
    assert problem in caught.value.problem and url not in caught.value.problem, "`where` names it"
    assert hint in caught.value.hint
    assert caught.value.where.startswith(url)
    assert caught.value.exit_code == WRONG_INPUT


def test_a_store_whose_package_is_not_installed_is_reported_with_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(TrainkitError, match=r"s3:// needs a package that is not installed: .*s3fs"):
        listed("s3://bucket/a.txt")


def test_files_of_a_web_server_are_read_as_the_files_here(tmp_path):
    pytest.importorskip("aiohttp")
    (tmp_path / "served").mkdir()
    room.write_jsonl(tmp_path / "served" / "a.jsonl", ["a", "b"])
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        for url in (f"{base}/a.jsonl", f"{base}/*.jsonl", f"{base}/a.jsonl?download=true"):
            (file,) = listed(url)
            assert (file.kind, file.local) == ("jsonl", False)
            assert [piece.text for piece in read(file, room.never)] == ["a", "b"]
        with pytest.raises(TrainkitError, match="no such file"):
            listed(f"{base}/b.jsonl")
        server.shutdown()


def test_a_remote_file_is_known_by_what_its_store_says_of_it(store, monkeypatch):
    store.pipe("/sources/a.txt", b"a")
    assert [file.identity for file in listed("memory://sources/a.txt")] == [None]
    plain = type(store).info
    monkeypatch.setattr(type(store), "info", lambda self, path: {**plain(self, path), "ETag": str(self.cat(path))})
    identities = []
    for content in (b"a", b"b", b"a"):
        store.pipe("/sources/a.txt", content)
        identities.append(listed("memory://sources/a.txt")[0].identity)
    assert identities[0] == identities[2] != identities[1]
    assert "size=1" in str(identities[0])


def test_a_directory_of_a_dataset_is_another_when_its_files_change(tmp_path):
    room.write_jsonl(tmp_path / "set" / "a.jsonl", ["a"])
    first = room.dataset(tmp_path, id=str(tmp_path / "set"))
    size = (tmp_path / "set" / "a.jsonl").stat().st_size
    assert (first.kind, first.local, first.compressed, first.size) == ("huggingface", False, False, size)
    assert room.dataset(tmp_path, id=str(tmp_path / "set")) == first
    room.write_jsonl(tmp_path / "set" / "b.jsonl", ["b"])
    second = room.dataset(tmp_path, id=str(tmp_path / "set"))
    os.utime(tmp_path / "set" / "b.jsonl", ns=(1, 1))
    third = room.dataset(tmp_path, id=str(tmp_path / "set"))
    assert len({first.stat, second.stat, third.stat}) == 3
    assert not (tmp_path / "hub").exists()


def test_without_the_hub_its_datasets_are_an_error_at_once_that_names_local_files(tmp_path):
    with pytest.raises(TrainkitError, match="the hub cannot be reached") as caught:
        room.dataset(tmp_path, id="owner/name")
    assert caught.value.where == "dataset owner/name of the Hugging Face hub"
    assert "path = " in caught.value.hint
    assert caught.value.exit_code == WRONG_INPUT
    for wrong in ("./nowhere", str(tmp_path / "nowhere"), "a/b/c"):
        with pytest.raises(TrainkitError, match="no such directory"):
            room.dataset(tmp_path, id=wrong)
    assert not (tmp_path / "hub").exists(), "what failed is not remembered"


def test_a_dataset_of_the_hub_stays_at_the_commit_that_it_was_first_seen_at(tmp_path, monkeypatch):
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr("trainkit.data.sources.formats.hugging_face._ask", lambda source: next(commits))
    first = room.dataset(tmp_path, id="owner/name", revision="main")
    assert first.reading.hub and first.reading.hub.revision == "a" * 40
    assert room.dataset(tmp_path, id="owner/name", revision="main") == first
    assert room.dataset(tmp_path, id="owner/name").identity != first.identity
    given = room.dataset(tmp_path, id="owner/name", revision="c" * 40)
    assert given.reading.hub and given.reading.hub.revision == "c" * 40, "a commit needs no asking"
    assert {json.loads(path.read_bytes())["commit"] for path in (tmp_path / "hub").iterdir()} == {"a" * 40, "b" * 40}


def test_listing_loads_no_library_that_takes_long(tmp_path):
    room.write_jsonl(tmp_path / "set" / "a.jsonl", ["a"])
    program = (
        "import sys; from pathlib import Path; from trainkit.data.sources.listing import list_files;"
        "from trainkit.recipe.sections.source import Files, HuggingFace;"
        f"list_files(HuggingFace(type='huggingface', id={str(tmp_path / 'set')!r}), Path({str(tmp_path)!r}));"
        f"list_files(Files(path={str(tmp_path / 'set' / '*.jsonl')!r}), Path({str(tmp_path)!r}));"
        "print([m for m in ('datasets', 'huggingface_hub', 'pyarrow', 'fsspec', 'jinja2', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_was_made_by_leaving_out_is_not_taken_where_nothing_may_be_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": \n{"text": "fine"}\n')
    (tmp_path / "zz.txt").write_text(room.text(1), encoding="utf-8")
    sources = tmp_path / "a.jsonl", tmp_path / "zz.txt"
    with pytest.raises(TrainkitError, match="is not JSON"):
        caches.build(room.recipe(tmp_path, *sources))
    cache = caches.build(room.recipe(tmp_path, *sources, on_error="skip"))
    ((where, why),) = cache.left_out.examples
    assert (where, why.partition(":")[0]) == ("a.jsonl:1", "is not JSON")
    assert caches.find(room.recipe(tmp_path, *sources)) is None
    with pytest.raises(TrainkitError, match="is not JSON"):
        caches.build(room.recipe(tmp_path, *sources))


@pytest.mark.parametrize(
    ("name", "write", "empty"),
    [
        ("rows.npy", lambda path: np.save(path, np.zeros((3, 0), np.uint16)), 3),
        ("flat.npy", lambda path: np.save(path, np.zeros(0, np.uint16)), 1),
        ("flat.bin", lambda path: path.touch(), 1),
        ("rows.parquet", lambda path: parquet.write_table(pyarrow.table({"tokens": [[], [5, 6], []]}), path), 2),
    ],
)
def test_rows_without_ids_are_left_out_and_counted_like_texts_without_characters(tmp_path, name, write, empty):
    write(tmp_path / name)
    np.save(tmp_path / "other.npy", np.array([[8, 9]], np.uint16))
    sources = ({"type": "tokens", "path": str(tmp_path / one)} for one in (name, "other.npy"))
    cache = caches.build(room.recipe(tmp_path, *sources))
    end, kept = cache.tokenizer.end_of_text, [5, 6] if name == "rows.parquet" else []
    assert cache.left_out.empty == empty
    assert room.tokens_of(cache.train).tolist() == [*kept, *([end] if kept else []), 8, 9, end]
    assert cache.train.documents == 1 + bool(kept)


def test_empty_files_are_left_out_and_counted_but_nothing_else_is_an_error(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").write_text("some text", encoding="utf-8")
    assert caches.build(room.recipe(tmp_path, tmp_path / "*.txt")).left_out.empty == 1
    with pytest.raises(TrainkitError, match="holds no text: 1 empty and 0 unreadable"):
        caches.build(room.recipe(tmp_path, tmp_path / "a.txt"))
    with pytest.raises(TrainkitError, match="validation set 'validation' holds no text"):
        caches.build(room.recipe(tmp_path, tmp_path / "b.txt", validation=({"path": str(tmp_path / "a.txt")},)))
