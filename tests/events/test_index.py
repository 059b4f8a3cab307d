"""The index of a log changes how fast a run is seen, and nothing of what is seen of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_run
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.events import index
from trainkit.events.log import EventLog
from trainkit.events.series import Series
from trainkit.events.tail import NAME, read
from trainkit.events.view import View
from trainkit.rundir.follow import LogFollower, Replay

FAILED = math.nan, math.inf, -math.inf


@pytest.fixture(autouse=True, scope="module")
def short_stretches() -> Iterator[None]:
    """A log of some steps is what one of a million is else."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"STRETCH": 16, "FINE": 8, "BUCKETS": 2, "COARSEST": 8}.items():
            patch.setattr(index, name, value)
        yield


def tell(log: EventLog, data: st.DataObject, *, first: int, last: int) -> list[int]:
    """Steps with metrics that come and go, and what happens between them; the steps of the checkpoints."""
    saved = []
    values = st.one_of(st.floats(-100, 100), st.sampled_from(FAILED))
    for step in range(first, last + 1):
        names = data.draw(st.sets(st.sampled_from(["a", "b", "c"])))
        metrics = {name: data.draw(values) for name in sorted(names)}
        if data.draw(st.booleans()):
            metrics["time/step"] = step / 7
        log.write("step", step=step, metrics=metrics)
        match data.draw(st.integers(0, 12)):
            case 0:
                log.write("evaluated", step=step, name="x", metrics={"validation/x/loss": step / 3}, seconds=1.0)
            case 1:
                log.write("checkpoint_started", step=step, kind="rolling")
            case 2:
                log.write("checkpoint_saved", step=step, kind="rolling", path=f"{step}", bytes=1, seconds=0.1)
                saved.append(step)
            case 3:
                log.write("sampled", step=step, prompt="p\x1b", text=f"said at {step}", seconds=0.1)
            case 4:
                log.write("log", step=step, level="warning", message=f"at {step}")
            case 5:
                log.write("alert", step=step, kind="odd", message=f"at {step}")
    return saved


