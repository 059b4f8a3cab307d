"""What no run needs leaves a cache, and nothing leaves it while a process uses it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from trainer import BARE, Trainer, trainkit, workplace

from trainkit.data import recorded
from trainkit.data.cache import ledger

RECIPE = BARE.replace("steps = 24", "steps = 8").replace("keep_every = 6", "keep_every = 4")
RECIPE = RECIPE.replace("sequence_length = 32", 'sequence_length = 32\nheld_out = 0.1\nencoding = { type = "pack" }')


def stored(cache: Path, *names: str) -> set[Path]:
    return {path for name in names or ("ledgers", "shards", "frames", "apart") for path in (cache / name).glob("*")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return workplace(tmp_path, RECIPE, documents=20)


def test_what_a_run_needs_stays_whatever_it_does_meanwhile(place: Path) -> None:
    cache = place / "cache"
    with Trainer(place, "run", "tiny.toml", "--plain", held_at="step 3") as trainer:
        assert trainer.until(lambda event: event["type"] == "step" and event["step"] == 3)
        used = stored(cache)
        (place / "text" / "new.txt").write_text("a text that the run does not have\n" * 20)
        done = trainkit(place, "cache-data", "tiny.toml")
        assert done.returncode == 0, done.stderr
        (place / "text" / "new.txt").unlink()
        unused = stored(cache) - used
        assert unused
        shown = trainkit(place, "cache-data", "tiny.toml", "--prune")
        assert shown.returncode == 0 and "can be removed; to do so: --prune --yes" in shown.stdout, shown.stderr
        refused = trainkit(place, "cache-data", "tiny.toml", "--prune", "--yes")
        assert refused.returncode == 1 and "a process uses the cache, so nothing is removed" in refused.stderr
        assert stored(cache) == used | unused, "the run maps these"
        trainer.kill()
    done = trainkit(place, "cache-data", "tiny.toml", "--prune", "--yes")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("removed: 2 ledgers and"), done.stdout
    assert stored(cache) == used
    done = trainkit(place, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert stored(cache) == used, "nothing was tokenised again"
    assert "nothing else is in the cache" in trainkit(place, "cache-data", "tiny.toml", "--prune", "--yes").stdout


def test_a_run_of_another_recipe_keeps_its_evaluation_sets_and_what_was_left_over_goes(place: Path) -> None:
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr
    cache, run = place / "cache", place / "runs" / "tiny"
    record = recorded.read(run)
    assert record is not None and len(record.others) == 1 and ledger.find(cache, record.others[0])
    used = stored(cache)
    left_over, fresh = (cache / "shards" / f"{name}.shard" for name in ("aaaa", "bbbb"))
    left_over.write_bytes(b"1")
    fresh.write_bytes(b"1")
    os.utime(left_over, times=(time.time() - 1e6,) * 2)
    (place / "other.toml").write_text(RECIPE.replace('"text/*.txt"', '"text/01*.txt"'))
    done = trainkit(place, "cache-data", "other.toml", "--prune", "--yes")
    assert done.returncode == 0, done.stderr
    assert stored(cache) == {*used, fresh}, "a shard that was just written may be about to be listed"
    (run / "data.json").write_text("{}")
    done = trainkit(place, "cache-data", "other.toml", "--prune")
    assert f"{run} does not say which data it needs" in done.stdout
