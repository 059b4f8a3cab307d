"""What has changed in the sources is tokenised again, and nothing else is."""

from __future__ import annotations

import json
import os

import data_room as room
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.data import cache as caches
from trainkit.data import digests
from trainkit.data.shards import Unit

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
