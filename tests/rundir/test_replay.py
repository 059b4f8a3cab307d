"""A replay shows at each moment what was there at that moment."""

from __future__ import annotations

from pathlib import Path

import fake_run
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainkit.events.reducer import reduce
from trainkit.events.tail import NAME, read
from trainkit.events.view import View
from trainkit.rundir import follow as replays
from trainkit.rundir.follow import SLICE_BYTES, Replay


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fake_run.write(tmp_path / "quickstart", fake_run.events(120, total=120))


def as_of(run: Path, step: int) -> View:
    """The view just after `step` was done."""
    view = View()
    for event in read(run):
        reduce(view, event)
        if event["type"] == "step" and event["step"] >= step:
            break
    return view


def facts(view: View) -> tuple[object, ...]:
    losses = view.series.get("train/loss")
    return view.step, view.entries, list(losses.values) if losses else [], len(view.checkpoints), len(view.samples)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 120), min_size=1, max_size=6))
def test_wherever_one_goes_and_in_any_order_it_is_what_was_there_then(run: Path, steps: list[int]) -> None:
    replay = Replay(run)
    replay.playing = False
    for step in steps:
        replay.seek(step)
        assert facts(replay.view) == facts(as_of(run, step))


def test_however_many_lines_are_no_events_it_continues_after_them(run: Path) -> None:
    told = (run / NAME).read_bytes().splitlines(keepends=True)
    (run / NAME).write_bytes(b"".join([*told[:40], b"[]\n" * SLICE_BYTES, *told[40:]]))
    replay = Replay(run)
    replay.seek(120)
    assert facts(replay.view) == facts(as_of(run, 120))


def test_played_to_its_end_it_is_the_run_as_it_is_now(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(replays.time, "monotonic", lambda: clock[0])
    replay = Replay(run, speed=100.0)
    seen = []
    while not replay.over:
        clock[0] += 0.05
        replay.advance(seconds=1.0)
        seen.append(replay.view.step)
    assert seen == sorted(seen) and len(set(seen)) > 5, "it goes on little by little"
    assert facts(replay.view) == facts(as_of(run, 10**9))


def test_a_halted_replay_stands_still_and_a_night_between_two_attempts_is_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(replays.time, "monotonic", lambda: clock[0])
    events = read(run)
    late = fake_run.write(run.parent / "late", [{**e, "t": e["t"] + 50_000 * (e["step"] > 60)} for e in events])
    replay = Replay(late, speed=1000.0)
    replay.playing = False
    clock[0] += 100
    replay.advance(seconds=1)
    assert replay.view.step == 0
    replay.playing = True
    for _ in range(400):
        clock[0] += 0.05
        replay.advance(seconds=1)
    assert replay.over, "20 seconds at x1000 do not suffice for 50,000"
