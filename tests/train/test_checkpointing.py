"""What becomes of a run whose checkpoints cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from checkpoint_child import FACTS

from trainkit.checkpoint import store
from trainkit.errors import FAILED, TrainkitError
from trainkit.events import held
from trainkit.events.disk_space import Room, find_room
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel import agreement, hosts
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.rundir import checkpoint_files
from trainkit.rundir.checkpoint_files import BestMark
from trainkit.rundir.directory import RunMoved
from trainkit.train import checkpointing
from trainkit.train.checkpointing import Checkpointing, CheckpointNotWritten
from trainkit.train.state import State, initial_live


class Disk:
    """That of the run, full or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.full = False
        monkeypatch.setattr(
            "trainkit.checkpoint.saver.find_room",
            lambda path, soft: Room(0, 0) if self.full else find_room(place, soft=soft),
        )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, tmp_path)


def saving(run: Path, log: EventLog, *, restored: int | None = None, **spec: object) -> Checkpointing:
    return Checkpointing(run, Checkpoint(**spec), provenance=lambda last: FACTS, log=log, restored=restored)  # type: ignore[arg-type]


def state_of(step: int) -> State:
    return State(None, None, (), jnp.int32(step), jax.random.key(0), initial_live())


def kinds(run: Path) -> dict[int, str]:
    return {info.step: info.manifest.kind for info in store.checkpoints(run)}


@pytest.mark.parametrize(("spec", "kind"), [({"every_minutes": 1e-9}, "rolling"), ({"keep_every": 1}, "permanent")])
def test_a_save_that_fails_while_training_continues_is_an_alert_and_is_tried_again_at_the_next_interval(
    tmp_path: Path, log: EventLog, disk: Disk, spec: dict[str, object], kind: str
) -> None:
    ours = saving(tmp_path, log, **spec)
    for step, full in ((1, False), (2, True), (3, False)):
        disk.full = full
        assert ours.is_due(step) and ours.save(state_of(step), step)
        with ours._alert_on_failure():
            ours._saver.wait()
    ours.close()
    assert kinds(tmp_path) == {1: kind, 3: kind}
    (alert,) = [event for event in read(tmp_path) if event["type"] == "alert"]
    assert alert["kind"] == "checkpoint" and f"{tmp_path}/checkpoints/2: " in alert["message"]


