"""Readers of a log take no more memory for a longer log, or for one that holds other things than lines."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainkit.events import tail as reading
from trainkit.events.damage import damage
from trainkit.events.tail import NAME, Tail, last_step, of_kinds
from trainkit.rundir import summary
from trainkit.rundir.directory import discard
from trainkit.rundir.follow import LogFollower
from trainkit.rundir.summary import SummaryReader


def line(kind: str, step: int, attempt: int = 1, **fields: object) -> bytes:
    return json.dumps({"type": kind, "t": 1.0 + step, "step": step, "attempt": attempt, **fields}).encode() + b"\n"


def step_line(step: int, attempt: int = 1) -> bytes:
    metrics = {f"layer/{number}/norm": 1.0 for number in range(9)} | {"train/loss": 2.0}
    return line("step", step, attempt, metrics=metrics)


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


READERS: dict[str, Callable[[Path], object]] = {
    "damage": lambda run: damage(run, (5, "00000000"), step=8000, attempt=1),
    "discard": discard,
    "last step": last_step,
    "of_kinds": lambda run: sum(1 for _ in of_kinds(run, "step")),
    "summary": lambda run: SummaryReader(run).read(),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_a_log_of_any_length_keeps_little_of_it(tmp_path: Path, reader: str) -> None:
    (tmp_path / NAME).write_bytes(b"".join(map(step_line, range(1, 8001))))  # 2 MB, and 16 MB as objects
    with at_most(1.5):
        READERS[reader](tmp_path)
    assert (tmp_path / NAME).exists()


def test_a_hole_in_a_log_takes_no_memory_and_hides_no_line_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reading, summary):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 16)
    with (tmp_path / NAME).open("wb") as file:
        file.write(step_line(1))
        file.seek(8 << 20)
        file.write(b"\n" + step_line(2))
    with at_most(1.5):
        assert [event["step"] for event in of_kinds(tmp_path, "step")] == [1, 2]
        tail, steps = Tail(tmp_path), []
        while events := tail.poll(limit_bytes=1 << 14):
            steps += [event["step"] for event in events]
        assert steps == [1, 2] and tail.bytes_left() == 0
        SummaryReader(tmp_path).read()
        follower = LogFollower(tmp_path)
        while follower.advance(seconds=1):
            pass
        assert follower.view.step == 2


def test_a_line_that_is_still_being_written_is_not_skipped(tmp_path: Path) -> None:
    whole = step_line(1)
    (tmp_path / NAME).write_bytes(whole[:50])
    tail = Tail(tmp_path)
    assert tail.poll(limit_bytes=16) == [] and tail.offset == 0
    (tmp_path / NAME).write_bytes(whole)
    assert [event["step"] for event in tail.poll(limit_bytes=16)] == [1]


def test_the_steps_that_a_damaged_log_lacks_are_those_of_the_attempts_that_count(tmp_path: Path) -> None:
    resumed = line("run_started", 2, 2, resumed_from=2)
    lines = [*map(step_line, (1, 2, 3, 4)), resumed, *(step_line(step, 2) for step in (3, 5))]
    (tmp_path / NAME).write_bytes(b"".join(lines))
    assert "1 of the steps up to 5 are missing, the first is 4" in str(
        damage(tmp_path, (5, "00000000"), step=5, attempt=1)
    )
