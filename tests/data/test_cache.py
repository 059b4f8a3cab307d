"""The cache is the same however it was made, holds what its sources hold now, and survives kills and full disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import data_room as room
import pytest
from places import LIMIT, SUPPORT

from trainkit.data import jobs
from trainkit.data.cache import build as caches
from trainkit.data.cache import encode
from trainkit.data.sources import digests, patterns
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import WRONG_INPUT, TrainkitError

always_small_units, settled = room.always_small_units, room.settled


@pytest.fixture
def encoded(monkeypatch):
    """The names of the files that were tokenised, in a list that grows."""
    names: list[str] = []
    room.before_each_unit(monkeypatch, lambda unit: names.extend(file.name for file in unit.files))
    return names


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that were read for their digests."""
    names: list[str] = []
    original = digests._content

    def watched(file, *args):
        names.append(file.name)
        return original(file, *args)

    monkeypatch.setattr(digests, "_content", watched)
    return names


def test_any_number_of_workers_makes_the_same_bytes(tmp_path):
    room.write_texts(tmp_path / "text", 60)
    made = {}
    for workers in (1, 2, 4):
        directory = tmp_path / str(workers)
        recipe = room.recipe(directory, tmp_path / "text/**/*.txt", held_out=0.2)
        cache = caches.build(recipe, engine=encode.threads(workers))
        made[workers] = (cache.fingerprint, room.stored(directory))
    assert made[1] == made[2] == made[4]
    assert len(made[1][1]) > 6


def test_documents_of_train_and_held_out_are_disjoint_and_together_all(tmp_path):
    texts = {f"<{i}>" for i in range(400)}
    room.write_jsonl(tmp_path / "a.jsonl", sorted(texts))
    cache = caches.build(room.recipe(tmp_path, tmp_path / "a.jsonl", held_out=0.2))
    parts = []
    for stream in (cache.train, cache.validation["held-out"]):
        documents = room.text_of(cache, stream).split("<|endoftext|>")
        assert documents.pop() == ""
        assert len(documents) == len(set(documents)) == stream.documents
        assert stream.bytes == sum(map(len, documents))
        parts.append(set(documents))
    assert parts[0] | parts[1] == texts
    assert not parts[0] & parts[1]
    assert 40 < len(parts[1]) < 120


def test_what_is_held_out_stays_so_when_documents_are_added_and_wherever_the_files_lie(tmp_path):
    def held_out(directory: Path) -> set[str]:
        cache = caches.build(room.recipe(directory, directory / "text/**/*.txt", held_out=0.3))
        return set(room.text_of(cache, cache.validation["held-out"]).split("<|endoftext|>"))

    room.write_texts(tmp_path / "a/text", 30)
    before = held_out(tmp_path / "a")
    room.write_texts(tmp_path / "b/text", 45)
    new = {room.text(i) for i in range(30, 45)}
    assert held_out(tmp_path / "b") - new == before


def test_a_cache_that_is_there_is_found_and_nothing_is_read_again(tmp_path, encoded, hashed, settled):
    room.write_texts(tmp_path / "text", 20)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt", held_out=0.2)
    assert caches.find(recipe) is None
    assert not (tmp_path / "cache").exists(), "find makes nothing"
    built = caches.build(recipe)
    assert len(encoded) == len(hashed) == 20
    encoded.clear()
    hashed.clear()
    for cache in (caches.find(recipe), caches.build(recipe)):
        assert cache.fingerprint == built.fingerprint
        assert cache.train.tokens == built.train.tokens
        assert cache.validation["held-out"].documents == built.validation["held-out"].documents
    assert encoded == hashed == []


def test_a_file_touched_but_equal_is_read_again_and_its_tokens_are_kept(tmp_path, encoded, hashed, settled):
    room.write_texts(tmp_path / "text", 20)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    built = caches.build(recipe)
    encoded.clear()
    hashed.clear()
    os.utime(tmp_path / "text/part1/0007.txt", (1, 1))
    assert caches.find(recipe).fingerprint == built.fingerprint
    assert caches.build(recipe).fingerprint == built.fingerprint
    assert encoded == []
    assert set(hashed) == {"part1/0007.txt"}


