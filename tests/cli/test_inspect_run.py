"""`trainkit inspect RUN` shows the data that the run was trained on, or says why it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import data_room as room
import pytest
from trainer import RECIPE

from trainkit import files
from trainkit.cli.inspect import inspect
from trainkit.data import recorded
from trainkit.data.cache import build as caches
from trainkit.errors import TrainkitError
from trainkit.hub.recipe import load
from trainkit.rundir.directory import create

always_small_units = room.always_small_units


@pytest.fixture(params=["full", "window"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has recorded its data, of several files in several units and of one in spans."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainkit.data.sources.digests.SPAN", 2000)
    tokenizer = room.tokenizer_file(tmp_path)
    room.write_texts(tmp_path / "text", 30)
    room.write_jsonl(tmp_path / "a.jsonl", [room.text(i) for i in range(100)])
    shuffle = {"full": '"full"', "window": "{ window = 8 }"}[request.param]
    text = RECIPE.replace("held_out = 0.1", f"held_out = 0.1\nshuffle = {shuffle}")
    text = text.replace("train = { vocab_size = 300 }", f'path = "{tokenizer}"')
    text = text.replace('path = "text/*.txt"', 'path = "text/**/*.txt"\n[[data.train]]\npath = "a.jsonl"')
    (tmp_path / "tiny.toml").write_text(text)
    loaded = load(Path("tiny.toml"))
    directory = create(loaded)
    cache = caches.build(loaded.recipe)
    (directory / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    recorded.keep(cache, directory)
    return directory


def shown(what: object, *overrides: str) -> list[str]:
    return list(inspect(str(what), overrides, step=3, first=1, rows=8, json=True))


def test_a_source_that_has_changed_is_refused_by_its_name(run, tmp_path):
    before = shown(run)
    assert before == shown("tiny.toml")
    path = tmp_path / "text/part1/0001.txt"
    text = path.read_text("utf-8")
    path.write_text("something else", encoding="utf-8")
    with pytest.raises(TrainkitError, match=r"0001\.txt has changed: this is not the data that the run was") as caught:
        shown(run)
    assert caught.value.exit_code
    assert "a.jsonl" not in caught.value.problem
    path.write_text(text, encoding="utf-8")
    assert shown(run) == before
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    room.write_texts(tmp_path / "text", 1, first=99)
    with pytest.raises(TrainkitError, match=r"0099\.txt was added, \S*a\.jsonl has changed: this is not the data"):
        shown(run)


@pytest.mark.parametrize("gone", ["text", "text/part1", "a.jsonl"])
def test_without_its_sources_a_whole_cache_is_shown_as_before(run, tmp_path, gone):
    before = shown(run)
    shutil.move(tmp_path / gone, tmp_path / "elsewhere")
    assert shown(run) == before
    assert {json.loads(line)["source"] for line in before} == {"train"}
    next((tmp_path / "cache/shards").glob("*.shard")).unlink()
    whole = [*(tmp_path / "cache/shards").glob("*.json")]
    for path in whole:
        path.with_suffix(".shard").unlink(missing_ok=True)
    with pytest.raises(TrainkitError) as caught:
        shown(run)
    assert caught.value.where == str(run) or "does not hold all tokens of this run" in caught.value.hint


def test_another_tokenizer_is_refused(run, tmp_path):
    other = room.tokenizer_file(tmp_path, 290)
    shutil.copy(other, room.tokenizer_file(tmp_path))
    with pytest.raises(TrainkitError, match="the tokenizer, or how documents are read, has changed"):
        shown(run)


def test_an_emptied_cache_is_made_again(run, tmp_path):
    before = shown(run)
    shutil.rmtree(tmp_path / "cache")
    assert shown(run) == before


def test_a_run_of_an_earlier_version_is_compared_with_its_checkpoint(run, tmp_path, monkeypatch):
    known = recorded.read(run)
    assert known is not None
    (run / recorded.NAME).unlink()
    monkeypatch.setattr("trainkit.cli.inspect._fingerprint_in_checkpoint", lambda directory: known.fingerprint)
    before = shown(run)
    (tmp_path / "a.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(TrainkitError, match="the data is not what this run was trained on"):
        shown(run)
    assert before
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(TrainkitError, match="no such file") as caught:
        shown(run)
    assert "began this run and did not record its data, so inspect needs its sources" in caught.value.hint
    assert "--set data.train.0.path=PATH" in caught.value.hint


def test_a_run_that_recorded_its_data_in_an_earlier_format_is_shown_as_resume_continues_it(run, monkeypatch):
    before, known = shown(run), files.read_json(run / recorded.NAME)
    now = caches.find(load(Path("tiny.toml")).recipe)
    assert now is not None
    earlier = recorded._fingerprint(now, 3)
    assert earlier != now.fingerprint
    files.write_json(run / recorded.NAME, {**known, "fingerprint": earlier})
    assert shown(run) == before
    monkeypatch.setattr(recorded, "PIECE", 20)
    with pytest.raises(TrainkitError, match="texts of more than 20 characters are tokenised as a whole now"):
        shown(run)
