"""What becomes of a run whose checkpoints cannot be written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from checkpoint_child import FACTS

from trainkit.checkpoint import store
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog, read
from trainkit.recipe.sections.upkeep import Checkpoint
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.state import State, initial_live


class Disk:
    """That of the run, full or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        usage = shutil.disk_usage(place)
        self.full = False
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0) if self.full else usage)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, tmp_path)


def saving(run: Path, log: EventLog, *, there: int | None = None, **spec: object) -> Checkpointing:
    return Checkpointing(run, Checkpoint(**spec), facts=lambda last: FACTS, log=log, there=there)  # type: ignore[arg-type]


def save(
    ours: Checkpointing, step: int, *, last: bool = False, requested: bool = False, stopping: bool = False
) -> bool:
    state = State(None, None, (), jnp.int32(step), jax.random.key(0), initial_live())
    return ours.save(state, step, last=last, requested=requested, stopping=stopping)


def kinds(run: Path) -> dict[int, str]:
    return {info.step: info.manifest.kind for info in store.checkpoints(run)}


@pytest.mark.parametrize(("spec", "kind"), [({"every_minutes": 1e-9}, "rolling"), ({"keep_every": 1}, "permanent")])
def test_a_save_that_fails_while_training_goes_on_is_an_alert_and_is_tried_again_at_the_next_interval(
    tmp_path: Path, log: EventLog, disk: Disk, spec: dict[str, object], kind: str
) -> None:
    ours = saving(tmp_path, log, **spec)
    for step, full in ((1, False), (2, True), (3, False)):
        disk.full = full
        assert ours.is_due(step) and save(ours, step)
        ours.settle()
    ours.finish()
    assert kinds(tmp_path) == {1: kind, 3: kind}
    (alert,) = [event for event in read(tmp_path) if event["type"] == "alert"]
    assert alert["kind"] == "checkpoint" and f"{tmp_path}/checkpoints/2: " in alert["message"]


@pytest.mark.parametrize("end", ["last", "stopping"])
def test_the_save_that_an_attempt_ends_with_has_to_succeed(tmp_path: Path, log: EventLog, disk: Disk, end: str) -> None:
    ours = saving(tmp_path, log)
    disk.full = True
    save(ours, 1, **{end: True})
    with pytest.raises(TrainkitError, match="cannot be written"):
        ours.finish()


def test_a_save_that_is_under_way_has_to_succeed_once_the_attempt_ends_with_it(
    tmp_path: Path, log: EventLog, disk: Disk
) -> None:
    ours = saving(tmp_path, log, keep_every=1)
    disk.full = True
    assert save(ours, 1)
    assert not save(ours, 1, stopping=True), "it is on its way already"
    with pytest.raises(TrainkitError, match="cannot be written"):
        ours.finish()


def test_a_step_is_saved_once_and_one_that_an_attempt_began_with_not_again(tmp_path: Path, log: EventLog) -> None:
    first = saving(tmp_path, log, keep_every=3)
    assert save(first, 3) and not first.is_due(3) and not save(first, 3, stopping=True)
    first.finish()
    second = saving(tmp_path, log, there=3, keep_every=3)
    assert not second.is_due(3) and not save(second, 3, stopping=True) and not save(second, 4)
    assert save(second, 4, requested=True) and save(second, 4, last=True)
    second.finish()
    assert kinds(tmp_path) == {3: "permanent", 4: "final"}