def test_a_changed_file_is_tokenised_again_with_its_neighbours_and_no_other(tmp_path, encoded, settled):
    room.write_texts(tmp_path / "text", 90)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    built = caches.build(recipe)
    encoded.clear()
    path = tmp_path / "text/part1/0007.txt"
    old = path.read_text(encoding="utf-8")
    path.write_text(old.replace("alpha", "ALPHA"), encoding="utf-8")
    assert caches.find(recipe) is None
    changed = caches.build(recipe)
    assert changed.fingerprint != built.fingerprint
    assert "part1/0007.txt" in encoded
    assert len(encoded) < 30
    assert "ALPHA" in room.text_of(changed, changed.train)
    # and back again: nothing is left to do
    encoded.clear()
    path.write_text(old, encoding="utf-8")
    assert caches.build(recipe).fingerprint == built.fingerprint
    assert encoded == []


def test_an_added_file_disturbs_only_its_neighbourhood(tmp_path, encoded, settled):
    room.write_texts(tmp_path / "text", 300)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    caches.build(recipe)
    encoded.clear()
    (tmp_path / "text/part0/0000a.txt").write_text(room.text(5), encoding="utf-8")
    caches.build(recipe)
    assert "part0/0000a.txt" in encoded
    assert len(encoded) < 150


