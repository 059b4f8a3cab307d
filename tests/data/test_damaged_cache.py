"""What is damaged in the cache is an error before anything is trained on it, or is made again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import data_room as room
import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache import shards
from trainkit.data.checks import find_problems
from trainkit.errors import FAILED, TrainkitError


def zero(content: bytearray) -> None:
    content[:] = bytes(len(content))


def flip_a_bit(content: bytearray) -> None:
    content[len(content) // 3] ^= 8


def change(path: Path, harm: object) -> None:
    content = bytearray(path.read_bytes())
    harm(content)  # type: ignore[operator]
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [zero, flip_a_bit])
@pytest.mark.parametrize("encoding", ["concatenate", "windows", "pack", "pad"])
def test_a_damaged_shard_is_an_error_with_its_path_before_the_first_batch_with_its_tokens(tmp_path, harm, encoding):
    files = room.write_texts(tmp_path / "text", 12) / "*/*.txt"
    recipe = room.recipe(tmp_path, files, shuffle=False, encoding={"type": encoding})
    before = caches.build(recipe)
    whole = TrainSet(before, recipe).batch(0)
    (shard, *_) = before.shards
    change(shards.path_of(before.directory, shard.key), harm)
    cache = caches.find(recipe)
    assert cache is not None, "its size is right"
    with pytest.raises(TrainkitError, match="does not match its checksum") as refused:
        TrainSet(cache, recipe).batch(0)
    assert refused.value.where == str(shards.path_of(before.directory, shard.key))
    assert "--repair" in refused.value.hint and refused.value.exit_code == FAILED
    shards.path_of(before.directory, shard.key).unlink()
    again = TrainSet(caches.build(recipe), recipe).batch(0)
    np.testing.assert_array_equal(again["tokens"], whole["tokens"])


def test_what_the_cache_keeps_is_never_made_of_a_damaged_shard(tmp_path):
    files = room.write_texts(tmp_path / "text", 40) / "*/*.txt"
    recipe = room.recipe(tmp_path, files, shuffle=False, held_out=0.3, encoding={"type": "pack"})
    built = caches.build(recipe)
    whole = TrainSet(built, recipe).batch(0)
    shard = built.train.sections[0].shard
    path = shards.path_of(built.directory, shard.key)
    content = path.read_bytes()
    for name in ("frames", "apart"):
        shutil.rmtree(built.directory / name)
    change(path, zero)
    with pytest.raises(TrainkitError, match="does not match its checksum"):
        TrainSet(caches.build(recipe), recipe).batch(0)
    assert not list(built.directory.glob("apart/*.json"))
    path.write_bytes(content)
    again = TrainSet(caches.build(recipe), recipe).batch(0)
    np.testing.assert_array_equal(again["tokens"], whole["tokens"])


def test_spans_that_exist_are_read_without_looking_at_the_shard(tmp_path, monkeypatch):
    recipe = room.recipe(tmp_path, room.write_texts(tmp_path / "text", 6) / "*/*.txt", encoding={"type": "pack"})
    examples = TrainSet(caches.build(recipe), recipe).examples
    monkeypatch.setattr(shards, "check", lambda cache, shard: pytest.fail("it reads all of a large cache at the start"))
    assert TrainSet(caches.build(recipe), recipe).examples == examples


def test_a_shard_is_compared_with_its_checksum_when_it_is_first_used_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr("trainkit.data.sources.units.LARGE", 1)
    recipe = room.recipe(tmp_path, room.write_texts(tmp_path / "text", 12) / "*/*.txt", shuffle=False, batch_size=1)
    data, compared = TrainSet(caches.build(recipe), recipe), []
    check = shards.check
    monkeypatch.setattr(shards, "check", lambda cache, shard: (compared.append(shard.key), check(cache, shard))[1])
    data.batch(0)
    assert 0 < len(compared) < 12, "only those of this batch"
    for step in range(data.examples):
        data.batch(step)
    assert len(compared) == len(set(compared)) == 12


@pytest.mark.parametrize("encoding", ["concatenate", "windows", "pack", "pad"])
def test_a_shard_that_is_cut_off_while_it_is_in_use_is_an_error_and_one_that_is_deleted_is_read_on(tmp_path, encoding):
    files = room.write_texts(tmp_path / "text", 12) / "*/*.txt"
    recipe = room.recipe(tmp_path, files, shuffle=False, encoding={"type": encoding})
    cache = caches.build(recipe)
    data, path = TrainSet(cache, recipe), shards.path_of(cache.directory, cache.shards[0].key)
    whole, content = data.batch(0), path.read_bytes()
    path.unlink()
    np.testing.assert_array_equal(data.batch(0)["tokens"], whole["tokens"])
    path.write_bytes(content)
    data = TrainSet(caches.build(recipe), recipe)
    data.batch(0)
    os.truncate(path, 1)
    with pytest.raises(TrainkitError, match="it has 1 bytes instead of") as refused:
        data.batch(0)
    assert refused.value.where == str(path) and refused.value.exit_code == FAILED


def test_a_shard_that_is_cut_off_while_the_data_is_checked_is_an_error(tmp_path):
    recipe = room.recipe(tmp_path, room.write_texts(tmp_path / "text", 12) / "*/*.txt")
    cache = caches.build(recipe)
    assert TrainSet(cache, recipe).batch(0)["tokens"].any(), "it is mapped"
    path = shards.path_of(cache.directory, cache.shards[0].key)
    find_problems(cache, recipe)
    os.truncate(path, 1)
    with pytest.raises(TrainkitError, match="it has 1 bytes instead of") as refused:
        find_problems(cache, recipe)
    assert refused.value.where == str(path) and refused.value.exit_code == FAILED


@pytest.mark.parametrize("encoding", ["windows", "pack", "pad"])
def test_spans_that_are_cut_off_while_they_are_in_use_are_made_again(tmp_path, encoding):
    files = room.write_texts(tmp_path / "text", 12) / "*/*.txt"
    recipe = room.recipe(tmp_path, files, shuffle=False, encoding={"type": encoding})
    data = TrainSet(caches.build(recipe), recipe)
    whole = data.batch(0)
    for path in (tmp_path / "cache" / "frames").glob("*.npy"):
        os.truncate(path, 8)
    np.testing.assert_array_equal(data.batch(0)["tokens"], whole["tokens"])


def test_no_flipped_bit_of_a_ledger_or_of_a_note_of_a_shard_changes_what_is_read(tmp_path):
    recipe = room.recipe(tmp_path, room.write_texts(tmp_path / "text", 3) / "*/*.txt")
    expected = caches.build(recipe).shards
    for name in ("ledgers", "shards"):
        path = next((tmp_path / "cache" / name).glob("*.json"))
        whole, missed = path.read_bytes(), 0
        for bit in range(0, 8 * len(whole), 97):
            torn = bytearray(whole)
            torn[bit // 8] ^= 1 << bit % 8
            path.write_bytes(torn)
            if name == "ledgers":
                found = caches.find(recipe)
                missed += found is not None
                assert found is None or found.shards == expected, bit
            else:
                shard = shards.find(tmp_path / "cache", path.stem)
                missed += shard is not None
                assert shard is None or shard in expected, bit
        path.write_bytes(whole)
        assert missed <= 2, "only where the checksum has lost its name"
    assert caches.find(recipe) is not None
