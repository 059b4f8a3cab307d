"""However many shards a cache has, a process that reads them all keeps few files open."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import SUPPORT

from trainkit.data.storage import map_file

#: Tokenises `SHARDS` small files into a shard each, and reads every batch, also packed. Told on stdout: shards, open
#: files at the end, documents that were read of the last of them.
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
import data_room as room
from trainkit.data.cache import build as caches
from trainkit.data import checks
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.sources import units

directory, count = Path(sys.argv[2]), int(sys.argv[3])
os.fsync = lambda descriptor: None  # thousands of them take a busy disk minutes
units.LARGE = 1
(directory / "text").mkdir()
for i in range(count):
    (directory / f"text/{i:05d}.txt").write_text(f"number {i} " + room.text(i, 5), encoding="utf-8")
for encoding in ({"type": "concatenate"}, {"type": "pack"}):
    recipe = room.recipe(directory, directory / "text/*.txt", encoding=encoding, batch_size=64, shuffle=False)
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    checks.find_problems(cache, recipe)
    seen = sum(int(data.batch(step)["weights"].sum()) for step in range(-(-data.examples // 64)))
    room.tokens_of(cache.train)
    told = {"shards": len(cache.shards), "open": len(os.listdir("/proc/self/fd")), "seen": seen}
    print(json.dumps(told | {"tokens": cache.train.tokens, "documents": cache.train.documents}))
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


@pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc lists")
def test_a_cache_of_far_more_shards_than_files_may_be_open_is_read_also_packed(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(SUPPORT), str(tmp_path), "1600"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited)
    assert not done.returncode, done.stderr
    chunked, packed = map(json.loads, done.stdout.splitlines())
    assert chunked["shards"] == packed["shards"] == 1600
    assert max(chunked["open"], packed["open"]) < 64
    assert chunked["seen"] >= chunked["tokens"] - 1
    assert packed["seen"] > 0


def test_the_soft_limit_of_open_files_is_raised_for_a_command_and_its_children(tmp_path):
    program = (
        "import resource, subprocess, sys; from trainkit.cli import DESCRIPTORS, _raise_descriptor_limit as raised;"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); raised();"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]; assert soft == min(hard, DESCRIPTORS) > 256, soft;"
        "child = 'import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])';"
        "assert int(subprocess.check_output([sys.executable, '-c', child])) == soft;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); raised()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_map_has_the_bytes_of_its_file_and_lives_as_long_as_a_view_of_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 64)

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path)) if sys.platform == "linux" else 0

    found = map_file(path, 1000)
    assert found.tobytes() == path.read_bytes()[:1000]
    assert not found.flags.writeable
    view = found[10:].view("<u2")
    del found
    gc.collect()
    assert int(view[0]) == 10 + (11 << 8)
    assert maps() == (sys.platform == "linux")
    del view
    gc.collect()
    assert maps() == 0
    assert np.array_equal(map_file(path), np.frombuffer(path.read_bytes(), np.uint8))


def test_a_file_that_is_gone_empty_or_too_short_is_not_mapped(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="it has 3 bytes instead of 4"):
        map_file(tmp_path / "a", 4)
    with pytest.raises(ValueError, match="it is empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "gone")