def test_the_same_size_and_time_do_not_hide_a_change_made_in_the_moment_of_reading(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one two three", encoding="utf-8")
    recipe = room.recipe(tmp_path, path)
    first = caches.build(recipe)
    memory = next((tmp_path / "cache/digests").iterdir())
    path.write_text("one two THREE", encoding="utf-8")
    # as on a clock that did not tick in between: what is remembered of the file is what it looks like now
    table = json.loads(memory.read_text())
    table[f"text:{path}"][0] = list(patterns.stat_of(path))
    memory.write_text(json.dumps(table))
    second = caches.build(recipe)
    assert "THREE" in room.text_of(second, second.train)
    assert second.fingerprint != first.fingerprint


def test_the_size_of_plain_text_is_right_from_the_first_unit_on_also_where_some_is_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_REPORT_INTERVAL", -1.0)  # tells at every tick
    old = room.write_texts(tmp_path / "text/old", 20) / "**/*.txt"
    new = room.write_texts(tmp_path / "text/new", 20, first=100) / "**/*.txt"
    caches.build(room.recipe(tmp_path, old))
    told: list[jobs.CachingProgress] = []
    caches.build(room.recipe(tmp_path, old, new), progress=told.append)
    sizes = {now.total_bytes for now in told if now.what == "train"}
    assert sizes == {sum(path.stat().st_size for path in (tmp_path / "text").rglob("*.txt"))}


def test_another_tokenizer_makes_other_shards_and_keeps_the_first_ones(tmp_path, encoded):
    room.write_texts(tmp_path / "text", 10)
    recipes = [
        room.recipe(tmp_path, tmp_path / "text/**/*.txt", tokenizer={"path": str(room.tokenizer_file(tmp_path, size))})
        for size in (300, 280)
    ]
    one, other = (caches.build(recipe) for recipe in recipes)
    assert one.fingerprint != other.fingerprint
    assert len(encoded) == 20
    assert caches.find(recipes[0]).fingerprint == one.fingerprint


def test_two_sources_that_share_files_share_shards(tmp_path, encoded):
    room.write_texts(tmp_path / "text", 10)
    pattern = str(tmp_path / "text/**/*.txt")
    cache = caches.build(room.recipe(tmp_path, pattern, pattern, validation=({"path": pattern},)))
    assert sorted(set(encoded)) == sorted(encoded)
    assert cache.train.tokens == 2 * cache.validation["validation"].tokens
    assert cache.train.documents == 20


@pytest.mark.parametrize("damage", ["missing tokens", "short tokens", "no sidecar", "torn ledger", "torn digests"])
def test_a_damaged_cache_is_made_whole_again(tmp_path, damage):
    room.write_texts(tmp_path / "text", 20)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    built = caches.build(recipe)
    before = room.stored(tmp_path)
    shard = next((tmp_path / "cache/shards").glob("*.shard"))
    match damage:
        case "missing tokens":
            shard.unlink()
        case "short tokens":
            os.truncate(shard, shard.stat().st_size - 2)
        case "no sidecar":
            shard.with_suffix(".json").unlink()
            next((tmp_path / "cache/ledgers").iterdir()).unlink()
        case "torn ledger":
            os.truncate(next((tmp_path / "cache/ledgers").iterdir()), 100)
        case "torn digests":
            os.truncate(next((tmp_path / "cache/digests").iterdir()), 10)
    assert caches.build(recipe).fingerprint == built.fingerprint
    assert caches.find(recipe).fingerprint == built.fingerprint
    assert room.stored(tmp_path) == before


def test_a_file_that_changes_while_it_is_read_is_reported_and_nothing_of_it_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("before", encoding="utf-8")
    original = LoadedTokenizer.encode_batch

    def meanwhile(self, texts, **options):
        path.write_text("after!", encoding="utf-8")
        return original(self, texts, **options)

    monkeypatch.setattr(encode, "_BATCH_BYTES", 1)
    monkeypatch.setattr(LoadedTokenizer, "encode_batch", meanwhile)
    with pytest.raises(TrainkitError, match="was changed while it was being read"):
        caches.build(room.recipe(tmp_path, path))
    assert not list((tmp_path / "cache/shards").iterdir())


# a process of its own, which stands still once it has made so many shards, until it is killed or asked to stop
BUILD = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import data_room as room
from trainkit.recipe import Recipe
from trainkit.data.cache import build as caches
from trainkit.data.cache.encode import threads
from trainkit.data.jobs import Stop
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
room.small_units()
asked, stop, join = threading.Event(), Stop.set, threading.Thread.join
Stop.set = lambda self: (stop(self), asked.set())
threading.Thread.join = lambda self, timeout=None: join(self)  # as long as it takes
encode_batch = LoadedTokenizer.encode_batch
def slowly(self, texts, **options):
    time.sleep({sleep})
    while len(list(Path(recipe.data.cache, "shards").glob("*.json"))) >= {most} and not asked.is_set():
        asked.wait(0.05)
    return encode_batch(self, texts, **options)
LoadedTokenizer.encode_batch = slowly
recipe = Recipe.model_validate_json(sys.stdin.read())
print(caches.build(recipe, engine=threads(2)).fingerprint)
"""


#: A write beyond it fails as on a full disk, though with another errno.
LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
"""


def _start(recipe, *, sleep: float = 0.0, most: int = 1_000_000, first: str = "") -> subprocess.Popen:
    script = first + BUILD.format(tests=str(SUPPORT), sleep=sleep, most=most)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(recipe.model_dump_json(by_alias=True))
    process.stdin.close()
    process.stdin = None
    return process


def _wait_for_shards(directory: Path, count: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + LIMIT
    while len(list((directory / "cache/shards").glob("*.json"))) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)


def test_caching_killed_again_and_again_ends_with_the_bytes_of_caching_never_killed(tmp_path, encoded):
    room.write_texts(tmp_path / "text", 60)
    whole = room.recipe(tmp_path / "whole", tmp_path / "text/**/*.txt", held_out=0.2)
    expected = caches.build(whole)
    total = len(encoded)

    recipe = room.recipe(tmp_path / "killed", tmp_path / "text/**/*.txt", held_out=0.2)
    for shards_done in (1, 5, 9):
        process = _start(recipe, most=shards_done)
        _wait_for_shards(tmp_path / "killed", shards_done, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert caches.find(recipe) is None
    encoded.clear()
    resumed = caches.build(recipe)
    assert 0 < len(encoded) < total
    assert resumed.fingerprint == expected.fingerprint
    assert room.stored(tmp_path / "killed") == room.stored(tmp_path / "whole")


def test_ctrl_c_ends_caching_and_leaves_nothing_half_written(tmp_path):
    room.write_texts(tmp_path / "text", 60)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    process = _start(recipe, most=2)
    _wait_for_shards(tmp_path, 2, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LIMIT)
    assert "KeyboardInterrupt" in error
    assert not list((tmp_path / "cache/shards").glob(".tmp-*"))
    assert caches.find(recipe) is None


def test_two_processes_that_cache_the_same_at_once_do_no_harm(tmp_path):
    room.write_texts(tmp_path / "text", 40)
    recipe = room.recipe(tmp_path / "both", tmp_path / "text/**/*.txt")
    processes = [_start(recipe, sleep=0.01) for _ in range(2)]
    printed = {process.communicate(timeout=LIMIT)[0].strip() for process in processes}
    alone = caches.build(room.recipe(tmp_path / "alone", tmp_path / "text/**/*.txt"))
    assert printed == {alone.fingerprint}
    assert room.stored(tmp_path / "both") == room.stored(tmp_path / "alone")


def test_a_disk_that_takes_no_more_is_reported_with_the_path_and_nothing_half_written_stays(tmp_path):
    (tmp_path / "a.txt").write_text(room.text(0, words=20_000), encoding="utf-8")
    recipe = room.recipe(tmp_path, tmp_path / "a.txt")

    _, error = _start(recipe, first=LIMITED).communicate(timeout=LIMIT)
    assert "TrainkitError" in error
    assert "cannot write the token cache: File too large" in error
    assert str(tmp_path / "cache/shards") in error
    assert not list((tmp_path / "cache/shards").iterdir())
    assert caches.build(recipe).train.documents == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_full_and_a_read_only_disk_are_reported(tmp_path):
    room.write_texts(tmp_path / "text", 30)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    cache = tmp_path / "cache"
    cache.mkdir()

    def mount(options: str) -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", cache], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("mounting is not allowed here")

    for options, problem in (("size=32k", "No space left on device"), ("ro", "Read-only file system")):
        mount(options)
        try:
            with pytest.raises(TrainkitError, match=problem) as caught:
                caches.build(recipe)
            assert str(cache) in caught.value.where
            assert caught.value.exit_code == WRONG_INPUT
            assert not [path for path in cache.rglob(".tmp-*")]
        finally:
            subprocess.run(["umount", cache], check=True)


def test_a_file_where_the_cache_should_be_is_reported(tmp_path):
    room.write_texts(tmp_path / "text", 3)
    (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    with pytest.raises(TrainkitError, match="cannot write the token cache") as caught:
        caches.build(room.recipe(tmp_path, tmp_path / "text/**/*.txt"))
    assert "data.cache" in caught.value.hint
    assert (tmp_path / "cache").read_text(encoding="utf-8") == "in the way"


def test_abandoned_temporary_files_are_swept_and_fresh_ones_are_not(tmp_path):
    room.write_texts(tmp_path / "text", 3)
    caches.build(room.recipe(tmp_path, tmp_path / "text/**/*.txt"))
    directory = tmp_path / "cache/shards"
    for name, age in (("old", 3 * 24 * 3600), ("fresh", 60)):
        (directory / f".tmp-{name}").touch()
        os.utime(directory / f".tmp-{name}", (time.time() - age,) * 2)
    caches.build(room.recipe(tmp_path, tmp_path / "text/**/*.txt"))
    assert [path.name for path in directory.glob(".tmp-*")] == [".tmp-fresh"]


def test_holding_out_nothing_or_everything_is_reported(tmp_path):
    (tmp_path / "a.txt").write_text("one document", encoding="utf-8")
    with pytest.raises(TrainkitError, match="holds out none") as caught:
        caches.build(room.recipe(tmp_path, tmp_path / "a.txt", held_out=0.001))
    assert caught.value.where == "data.held_out"
    with pytest.raises(TrainkitError, match="the training data holds no text"):
        caches.build(room.recipe(tmp_path, tmp_path / "a.txt", held_out=0.9999))


def test_progress_that_is_as_it_was_is_not_reported_again(monkeypatch):
    monkeypatch.setattr(jobs, "_REPORT_INTERVAL", -1.0)  # tells at every tick
    told: list[jobs.CachingProgress] = []
    reporter = jobs.Reporter("train", 1, told.append)
    for documents in (1, 0, 0, 2, 0):
        reporter.add(documents=documents)
        reporter.tick()
    reporter.finish()
    reporter.finish()
    assert [(each.documents, each.done) for each in told] == [(1, False), (3, False), (3, True)]


def test_progress_ends_with_the_totals_of_each_set(tmp_path):
    room.write_texts(tmp_path / "text", 30)
    told: list[jobs.CachingProgress] = []
    pattern = str(tmp_path / "text/**/*.txt")
    recipe = room.recipe(tmp_path, pattern, held_out=0.2, validation=({"path": pattern, "name": "own"},))
    cache = caches.build(recipe, progress=told.append)
    ends = {now.what: now for now in told if now.done}
    both = [cache.train, cache.validation["held-out"]]
    assert ends["train"].tokens == sum(stream.tokens for stream in both)
    assert ends["train"].documents == 30
    assert ends["train"].bytes == ends["train"].total_bytes == ends["own"].bytes == cache.validation["own"].bytes
    assert list(cache.validation) == recipe.data.validation_names == ["own", "held-out"]
