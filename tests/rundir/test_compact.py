"""A finished run with a small log is watched, compared and resumed as before."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import fake_run
import pytest

from trainkit import files
from trainkit.errors import TrainkitError
from trainkit.events.damage import damage
from trainkit.events.tail import NAME, read
from trainkit.events.view import View
from trainkit.rundir import compact as compacting
from trainkit.rundir.compact import compact, is_finished, measure
from trainkit.rundir.compare import results
from trainkit.rundir.follow import LogFollower
from trainkit.rundir.summary import SummaryReader
from trainkit.track.projections import TrackerProgress, all_copied, not_copied, read_progress, write_progress

STEPS = 3000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two attempts, the second from step 1500, with a spike and a loss that is not finite."""
    first, second = fake_run.events(1800, total=STEPS), fake_run.events(STEPS, attempt=2, resumed_from=1500)
    by_step = {event["step"]: event["metrics"] for event in second if event["type"] == "step"}
    by_step[1611]["train/loss"], by_step[1733]["train/loss"] = 99.0, "nan"
    end = {"type": "run_finished", "t": 1.8e9, "step": STEPS, "attempt": 2, "status": "finished", "exit_code": 0,
           "message": ""}  # fmt: skip
    return fake_run.write(tmp_path_factory.mktemp("compact") / "long", [*first, *second, end])


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compacting, "SPACED", 100)
    monkeypatch.setattr(compacting, "NEWEST", 50)
    return Path(shutil.copytree(finished, tmp_path / "long"))


def view_of(run: Path) -> View:
    follower = LogFollower(run)
    while follower.advance(seconds=1):
        pass
    assert follower.problem == ""
    return follower.view


def test_a_small_log_shows_the_same_results_and_every_other_event(run: Path) -> None:
    before, lines = view_of(run), read(run)
    sizes = measure(run)
    assert sizes.steps_before == STEPS and compact(run) == sizes
    assert (run / NAME).stat().st_size == sizes.after < 0.25 * sizes.before
    after = view_of(run)
    assert results([after]) == results([before])
    kept = [event for event in read(run) if event["type"] == "step"]
    assert len(kept) == sizes.steps_after < 400
    assert {*range(50, STEPS, 50), *range(STEPS - 49, STEPS + 1), 1611, 1733} <= {event["step"] for event in kept}
    assert [e for e in read(run) if e["type"] != "step"] == [e for e in lines if e["type"] != "step"]
    lowest, highest = (before.series["train/loss"].lowest, before.series["train/loss"].highest)
    assert (after.series["train/loss"].lowest, after.series["train/loss"].highest) == (lowest, highest)
    reader = SummaryReader(run)
    reader.read()
    assert reader.facts is not None and reader.facts.state == "finished" and reader.facts.step == STEPS
    assert measure(run).after == sizes.after, "a small log becomes no smaller"


def test_checkpoints_know_a_small_log_and_report_what_is_changed_in_it(run: Path) -> None:
    path = run / NAME
    mark = (path.stat().st_size - 500, files.checksum_of(path, path.stat().st_size - 500))
    compact(run)
    assert damage(run, mark, step=STEPS, attempt=2) is None
    assert damage(run, mark, step=STEPS, attempt=3) is not None, "that attempt began after the log was made small"
    with path.open("a") as end:
        end.write(json.dumps({"type": "log", "t": 1.9e9, "step": STEPS, "attempt": 3}) + "\n")
    assert damage(run, mark, step=STEPS, attempt=2) is None, "a resumed attempt has appended to it"
    path.write_text(path.read_text().replace('"train/loss": 99.0', '"train/loss": 98.0'))
    assert damage(run, mark, step=STEPS, attempt=2) is not None


def test_a_kill_while_a_log_is_replaced_leaves_the_one_or_the_other(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run / NAME
    before, mark = path.read_bytes(), (path.stat().st_size, files.checksum_of(path))

    def killed(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(run, moved=killed)
    assert path.read_bytes() == before and damage(run, mark, step=STEPS, attempt=2) is None
    assert not list(run.glob(".*"))


def test_a_run_that_is_not_finished_keeps_its_log(run: Path) -> None:
    path = run / NAME
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    before = path.read_bytes()
    assert not is_finished(run)
    with pytest.raises(TrainkitError, match="the run is not finished"):
        compact(run)
    assert path.read_bytes() == before


def test_a_tracker_that_has_the_whole_log_has_the_whole_small_log(run: Path) -> None:
    size = (run / NAME).stat().st_size
    write_progress(run, "aim", TrackerProgress("hash", ".", offset=size - 1))
    assert not_copied(run, size) == ["Aim"]
    write_progress(run, "aim", TrackerProgress("hash", ".", offset=size))
    assert not_copied(run, size) == []
    sizes = compact(run, moved=partial(all_copied, run))
    progress = read_progress(run, "aim")
    assert progress is not None and progress.offset == sizes.after