@pytest.mark.parametrize("under_way", [False, True], ids=["new", "under way"])
@pytest.mark.parametrize("last", [False, True], ids=["stopped", "last step"])
def test_the_checkpoint_that_an_attempt_ends_with_is_retried_with_alerts_until_the_disk_takes_it(
    tmp_path: Path, log: EventLog, disk: Disk, monkeypatch: pytest.MonkeyPatch, last: bool, under_way: bool
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        disk.full = len(waits) < 2

    monkeypatch.setattr(checkpointing.time, "sleep", sleep)
    ours, disk.full = saving(tmp_path, log, keep_every=1), True
    if under_way:
        assert ours.save(state_of(1), 1)
    ours.save_and_wait(state_of(1), 1, last=last)
    ours.close()
    assert kinds(tmp_path) == {1: "final" if last else "permanent"}
    assert waits == list(checkpointing.RETRY_AFTER[:2])
    alerts = [event["message"] for event in read(tmp_path) if event["type"] == "alert"]
    assert len(alerts) == 2 and all("cannot be written" in alert and "trying again in" in alert for alert in alerts)


def test_a_run_that_may_go_back_keeps_a_checkpoint_from_before_and_the_next_such_one(
    tmp_path: Path, log: EventLog
) -> None:
    back = 3
    spec = Checkpoint(every_minutes=1e-9, keep_last=1)
    ours = Checkpointing(tmp_path, spec, provenance=lambda last: FACTS, log=log, goes_back=back)
    for step in range(1, 10):
        assert ours.save(state_of(step), step)
        ours._saver.wait()
        kept = list(kinds(tmp_path))
        assert kept[0] <= max(1, step - back) and len(kept) <= spec.keep_last + 2 and kept[-1] == step
    ours.close()


def test_an_attempt_whose_last_checkpoint_is_never_written_fails(
    tmp_path: Path, log: EventLog, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing.time, "sleep", lambda seconds: None)
    ours, disk.full = saving(tmp_path, log), True
    with pytest.raises(CheckpointNotWritten, match="cannot be written") as failure:
        ours.save_and_wait(state_of(1), 1, last=False)
    assert failure.value.exit_code == FAILED and "resume" in failure.value.hint
    ours.close()
    alerts = [event for event in read(tmp_path) if event["type"] == "alert"]
    assert kinds(tmp_path) == {} and len(alerts) == len(checkpointing.RETRY_AFTER)


def test_a_step_is_saved_once_and_one_that_an_attempt_began_with_not_again(tmp_path: Path, log: EventLog) -> None:
    first = saving(tmp_path, log, keep_every=3)
    assert first.save(state_of(3), 3) and not first.is_due(3) and not first.save(state_of(3), 3)
    first.save_and_wait(state_of(3), 3, last=False)
    first.close()
    second = saving(tmp_path, log, restored=3, keep_every=3)
    assert not second.is_due(3) and not second.save(state_of(3), 3) and not second.save(state_of(4), 4)
    second.save_and_wait(state_of(3), 3, last=False)
    assert second.save(state_of(4), 4, requested=True)
    second.save_and_wait(state_of(4), 4, last=True)
    second.close()
    assert kinds(tmp_path) == {3: "permanent", 4: "final"}
    started = [event["step"] for event in read(tmp_path) if event["type"] == "checkpoint_started"]
    assert started == [3, 4, 4]


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_best_checkpoint_before_one_that_was_never_written_stays_after_a_resume_unless_of_another_metric(
    tmp_path: Path, log: EventLog, disk: Disk, metric: str
) -> None:
    first, second = BestMark(1, metric, 2.0), BestMark(2, "loss", 1.0)
    ours = saving(tmp_path, log, every_minutes=1e-9, keep_last=1)
    ours.save_best(state_of(1), first)
    ours._saver.wait()
    disk.full = True
    ours.save_best(state_of(2), second)
    ours.close()
    disk.full = False
    resumed = saving(tmp_path, log, every_minutes=1e-9, keep_last=1)
    resumed.keep_best(second)
    for step in (3, 4):
        assert resumed.save(state_of(step), step)
    resumed.close()
    assert checkpoint_files.best(tmp_path) == (first if metric == "loss" else None)
    assert set(kinds(tmp_path)) == ({1, 4} if metric == "loss" else {4})


@pytest.mark.parametrize("error", [hosts.ProcessFailed("process 1 on elsewhere: no disk"), ValueError("no disk")])
def test_an_error_that_is_no_failed_save_ends_it_and_leaves_the_step_to_be_saved(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise error

    ours = saving(tmp_path, log, keep_every=1)
    with monkeypatch.context() as failing:
        failing.setattr(agreement, "agree", fail)
        with pytest.raises(type(error), match="no disk"):
            ours.save(state_of(1), 1)
        with pytest.raises(type(error), match="no disk"):  # at once, since it would fail again
            ours.save_and_wait(state_of(1), 1, last=False)
    ours.save_and_wait(state_of(1), 1, last=False)
    ours.close()
    assert kinds(tmp_path) == {1: "permanent"}
    assert not [event for event in read(tmp_path) if event["type"] == "alert"]


def test_a_lack_of_memory_while_a_checkpoint_is_written_is_a_failed_save_that_is_tried_again(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory")

    ours = saving(tmp_path, log, keep_every=1)
    with monkeypatch.context() as failing:
        failing.setattr("trainkit.checkpoint.arrays.write", fail)
        failing.setattr(checkpointing, "RETRY_AFTER", (0.01,))
        ours.save(state_of(1), 1)
        with contextlib.suppress(TrainkitError):
            ours.save_and_wait(state_of(1), 1, last=False)
    assert not kinds(tmp_path)
    ours.save_and_wait(state_of(1), 1, last=False)
    ours.close()
    assert kinds(tmp_path) == {1: "permanent"}
    assert any("no memory" in event["message"] for event in read(tmp_path) if event["type"] == "alert")


@contextlib.contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, log: EventLog) -> Iterator[None]:
    """Let the disk refuse the lines of the log, and nothing else."""
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        if fd == log._fd:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        yield


def test_lines_that_the_disk_refuses_are_kept_and_written_in_order_and_nothing_is_saved_before_them(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = saving(tmp_path, log, keep_every=1)
    log.write("step", step=1, metrics={})
    with refusing(monkeypatch, log):
        for step in (2, 3):
            log.write("step", step=step, metrics={})
        assert ours.save(state_of(3), 3)
        assert [event["step"] for event in read(tmp_path)] == [1]
    assert ours.save(state_of(3), 3)
    ours.close()
    assert kinds(tmp_path) == {3: "permanent"}
    events = read(tmp_path)
    assert [event["step"] for event in events if event["type"] == "step"] == [1, 2, 3]
    refused, not_saved, written = [event for event in events if event["type"] == "alert"]
    assert refused["message"].startswith("the log cannot be written: Input/output error; training continues")
    assert not_saved["kind"] == "checkpoint" and "the log cannot be written: Input/output error" in not_saved["message"]
    assert written["message"].startswith("the log is written again")


def test_lines_are_kept_up_to_a_bound(tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MOST", 1000)
    log.write("step", step=1, metrics={})
    with refusing(monkeypatch, log), pytest.raises(OSError, match="Input/output error"):
        for step in range(2, 100):
            log.write("step", step=step, metrics={})
    assert 3 < step < 20


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_saved_where_a_run_was_deleted_or_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    log = EventLog(run, attempt=1)
    ours = saving(run, log, keep_every=1)
    run.rename(tmp_path / "moved")
    if replaced:
        run.mkdir()
        (run / "events.jsonl").touch()
    monkeypatch.setattr(checkpointing.time, "sleep", pytest.fail)
    for save in (ours.save, ours.save_and_wait):
        with pytest.raises(RunMoved, match="deleted or moved"):
            save(state_of(1), 1, last=True)
    ours.close()
    log.close()
    assert run.exists() == replaced and not (run / "checkpoints").exists()
