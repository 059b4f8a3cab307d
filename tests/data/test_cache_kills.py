"""Work on a cache that is interrupted, killed, or shared with another process ends with the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import data_room as room
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import SUPPORT

from trainkit.data import storage
from trainkit.data.cache import build as caches
from trainkit.data.cache import encode, shards
from trainkit.data.jobs import Stopped
from trainkit.errors import TrainkitError
from trainkit.files import read_json
from trainkit.recipe import Recipe

few = settings(max_examples=20, deadline=None)


always_small_units = room.always_small_units


@pytest.fixture
def small_parts(monkeypatch):
    """Units become several shards."""
    monkeypatch.setattr(encode, "_BATCH_BYTES", 100)
    monkeypatch.setattr(encode, "SHARD_TOKENS", 300)


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_a_unit_that_is_interrupted_continues_with_the_part_that_is_missing(
    tmp_path, monkeypatch, small_parts, held_out
):
    room.write_jsonl(tmp_path / "a.jsonl", [room.text(i, 20) for i in range(100)])
    caches.build(room.recipe(tmp_path / "whole", tmp_path / "a.jsonl", held_out=held_out))
    expected = room.stored(tmp_path / "whole")
    parts = len(expected) // (2 if held_out else 1)
    assert parts > 5
    commit = encode._Part.commit
    made: list[object] = []
    interrupted_after = parts

    def watched(part, *args, **options):
        if len(made) == interrupted_after:
            raise Stopped
        made.append(part)
        return commit(part, *args, **options)

    monkeypatch.setattr(encode._Part, "commit", watched)
    for after in (0, 1, parts - 1):
        made.clear()
        interrupted_after = after
        recipe = room.recipe(tmp_path / str(after), tmp_path / "a.jsonl", held_out=held_out)
        with pytest.raises(Stopped):
            caches.build(recipe)
        interrupted_after = parts
        caches.build(recipe)
        assert len(made) == parts, "no part is made twice"
        assert room.stored(tmp_path / str(after)) == expected


@few
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch=st.integers(1, 200),
    tokens=st.integers(1, 200),
    held_out=st.sampled_from([0.0, 0.5]),
)
def test_parts_of_any_size_hold_the_same_documents(tmp_path_factory, sizes, batch, tokens, held_out):
    directory = tmp_path_factory.mktemp("parts")
    rows = [{"q": f"{i} ", "a": room.text(i, n)} for i, n in enumerate(sizes)]
    room.write_rows(directory / "a.jsonl", rows)
    document = {"type": "prompt", "prompt": "{q}", "response": "{a}"}
    whole, parted = room.recipes_of(
        directory, {"path": str(directory / "a.jsonl"), "document": document}, held_out=held_out
    )

    def documents(recipe: Recipe) -> Any:
        try:
            cache = caches.build(recipe)
        except TrainkitError as error:
            return error.problem
        streams = [cache.train, *cache.validation.values()]
        arrays = [stream.arrays(number) for stream in streams for number in range(len(stream.sections))]
        assert all(one.ends[-1:].tolist() == [len(one.tokens)] for one in arrays), "no prompt is without its response"
        marks = [stream.marks(np.zeros(1, np.int64), stream.tokens).tolist() for stream in streams]
        return [[room.text_of(cache, stream) for stream in streams], marks, [stream.documents for stream in streams]]

    expected = documents(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_BATCH_BYTES", batch)
        patch.setattr(encode, "SHARD_TOKENS", tokens)
        assert documents(parted) == expected


# a process of its own that writes down what it tokenises
LOGGED = """
import os, sys
sys.path.insert(0, {tests!r})
import data_room as room
from trainkit.data.cache import build as caches, encode
from trainkit.data.cache.encode import threads
from trainkit.recipe import Recipe
room.small_units()
encode._BATCH_BYTES, encode.SHARD_TOKENS = 100, 300
commit = encode._Part.commit
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def logged(part, *args, **options):
    os.write(log, (min(part._keys.values()) + "\\n").encode())
    return commit(part, *args, **options)
