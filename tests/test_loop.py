"""What the loop makes of memory that runs out beside a step, and what an attempt leaves open that never trains."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainer
from jax.errors import JaxRuntimeError

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog, read
from trainkit.events.orders import Order
from trainkit.recipe.load import load
from trainkit.run.assemble import _check
from trainkit.run.attempt import attempt
from trainkit.run.directory import create
from trainkit.run.start import Start
from trainkit.train.compilations import Compilations
from trainkit.train.course import Course
from trainkit.train.feed import Fed
from trainkit.train.loop import Job, train
from trainkit.train.meter import Meter, Work
from trainkit.train.obey import Orders
from trainkit.train.profile import Profile
from trainkit.train.state import State, unchanged
from trainkit.train.stop import StopBeforeTraining, StopSignal

STEPS = 3


def no_memory(*_: Any) -> None:
    raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")


class Commands:
    """Orders that come after the first step."""

    def __init__(self, *orders: Order) -> None:
        self._orders, self.answers = [orders], []

    def take(self) -> list[Any]:
        return [
            SimpleNamespace(order=order, reply=lambda ok, detail: self.answers.append(detail))
            for order in (self._orders.pop() if self._orders else ())
        ]


class Played:
    """A loop of which everything but the model is real or is noted in `done`."""

    def __init__(self, directory: Path, log: EventLog, *orders: Order) -> None:
        trainer.workplace(directory)
        changes = [f"train.steps={STEPS}", "statistics.every=1", "sample.every=1"]
        self.recipe = load(directory / "tiny.toml", changes).recipe
        self.state = State(None, None, (), jnp.int32(0), jax.random.key(0), unchanged())
        self.done: list[tuple[Any, ...]] = []
        self.commands = Commands(*orders)
        course = Course(self.recipe.schedule, steps=STEPS, live=self.state.live)
        meter = Meter(log, data=lambda step: {}, work=Work(samples=1, flops_per_token=1, peak_flops=None))
        self.compilations = Compilations(log)
        self.job = Job(
            recipe=self.recipe,
            course=course,
            step=self._update,
            feed=SimpleNamespace(next=lambda: Fed({"tokens": np.zeros((1, 2, 4))}, 8, 0.0)),
            meter=meter,
            orders=Orders(server=self.commands, signal=SimpleNamespace(received=None), log=log, course=course),
            log=log,
            saving=SimpleNamespace(
                is_due=lambda step: False, save=self._save, report=lambda step: None, finish=lambda: None
            ),
            evaluate=lambda state, step: self.done.append(("evaluate", step)),
            sample=lambda state, step, prompts=None: self.done.append(("sample", step, prompts)),
            statistics=lambda state, step: self.done.append(("statistics", step)),
            compilations=self.compilations,
            profile=Profile(directory, None, log=log, meter=meter),
            watch_helpers=lambda step: None,
        )

    def _update(self, state: State, batch: Any) -> tuple[State, dict[str, jax.Array]]:
        names = ("train/loss", "gradients/norm", "parameters/norm")
        return replace(state, step=state.step + 1), {name: jnp.float32(1) for name in names}

    def _save(self, state: State, step: int, *, last: bool, requested: bool, stopping: bool) -> bool:
        self.done.append(("save", step, last, requested))
        return last or requested


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


def test_the_rate_of_a_step_is_that_of_its_tokens_and_not_of_its_padding(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    padded = SimpleNamespace(next=lambda: Fed({"tokens": np.zeros((1, 2, 4))}, tokens=5, waited=0.0))
    train(loop.state, replace(loop.job, feed=padded))
    loop.compilations.close()
    told = [event["metrics"] for event in read(tmp_path) if event["type"] == "step"]
    timed = [values for values in told if "time/step" in values and values["time/step"] > 1e-4]
    for values in timed:
        assert values["throughput/tokens_per_second"] * values["time/step"] == pytest.approx(5, rel=0.02)
    assert timed


def test_what_finds_no_memory_beside_the_steps_is_skipped_with_an_alert_and_all_else_is_done(
    tmp_path: Path, log: EventLog
) -> None:
    loop = Played(tmp_path / "here", log, Order("save"), Order("sample", "one dog"))
    train(loop.state, replace(loop.job, sample=no_memory, statistics=no_memory))
    loop.compilations.close()
    told = [(e["step"], e["kind"], e["message"]) for e in read(tmp_path) if e["type"] == "alert"]
    assert {kind for _, kind, _ in told} == {"out of memory"}
    assert [step for step, _, message in told if "statistics" in message] == [1, 2, 3]
    assert [step for step, _, message in told if "sample" in message] == [1, 1, 2, 3], "that of the order too"
    assert [done for done in loop.done if done[0] == "save"] == [
        ("save", 1, False, True),
        ("save", 2, False, False),
        ("save", 3, True, False),
    ]
    assert ("evaluate", STEPS) in loop.done


def test_other_failures_beside_the_steps_end_the_run(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)

    def broken(*_: Any) -> None:
        raise JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(JaxRuntimeError, match="something else"):
        train(loop.state, replace(loop.job, sample=broken))
    loop.compilations.close()


def test_an_order_that_was_answered_is_carried_out_though_its_step_is_found_to_have_failed(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Played(tmp_path / "here", log, Order("save"), Order("sample", "one dog"))
    flush, rescued = loop.job.meter.flush, []

    def fails_once() -> None:
        if not rescued:
            no_memory()
        flush()

    def rescue(state: State, error: Exception) -> tuple[State, Any]:
        rescued.append(error)
        loop.job.meter.forget()
        return loop.state, loop.job.step

    monkeypatch.setattr(loop.job.meter, "flush", fails_once)
    train(loop.state, replace(loop.job, rescue=rescue))
    loop.compilations.close()
    assert len(rescued) == 1 and len(loop.commands.answers) == 2
    assert loop.done.count(("sample", 1, ["one dog"])) == loop.done.count(("save", 1, False, True)) == 1
    assert ("save", STEPS, True, False) in loop.done


def test_steps_that_cannot_be_profiled_are_refused_before_there_are_tokens(tmp_path: Path) -> None:
    trainer.workplace(tmp_path)
    recipe = load(tmp_path / "tiny.toml", []).recipe
    _check(recipe, Start(profile=(20, 24)), done=0)
    for profile, done in (((20, 25), 0), ((20, 24), 20)):
        with pytest.raises(TrainkitError, match="this attempt does the steps"):
            _check(recipe, Start(profile=profile), done=done)


def test_an_attempt_that_is_stopped_just_before_it_trains_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def stopped(self: StopSignal) -> None:
        self.received = signal.SIGTERM
        raise StopBeforeTraining

    monkeypatch.setattr(StopSignal, "training_begins", stopped)
    listeners = len(jax._src.monitoring._event_duration_secs_listeners)
    directory = create(load(Path("tiny.toml"), []))
    assert attempt(directory, Start()) == 75
    assert [event["status"] for event in read(directory) if event["type"] == "run_finished"] == ["stopped"]
    assert not (directory / "control.sock").exists()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("control", "checkpoint", "feed"))]
    assert len(jax._src.monitoring._event_duration_secs_listeners) == listeners
