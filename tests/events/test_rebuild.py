"""What checkpoints know of steps comes back into a damaged log, and a changed command is reported."""

from __future__ import annotations

import math
from pathlib import Path

import fake_run

from trainkit.events.damage import damage
from trainkit.events.log import EventLog
from trainkit.events.mark import newest_mark
from trainkit.events.rebuild import KnownStep, rebuild
from trainkit.events.schema import Event
from trainkit.events.tail import NAME, of_kinds, read
from trainkit.run.recorded_inputs import mend_log

EVENTS = [*fake_run.events(12), *fake_run.events(24, attempt=2, resumed_from=12)]


def written(run: Path, events: list[Event]) -> Path:
    return fake_run.write(run, events)


def known(attempt: int, step: int, loss: float = 1.5) -> KnownStep:
    return KnownStep(attempt, step, 1.75e9, {"train/loss": loss})


def is_step(event: Event, *steps: int) -> bool:
    return event["type"] == "step" and event["step"] in steps


def test_missing_steps_come_back_in_order_and_nothing_else_changes(tmp_path: Path) -> None:
    left = [event for event in EVENTS if not is_step(event, 5, 6, 12, 24)]
    run = written(tmp_path / "run", left)
    before = (run / NAME).read_bytes()
    rebuilt = rebuild(run, [known(2, 24), known(1, 6), known(1, 12), known(2, 18, loss_of(18))])
    assert rebuilt.missing == (6, 12, 24) and rebuilt.different == ()
    assert (run / "events.damaged-1.jsonl").read_bytes() == before
    steps = [(event["attempt"], event["step"]) for event in of_kinds(run, "step")]
    assert steps == sorted(steps) and {(1, 6), (1, 12), (2, 24)} <= {*steps}
    assert [event for event in read(run) if not is_step(event, 6, 12, 24)] == left
    after = (run / NAME).read_bytes()
    for number in (0, 20, 40, len(before.splitlines())):
        place = sum(map(len, before.splitlines(keepends=True)[:number]))
        assert after[rebuilt.place_of(place) :].startswith(before[place : place + 50]), "a tracker continues there"
    assert rebuild(run, [known(1, 6)]) == ((), (), ()), "it is whole now"


def loss_of(step: int) -> float:
    return next(event["metrics"]["train/loss"] for event in EVENTS if is_step(event, step))


def test_other_values_are_corrected_and_the_metrics_that_nobody_knows_stay(tmp_path: Path) -> None:
    run = written(tmp_path / "run", EVENTS)
    rebuilt = rebuild(run, [known(1, 6, math.nan), known(1, 12, loss_of(12))])
    assert rebuilt.missing == () and rebuilt.different == (6,)
    before, after = (next(event for event in events if is_step(event, 6)) for events in (EVENTS, read(run)))
    assert after == {**before, "metrics": {**before["metrics"], "train/loss": "nan"}}


def test_a_log_that_is_gone_has_the_steps_of_checkpoints_and_their_attempts(tmp_path: Path) -> None:
    rebuilt = rebuild(tmp_path, [known(2, 18), known(1, 6)])
    assert rebuilt.missing == (6, 18)
    assert [(event["attempt"], event["step"]) for event in read(tmp_path)] == [(1, 6), (2, 18)]


def test_damage_after_the_newest_checkpoint_is_reported_up_to_the_newest_command(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.write("run_started", step=0, **fake_run.started())
    for step in range(1, 5):
        log.write("step", step=step, metrics={"train/loss": 1 / step})
    mark = log.mark()
    assert mark is not None and newest_mark(tmp_path) is None
    fake_run.saved(tmp_path, 4, log=mark, metrics={"train/loss": 0.25})
    log.write("control", step=5, command="rate", argument=0.5, detail="", total_steps=None)
    log.write("step", step=6, metrics={"train/loss": 0.1})
    log.close()
    assert mend_log(tmp_path) is None
    path = tmp_path / NAME
    path.write_text(path.read_text().replace('"argument": 0.5', '"argument": 0.9'))
    assert damage(tmp_path, mark, step=4, attempt=1) is None, "the checkpoint does not know it"
    assert "commands that would be repeated" in str(mend_log(tmp_path))
    path.write_text(path.read_text().replace('"train/loss": 0.25', '"train/loss": 0.35'))
    assert "of the steps 4 is in the log again" in str(mend_log(tmp_path))
