"""A file that somebody else wrote is refused in words or ignored, whatever is in it, and leads nowhere else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import hostile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint.manifest import DamagedCheckpoint
from trainkit.data.cache import ledger, shards

NO_NAMES = ("../../x", "/etc/passwd", "..", ".", "", "a/b", "a\x00b", "x" * 300)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    hostile.prepare(directory)
    return directory


@pytest.mark.parametrize("name", hostile.READERS)
def test_a_valid_file_is_read(place: Path, name: str) -> None:
    reader = hostile.READERS[name]
    path, before = place / reader.name, None
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(reader.valid)
    try:
        reader.read(place)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


@pytest.mark.parametrize("name", hostile.READERS)
def test_a_changed_file_is_refused_in_words_or_ignored(place: Path, name: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        reader = hostile.READERS[name]
        hostile.try_reader(place, reader, hostile.changed_content(reader, random.Random(seed)))

    check()


@pytest.mark.parametrize("name", NO_NAMES)
def test_no_name_in_a_file_is_a_path_to_another_place(tmp_path: Path, name: str) -> None:
    hostile.prepare(tmp_path)
    manifest = json.loads(hostile.READERS["manifest"].valid)
    manifest["leaves"] = {name: manifest["leaves"]["params.weight"]}
    (tmp_path / manifests.NAME).write_text(json.dumps(manifest))
    with pytest.raises(DamagedCheckpoint, match="which is no name of a leaf"):
        manifests.read(tmp_path)
    with pytest.raises(ValueError, match="the key is"):
        shards.Shard.from_json({**hostile.SHARD, "key": name})
    assert ledger.find(tmp_path, name) is None and ledger.files_of(tmp_path, name) is None


def test_deep_json_is_damage_and_no_crash(place: Path) -> None:
    for name in ("data", "index", "ledger", "manifest", "safetensors", "shard", "tokenizer", "tokenizer config"):
        hostile.try_reader(place, hostile.READERS[name], b'{"a": ' + b"[" * 100_000)


@pytest.mark.parametrize("dtype", ["object", "O", "f8,f8", 5, None, ["float32"], {"a": 1}])
def test_an_array_of_a_strange_type_is_refused(place: Path, dtype: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        shards.Shard.from_json({**hostile.SHARD, "dtype": dtype})
    header = json.dumps({"w": {"dtype": dtype, "shape": [2], "data_offsets": [0, 8]}}).encode()
    hostile.try_reader(place, hostile.READERS["safetensors"], len(header).to_bytes(8, "little") + header + bytes(8))
