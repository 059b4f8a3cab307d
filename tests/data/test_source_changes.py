"""What has changed in the sources is tokenised again, and nothing else is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data_room as room
import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.data.cache import build as caches
from trainkit.data.sources import digests, source_file
from trainkit.data.sources.source_file import read_all
from trainkit.data.sources.units import Unit
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import HuggingFace

few = settings(max_examples=20, deadline=None)


always_small_units, settled, units = room.always_small_units, room.settled, room.tokenised


def lines_of(units: list[Unit]) -> list[int]:
    """The first line of each."""
    return sorted(unit.span.first if unit.span else 0 for unit in units)


def test_lines_added_to_a_large_file_tokenise_only_its_end(tmp_path, units, settled, monkeypatch):
    monkeypatch.setattr(digests, "SPAN", 2000)
    path = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i) for i in range(120)])
    recipe = room.recipe(tmp_path, path, shuffle=False)
    caches.build(recipe)
    spans = lines_of(units)
    assert len(spans) == len(set(spans)) > 8
    before = room.stored(tmp_path)
    units.clear()
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"text": "added"}) + "\n")
    cache = caches.build(recipe)
    assert 0 < len(units) <= 2
    assert lines_of(units)[0] >= spans[-1]
    assert before.keys() <= room.stored(tmp_path).keys()
    assert room.text_of(cache, cache.train).endswith(f"{room.text(119)}{room.END}added{room.END}")


@few
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=40), span=st.integers(1, 3000), ended=st.booleans())
def test_a_file_of_lines_is_the_same_documents_in_spans_of_any_size(tmp_path_factory, sizes, span, ended):
    directory = tmp_path_factory.mktemp("spans")
    texts = [room.text(i, n) for i, n in enumerate(sizes)]
    path = room.write_jsonl(directory / "a.jsonl", texts)
    if not ended:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "SPAN", span)
        recipe = room.recipe(directory, path, shuffle=False, sequence_length=8)
        cache = caches.build(recipe)
    assert room.text_of(cache, cache.train).split(room.END)[:-1] == texts
    lines = [place.index for place in cache.train.places(0, cache.train.tokens)]
    assert lines == list(range(len(texts)))


def test_a_file_that_was_touched_tokenises_nothing_and_an_added_one_only_its_unit(tmp_path, units, settled):
    room.write_texts(tmp_path / "text", 60)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    caches.build(recipe)
    assert len(units) > 4
    units.clear()
    for path in (tmp_path / "text").rglob("*.txt"):
        os.utime(path, (5, 5))
    caches.build(recipe)
    assert not units
    (tmp_path / "text/part2/9999.txt").write_text("the last", encoding="utf-8")
    caches.build(recipe)
    (unit,) = units
    assert unit.files[-1].name == "part2/9999.txt"


FORMATS = ("jsonl", "text", "csv", "json")


def in_format(directory: Path, path: Path, name: str) -> Recipe:
    return room.recipe(directory, {"path": str(path), "format": name}, on_error="skip", shuffle=False)


@few
@given(history=st.lists(st.sampled_from(FORMATS), min_size=2, max_size=5), settled=st.booleans())
def test_the_same_bytes_in_the_same_format_are_the_same_data_whatever_was_read_before(
    tmp_path_factory, history, settled
):
    directory = tmp_path_factory.mktemp("history")
    path = room.write_jsonl(directory / "a.data", [room.text(i) for i in range(60)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "SPAN", 2000)
        patch.setattr(digests, "RACY_NS", -(10**18) if settled else 10**18)
        for name in history:
            try:
                found = caches.build(in_format(directory, path, name))
            except TrainkitError:  # as one JSON document it is not readable, and nothing is left
                continue
            fresh = caches.build(in_format(directory / f"fresh-{name}", path, name))
            assert found.fingerprint == fresh.fingerprint
            assert room.text_of(found, found.train) == room.text_of(fresh, fresh.train)


def test_a_file_that_is_trained_on_in_one_format_and_evaluated_in_another_is_read_in_both(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SPAN", 2000)
    path = room.write_jsonl(tmp_path / "a.data", texts := [room.text(i) for i in range(60)])
    lines, whole = {"path": str(path), "format": "jsonl"}, {"path": str(path), "format": "text"}
    for one, other in ((lines, whole), (whole, lines)):
        cache = caches.build(room.recipe(tmp_path, one, validation=(other,)))
        streams = {"train": cache.train, "validation": cache.validation["validation"]}
        of_lines, of_text = ("train", "validation") if one is lines else ("validation", "train")
        assert room.text_of(cache, streams[of_lines]) == "".join(f"{text}{room.END}" for text in texts)
        assert room.text_of(cache, streams[of_text]) == path.read_text("utf-8") + room.END


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` keeps goes with the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")


def saved_set(directory: Path, text: str) -> dict[str, Any]:
    """A directory that holds a dataset, with the times that an archive gives all its files."""
    path = room.write_jsonl(directory / "set" / "train.jsonl", [text])
    os.utime(path, ns=(10**18, 10**18))
    return {"type": "huggingface", "id": str(directory / "set")}


def text_of(recipe: Recipe) -> str:
    cache = caches.build(recipe)
    return room.text_of(cache, cache.train).removesuffix(room.END)


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("streaming", [False, True])
def test_directories_of_equal_names_sizes_and_times_are_distinguished_by_what_their_files_hold(tmp_path, streaming):
    for name in ("one", "two"):
        source = saved_set(tmp_path / name, name) | {"streaming": streaming}
        assert text_of(room.recipe(tmp_path, source)) == name
    source = saved_set(tmp_path / "one", "new") | {"streaming": streaming}
    assert text_of(room.recipe(tmp_path, source)) == "new", "a file was replaced by one of the same size and time"


@pytest.mark.usefixtures("hub_cache")
def test_a_copy_of_a_directory_is_the_same_data_and_a_touched_one_too(tmp_path, units, settled):
    first = caches.build(room.recipe(tmp_path, saved_set(tmp_path / "one", "text"))).fingerprint
    os.utime(tmp_path / "one/set/train.jsonl", ns=(5, 5))
    assert caches.build(room.recipe(tmp_path, saved_set(tmp_path / "one", "text"))).fingerprint == first
    assert caches.build(room.recipe(tmp_path, saved_set(tmp_path / "two", "text"))).fingerprint == first
    assert len(units) == 1


@pytest.mark.usefixtures("hub_cache")
def test_a_directory_that_changes_while_it_is_read_is_an_error_that_names_it(tmp_path):
    source = saved_set(tmp_path, "one")
    listing = digests.survey(tmp_path / "cache", [HuggingFace(**source)], None)
    ((file,),) = listing.files
    read = read_all([(file, None)], on_error="stop", refused=[])
    next(read)
    saved_set(tmp_path, "two")
    with pytest.raises(TrainkitError, match="was changed while it was being read") as caught:
        list(read)
    assert caught.value.where.startswith(source["id"])


@pytest.fixture
def store() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    found.makedirs("/changing", exist_ok=True)
    yield found
    found.rm("/changing", recursive=True)


@pytest.mark.parametrize(
    ("said", "during"),
    # where its store identifies it, it is not read for its digest
    [("LastModified", "digest"), ("size", "digest"), *((s, "tokenising") for s in ("ETag", "LastModified", "size"))],
)
def test_a_remote_file_that_is_replaced_while_it_is_read_is_an_error_that_names_it(
    tmp_path, store, monkeypatch, said, during
):
    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        content = self.store[self._strip_protocol(path)].getvalue() if self.isfile(path) else b""
        told = {"name": path, "size": len(content), "type": "file" if content else "directory"}
        return told | ({said: content.decode()} if said != "size" else {})

    store.pipe("/changing/a.txt", b"before")
    monkeypatch.setattr(type(store), "info", info)
    monkeypatch.setattr(type(store), "isfile", lambda self, path: self._strip_protocol(path) in self.store)

    def replace(*_: object) -> None:
        store.pipe("/changing/a.txt", b"much later" if said == "size" else b"after ")

    if during == "digest":
        plain = digests._read
        monkeypatch.setattr(digests, "_read", lambda *given: (plain(*given), replace()))
    else:
        plain_pieces = source_file.read

        def read_then_replace(*given: Any) -> Iterator[Any]:
            yield from plain_pieces(*given)
            replace()

        monkeypatch.setattr(source_file, "read", read_then_replace)
    with pytest.raises(TrainkitError, match="was changed while it was being read") as caught:
        caches.build(room.recipe(tmp_path, "memory://changing/a.txt"))
    assert caught.value.where.endswith("/changing/a.txt")
    monkeypatch.undo()
    cache = caches.build(room.recipe(tmp_path, "memory://changing/a.txt"))
    assert room.text_of(cache, cache.train) == store.cat("/changing/a.txt").decode() + room.END