encode._Part.commit = logged
print(caches.build(Recipe.model_validate_json(sys.stdin.read()), engine=threads(2)).fingerprint)
"""


def test_two_processes_share_the_work_and_neither_does_what_the_other_does(tmp_path):
    room.write_texts(tmp_path / "text", 80)
    together, alone = room.recipes_of(tmp_path, tmp_path / "text/**/*.txt", held_out=0.2)
    claims = tmp_path / "one/cache/locks"
    claims.mkdir(parents=True)
    script = LOGGED.format(tests=str(SUPPORT), log=str(tmp_path / "log"))
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.write(together.model_dump_json(by_alias=True))
        process.stdin.close()
    printed = {process.stdout.read().strip() for process in processes}
    assert [process.wait() for process in processes] == [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_BATCH_BYTES", 100)
        patch.setattr(encode, "SHARD_TOKENS", 300)
        assert printed == {caches.build(alone).fingerprint}
    expected = room.stored(tmp_path / "other")
    assert room.stored(tmp_path / "one") == expected
    done = (tmp_path / "log").read_text().split()
    assert len(done) == len(set(done)) == len(expected) // 2


def test_the_claim_of_a_dead_process_keeps_nobody_waiting(tmp_path):
    room.write_texts(tmp_path / "text", 10)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    script = (
        "import os, sys; from pathlib import Path; from trainkit.data.storage import claim\n"
        "claims = [claim(Path(path)) for path in sys.argv[1:]]\n"
        "assert all([claim.__enter__() for claim in claims])\nos._exit(9)"
    )
    cache, _ = caches._prepare(recipe, None)
    (source,) = cache.trained.sources
    locks = [tmp_path / "cache/locks" / shards.key_of(unit, "all", source.encoding) for unit in source.units]
    assert subprocess.run([sys.executable, "-c", script, *locks], check=False).returncode == 9
    assert all(lock.exists() for lock in locks)
    assert caches.build(recipe).train.documents == 10


def test_only_one_at_a_time_has_a_claim(tmp_path):
    with storage.claim(tmp_path / "locks/a") as mine, storage.claim(tmp_path / "locks/a") as theirs:
        assert (mine, theirs) == (True, False)
        with storage.claim(tmp_path / "locks/b") as another:
            assert another
    with storage.claim(tmp_path / "locks/a") as mine:
        assert mine
    assert not list((tmp_path / "locks").iterdir())


@pytest.mark.parametrize("version", [1, shards.FORMAT + 1, "no json"])
def test_a_cache_of_another_version_is_refused_with_the_command_that_makes_it_again(tmp_path, version):
    room.write_texts(tmp_path / "text", 3)
    recipe = room.recipe(tmp_path, tmp_path / "text/**/*.txt")
    fingerprint = caches.build(recipe).fingerprint
    note = tmp_path / "cache/format.json"
    assert read_json(note) == {"format": shards.FORMAT}
    if version == 1:
        note.unlink()  # the first version wrote none
    else:
        note.write_text("no json" if version == "no json" else json.dumps({"format": version}), encoding="utf-8")
    for make in (caches.find, caches.build, caches.begin):
        with pytest.raises(TrainkitError) as caught:
            make(recipe)
        assert str(version) in caught.value.problem or version == "no json"
        assert "trainkit cache-data RECIPE --rebuild" in caught.value.hint
        assert str(tmp_path / "cache") in caught.value.where
    (tmp_path / "cache/rejected/of-before").mkdir(parents=True)
    storage.remove(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["in-use"], "which other processes may have locked"
    assert caches.build(recipe).fingerprint == fingerprint


#: Kills in the test of them; more by `TRAINKIT_KILLS=500 pytest tests/data/test_cache_kills.py`.
KILLS = int(os.environ.get("TRAINKIT_KILLS", "12"))

# a process that starts others that are ready at once, and kills them; it tokenises nothing itself
KILLER = """
import os, random, runpy, signal, sys, time
sys.path.insert(0, {tests!r})
import data_room as room
import trainkit.cli, trainkit.cli.cache_data, trainkit.data.cache.build
from trainkit.data.cache import encode
from trainkit.data.sources import digests
room.small_units()
encode._BATCH_BYTES, encode.SHARD_TOKENS, digests.SPAN = 100, 200, 3000
sys.stdout = sys.stderr = open(os.devnull, "w")

def start(cache):
    child = os.fork()
    if child:
        return child
    sys.argv = ["trainkit", "cache-data", {recipe!r}, "--set", f'data.cache="{{cache}}"', "--workers", "2"]
    runpy.run_module("trainkit", run_name="__main__")
    os._exit(1)

began = time.monotonic()
assert os.waitstatus_to_exitcode(os.waitpid(start({whole!r}), 0)[1]) == 0
duration = time.monotonic() - began
drawn, kills, caches = random.Random(0), 0, 0
while kills < {kills}:
    child = start({killed!r} + str(caches))
    time.sleep(drawn.random() * duration / 2)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    kills += status != 0
    caches += status == 0
for number in range(caches + 1):
    assert os.waitstatus_to_exitcode(os.waitpid(start({killed!r} + str(number)), 0)[1]) == 0
"""


def test_caching_killed_at_any_instant_ends_with_the_bytes_of_caching_never_killed(tmp_path):
    room.write_texts(tmp_path / "text", 60)
    room.write_jsonl(tmp_path / "text/lines.jsonl", [room.text(i) for i in range(100)])
    recipe = f"""
schema = 1
[run]
name = "killed"
[model]
type = "gpt2"
layers = 1
hidden = 16
heads = 2
[tokenizer]
path = "{room.tokenizer_file(tmp_path)}"
[task]
type = "causal-lm"
[data]
sequence_length = 16
held_out = 0.2
[[data.train]]
path = ["{tmp_path}/text/**/*.txt", "{tmp_path}/text/*.jsonl"]
[train]
steps = 1
batch_size = 2
[optimizer]
type = "adamw"
learning_rate = 1e-3
"""
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    names = {"recipe": tmp_path / "recipe.toml", "whole": tmp_path / "whole/cache", "killed": tmp_path / "killed"}
    script = KILLER.format(tests=str(SUPPORT), kills=KILLS, **{name: str(path) for name, path in names.items()})
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50 * KILLS)
    expected = room.stored(tmp_path / "whole")
    assert len(expected) > 20
    killed = sorted(tmp_path.glob("killed*"))
    for cache in killed:
        made = {path.name: path.read_bytes() for path in (cache / "shards").glob("*.shard")}
        assert made == expected
        notes = {path.name: path.read_bytes() for path in (cache / "shards").glob("*.json")}
        assert notes == {path.name: path.read_bytes() for path in (tmp_path / "whole/cache/shards").glob("*.json")}