@contextmanager
def drawn_run(data: st.DataObject) -> Iterator[tuple[Path, Path]]:
    """The directories of a drawn run, and of the same one without an index."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        run.mkdir()
        write(run, data)
        yield run, without_index(run)


def write(run: Path, data: st.DataObject) -> None:
    """A run of several attempts, some of which end as a killed process does, in the middle of a line even."""
    resumed_from = None
    for attempt in range(1, data.draw(st.integers(1, 4), "attempts") + 1):
        log = EventLog(run, attempt=attempt)
        log.write("run_started", step=0, **fake_run.started(resumed_from=resumed_from))
        first = 1 + (resumed_from or 0)
        saved = tell(log, data, first=first, last=first + data.draw(st.integers(0, 60), "steps"))
        if data.draw(st.booleans(), "killed"):
            os.close(log._fd)
            if data.draw(st.booleans(), "torn"):
                with (run / NAME).open("ab") as file:
                    file.write(b'{"type": "step", "t": 1, "st')
        else:
            log.write("run_finished", step=log.step, status="stopped", exit_code=75, message="")
            log.close()
        told = [event["step"] for event in read(run) if event["type"] == "step"]
        resumed_from = data.draw(st.sampled_from([None, *saved, *told]), "resumed from")


def read_out(run: Path) -> LogFollower:
    source = LogFollower(run)
    while source.advance(seconds=60):
        pass
    return source


def seen(run: Path) -> View:
    return read_out(run).view


def without_index(run: Path) -> Path:
    bare = run.parent / f"{run.name}-bare"
    bare.mkdir(exist_ok=True)
    shutil.copy(run / NAME, bare)
    return bare


def content(view: View) -> dict[str, Any]:
    """All of a view but how finely its points are put together."""
    told = {name: value for name, value in vars(view).items() if name not in ("series", "pace", "layers")}
    pace = list(view.pace.seconds), view.pace.last
    merged = {name: facts(series) for name, series in sorted(view.series.items())}
    return {**told, "pace": pace, "layers": repr(view.layers.columns), "series": merged}


def facts(series: Series) -> tuple[object, ...]:
    first = (series.first_steps or series.steps)[0]
    return first, series.steps[-1], repr(series.last), series.lowest, series.highest, pytest.approx(series.total)


def points(series: dict[str, Series]) -> dict[str, list[tuple[float, str]]]:
    return {n: [(s, repr(v)) for s, v in zip(one.steps, one.values, strict=True)] for n, one in sorted(series.items())}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_seen_of_a_run_is_the_same_with_and_without_an_index(data: st.DataObject) -> None:
    with drawn_run(data) as (run, bare):
        assert content(seen(run)) == content(seen(bare))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_details_of_a_range_are_the_points_of_the_current_course(data: st.DataObject) -> None:
    with drawn_run(data) as (run, bare):
        exact = points(seen(bare).series)
        low = data.draw(st.integers(-3, 70), "low")
        high = data.draw(st.integers(low, 80), "high")
        wanted = {name: [p for p in told if low <= p[0] <= high] for name, told in exact.items()}
        for one in (run, bare):
            assert points(read_out(one).detail(low, high)) == {name: told for name, told in wanted.items() if told}


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_replay_is_where_it_would_be_without_an_index(data: st.DataObject) -> None:
    with drawn_run(data) as (run, bare):
        fast, slow = Replay(run), Replay(bare)
        for step in data.draw(st.lists(st.integers(1, 130), min_size=1, max_size=4), "seeks"):
            for replay in (fast, slow):
                replay.playing = False
                replay.seek(step)
            assert content(fast.view) == content(slow.view) and fast.now() == slow.now()
            assert points(fast.detail(0, step)) == points(slow.detail(0, step))


def long_run(run: Path, *, steps: int = 100, attempt: int = 1) -> Path:
    run.mkdir(exist_ok=True)
    log = EventLog(run, attempt=attempt)
    log.write("run_started", step=0, **fake_run.started())
    for step in range(1, steps + 1):
        log.write("step", step=step, metrics={"a": math.sin(step) * attempt})
    log.close()
    return run


def test_a_long_log_is_described_but_for_its_first_steps(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run")
    found = list(index.stretches(run))
    assert [one.last for one in found] == [23, 39, 55, 71, 87, 100]
    assert [one.stride for one in found] == [4, 8, 8, 8, 8, 8]
    lines = (run / NAME).read_bytes()
    assert [lines[: one.begin].count(b"\n") for one in found] == [8, 24, 40, 56, 72, 88]
    assert found[-1].end == len(lines)
    assert {one.stride for one in seen(run).series.values()} == {8}
    assert not list(index.stretches(long_run(tmp_path / "short", steps=7)))
    assert not (tmp_path / "short" / index.NAME).exists()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_index_or_a_log_that_is_not_its_own_is_read_as_if_there_was_none(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = long_run(Path(directory) / "run")
        harmed = run / data.draw(st.sampled_from([index.NAME, NAME]), "harmed")
        whole = harmed.read_bytes()
        at = int(data.draw(st.floats(0, 1, exclude_max=True), "at") * len(whole))
        match data.draw(st.sampled_from(["cut", "flip", "another"]), "how"):
            case "cut":
                harmed.write_bytes(whole[:at])
            case "flip" if harmed.name == index.NAME:
                harmed.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            case _:
                shutil.copy(long_run(Path(directory) / "other", steps=90, attempt=2) / harmed.name, harmed)
        assert content(seen(run)) == content(seen(without_index(run)))
        log = EventLog(run, attempt=3)
        log.write("run_started", step=0, **fake_run.started(resumed_from=50))
        for step in range(51, 90):
            log.write("step", step=step, metrics={"a": 0.5})
        log.close()
        assert content(seen(run)) == content(seen(without_index(run)))
        assert [one.last for one in index.stretches(run)][-3:] == [66, 82, 89], "what follows is described again"


def test_a_best_value_just_before_the_point_of_a_resume_is_not_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    log = EventLog(run, attempt=1)
    log.write("run_started", step=0, **fake_run.started())
    for step in range(1, 81):
        log.write("step", step=step, metrics={"a": -7.0 if step == 50 else 1.0})
    log.write("run_started", step=0, **fake_run.started(resumed_from=51))
    log.write("step", step=52, metrics={"a": 2.0})
    log.close()
    assert seen(run).series["a"].lowest == (-7.0, 50)


def test_a_log_whose_index_cannot_be_written_is_written_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "run" / index.NAME).mkdir(parents=True)
    run = long_run(tmp_path / "run")
    assert len(seen(run).series["a"]) == 100


def test_a_disk_that_is_full_for_the_index_alone_costs_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes = os.write

    def full(fd: int, data: bytes) -> int:
        if data[:3] == b"tix":
            write_bytes(fd, data[:100])
            raise OSError(28, "No space left on device")
        return write_bytes(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        run = long_run(tmp_path / "run")
    assert not list(index.stretches(run)) and len(seen(run).series["a"]) == 100
    log = EventLog(run, attempt=2)
    log.write("run_started", step=0, **fake_run.started(resumed_from=100))
    for step in range(101, 120):
        log.write("step", step=step, metrics={"a": 0.5})
    log.close()
    assert [one.last for one in index.stretches(run)] == [116, 119], "what the full disk tore hides nothing"


def test_a_metric_reported_by_steps_and_by_evaluations_is_left_to_the_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    for step in range(1, 50):
        log.write("step", step=step, metrics={"a": 1.0})
        log.write("evaluated", step=step, name="x", metrics={"a": 2.0}, seconds=1.0)
    log.close()
    assert not list(index.stretches(tmp_path))
    assert set(seen(tmp_path).series["a"].values) == {2.0}


def test_the_details_of_a_range_leave_out_what_no_trainer_wrote(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", steps=6)
    with (run / NAME).open("a") as file:
        for metrics in ({"a": None}, {"a": "much"}, {"a": 10**400}, {"b": 1.0}):
            file.write(json.dumps({"type": "evaluated", "t": 1.0, "step": 6, "attempt": 1, "metrics": metrics}) + "\n")
    found = read_out(run).detail(5, 6)
    assert list(found["a"].steps) == [5, 6] and list(found["b"].steps) == [6]


def test_a_range_of_too_many_steps_has_no_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LogFollower(long_run(tmp_path / "run"))
    assert source.detail(0, 50) == {}, "nothing has been read"
    while source.advance(seconds=60):
        pass
    assert len(source.detail(-math.inf, math.inf)["a"]) == 100
    monkeypatch.setattr("trainkit.events.current_steps.MOST", 40)
    assert source.detail(0, 90) == {} and len(source.detail(50, 90)["a"]) == 41
