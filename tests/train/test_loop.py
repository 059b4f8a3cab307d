"""What the loop makes of memory that runs out beside a step, and what an attempt leaves open that never trains."""

from __future__ import annotations

import signal
import threading
import time
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
from jax.sharding import NamedSharding, PartitionSpec

from trainkit.errors import TrainkitError
from trainkit.events.commands import Command
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel.mesh import make_mesh
from trainkit.plan import BatchSplit
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.toml.load import load
from trainkit.run.attempt import attempt
from trainkit.run.setup import check_before_data
from trainkit.run.start import Start
from trainkit.rundir.directory import create
from trainkit.rundir.owed import Owed
from trainkit.train.best import BestSoFar
from trainkit.train.compilations import Compilations
from trainkit.train.control import Commands, LiveSchedule
from trainkit.train.loop import Job, Outcome, train
from trainkit.train.metrics import MetricsWriter, NotFinite, StepWork
from trainkit.train.prefetch import Fed, Prefetch
from trainkit.train.profile import Profile
from trainkit.train.signals import Signals, StopBeforeTraining
from trainkit.train.state import State, initial_live
from trainkit.train.statistics import LAYERS
from trainkit.train.step import WEIGHT
from trainkit.train.watchdog import Watchdog

STEPS = 3
WORK = StepWork(flops_per_token=1, peak_flops=None)
BATCH = Fed({"tokens": np.zeros((1, 2, 4))}, {"tokens": 8, "samples": 2}, 0.0)  # type: ignore[dict-item]


def no_memory(*_: Any) -> None:
    raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")


class SentCommands:
    """Orders that come after the first step."""

    def __init__(self, *commands: Command) -> None:
        self._commands, self.answers = [commands], []

    def wait(self, timeout: float) -> list[Any]:
        time.sleep(timeout)
        return self.take()

    def take(self) -> list[Any]:
        return [
            SimpleNamespace(command=command, reply=lambda ok, detail: self.answers.append(detail))
            for command in (self._commands.pop() if self._commands else ())
        ]


class Played:
    """A loop of which everything but the model is real or is noted in `done`."""

    def __init__(self, directory: Path, log: EventLog, *commands: Command) -> None:
        trainer.workplace(directory)
        changes = [f"train.steps={STEPS}", "statistics.every=1", "sample.every=1"]
        self.recipe = load(directory / "tiny.toml", changes).recipe
        self.state = State(None, None, (), jnp.int32(0), jax.random.key(0), initial_live())
        self.done: list[tuple[Any, ...]] = []
        self.ended_with: int | None = None
        self.commands = SentCommands(*commands)
        self.signal = SimpleNamespace(received=None, count=0)
        schedule = LiveSchedule(self.recipe.schedule, steps=STEPS, live=self.state.live)
        metrics = MetricsWriter(log, data=lambda step: {}, work=WORK)
        self.compilations = Compilations(log)
        self.job = Job(
            recipe=self.recipe,
            schedule=schedule,
            step=self._update,
            prefetch=SimpleNamespace(
                next=lambda: Fed({"tokens": np.zeros((1, 2, 4))}, {"tokens": 8, "samples": 2}, 0.0)
            ),
            metrics=metrics,
            commands=Commands(server=self.commands, signal=self.signal, log=log, schedule=schedule),
            log=log,
            checkpointing=SimpleNamespace(
                is_due=lambda step: False,
                save=self._save,
                save_and_wait=self._save_and_wait,
                report=lambda step: None,
            ),
            best=BestSoFar(self.recipe),
            evaluate=lambda state, step, only=None: self.done.append(("evaluate", step)),
            sample=lambda state, step, prompts=None: self.done.append(("sample", step, prompts)),
            statistics=lambda state, step: self.done.append(("statistics", step)),
            compilations=self.compilations,
            profile=Profile(directory, None, log=log, metrics=metrics),
            check_health=lambda step: None,
            watchdog=Watchdog(None, lambda waited: None),
        )

    def _update(self, state: State, batch: Any) -> tuple[State, dict[str, jax.Array]]:
        names = ("train/loss", "gradients/norm", "parameters/norm", WEIGHT)
        return replace(state, step=state.step + 1), {name: jnp.float32(1) for name in names}

    def _save(self, state: State, step: int, *, requested: bool) -> bool:
        self.done.append(("save", step, False, requested))
        return requested

    def _save_and_wait(self, state: State, step: int, *, last: bool) -> None:
        if self.ended_with != step:
            self.done.append(("save", step, last, False))
        self.ended_with = step


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path, attempt=1)
    yield log
    log.close()


def test_the_rate_of_a_step_is_that_of_its_tokens_and_not_of_its_padding(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)

    def padded() -> Fed:
        time.sleep(0.001)  # so that the digits of a step's time that are logged are enough
        return Fed({"tokens": np.zeros((1, 2, 4))}, size={"tokens": 5, "samples": 1}, waited=0.0)

    train(loop.state, replace(loop.job, prefetch=SimpleNamespace(next=padded)))
    loop.compilations.close()
    told = [event["metrics"] for event in read(tmp_path) if event["type"] == "step"]
    timed = [values for values in told if "time/step" in values]
    for values in timed:
        assert values["throughput/tokens_per_second"] * values["time/step"] == pytest.approx(5, rel=0.02)
    assert timed


def test_what_finds_no_memory_beside_the_steps_is_skipped_with_an_alert_and_all_else_is_done(
    tmp_path: Path, log: EventLog
) -> None:
    loop = Played(tmp_path / "here", log, Command("save"), Command("sample", "one dog"))
    train(loop.state, replace(loop.job, sample=no_memory, statistics=no_memory))
    loop.compilations.close()
    told = [(e["step"], e["kind"], e["message"]) for e in read(tmp_path) if e["type"] == "alert"]
    assert {kind for _, kind, _ in told} == {"out of memory"}
    assert [step for step, _, message in told if "statistics" in message] == [1, 2, 3]
    assert [step for step, _, message in told if "sample" in message] == [1, 1, 2, 3], "that of the command too"
    assert [done for done in loop.done if done[0] == "save"] == [
        ("save", 1, False, True),
        ("save", 2, False, False),
        ("save", 3, True, False),
    ]
    assert ("evaluate", STEPS) in loop.done


def test_the_step_with_statistics_runs_at_the_steps_that_ask_and_its_values_follow_the_metrics(
    tmp_path: Path, log: EventLog
) -> None:
    loop = Played(tmp_path / "here", log)

    def measuring(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
        state, metrics = loop._update(state, batch)
        values = jnp.array([1.0, jnp.inf])
        return state, metrics | {"gradients/l1": jnp.float32(3), LAYERS: {"gradients/l1/blocks.a": values}}

    recipe = loop.recipe.model_copy(update={"statistics": Statistics(every=2, compute=("norms",))})
    train(loop.state, replace(loop.job, measuring_step=measuring, recipe=recipe))
    loop.compilations.close()
    events = [event for event in read(tmp_path) if event["type"] in ("step", "statistics")]
    assert [(e["type"], e["step"]) for e in events] == [("step", 1), ("step", 2), ("statistics", 2), ("step", 3)]
    assert events[2]["values"] == {"gradients/l1/blocks.a": [1.0, "inf"]}
    assert [event["metrics"].get("gradients/l1") for event in events if event["type"] == "step"] == [None, 3, None]
    assert not [done for done in loop.done if done[0] == "statistics"], "there are no histograms among them"


def test_a_step_with_statistics_that_finds_no_memory_is_told_from_others(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    recipe = loop.recipe.model_copy(update={"statistics": Statistics(every=3, compute=("norms",))})
    outcome = train(loop.state, replace(loop.job, measuring_step=no_memory, recipe=recipe))
    assert outcome == Outcome(None, 2, stopped=False, out_of_memory=True, measuring=True)
    assert loop.ended_with == 2, "the state before that step is saved"
    outcome = train(loop.state, replace(loop.job, step=no_memory, measuring_step=loop._update, recipe=recipe))
    loop.compilations.close()
    assert outcome == Outcome(None, 0, stopped=False, out_of_memory=True)


@pytest.mark.parametrize("part", ["evaluate", "sample", "statistics", "check_health"])
@pytest.mark.parametrize("error", [JaxRuntimeError("INTERNAL: something"), TrainkitError("something"), KeyError()])
def test_other_failures_beside_the_steps_end_the_run_with_a_checkpoint(
    tmp_path: Path, log: EventLog, part: str, error: Exception
) -> None:
    loop = Played(tmp_path / "here", log, Command("evaluate"))

    def broken(*_: Any, **__: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        train(loop.state, replace(loop.job, **{part: broken}))
    loop.compilations.close()
    assert loop.ended_with == 1
    assert [event["step"] for event in read(tmp_path) if event["type"] == "step"] == [1]


def test_batches_that_cannot_be_made_end_the_run_with_a_checkpoint(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    batches = iter([BATCH])
    with pytest.raises(StopIteration):
        train(loop.state, replace(loop.job, prefetch=SimpleNamespace(next=lambda: next(batches))))
    loop.compilations.close()
    assert loop.ended_with == 1


def test_a_state_that_is_not_finite_is_never_saved(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)

    def broken(state: State, batch: Any) -> tuple[State, dict[str, jax.Array]]:
        state, metrics = loop._update(state, batch)
        return state, metrics | {"train/loss": jnp.float32(jnp.nan)}

    with pytest.raises(NotFinite):
        train(loop.state, replace(loop.job, step=broken))
    loop.compilations.close()
    assert not [done for done in loop.done if done[0] == "save" and done[1] > 1]


def test_what_was_trained_is_saved_before_it_is_evaluated(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    train(loop.state, loop.job)
    loop.compilations.close()
    assert loop.done.index(("save", STEPS, True, False)) < loop.done.index(("evaluate", STEPS))


class Stalled:
    """Batches of which the second never comes."""

    def __init__(self) -> None:
        self.over = threading.Event()
        one = BatchSplit(global_size=2, micro=2, accumulation=1, replicas=1)
        sharding = NamedSharding(make_mesh(data=1, fsdp=1), PartitionSpec())
        places = {"first": 0, "last": STEPS, "split": one, "sharding": sharding}
        self.feed = Prefetch(self._batch, count=lambda batch: {}, **places)

    def _batch(self, step: int, rows: Any = None) -> dict[str, np.ndarray]:
        if step:
            self.over.wait()
        return {"tokens": np.zeros((2, 4), np.int32)}


@pytest.mark.parametrize("how", ["signal", "command"])
def test_who_waits_for_data_hears_a_signal_and_a_command_and_ends_with_a_checkpoint(
    tmp_path: Path, log: EventLog, how: str
) -> None:
    loop, stalled = Played(tmp_path / "here", log), Stalled()

    def stop() -> None:
        if how == "signal":
            loop.signal.received = signal.SIGTERM
        else:
            loop.commands._commands.append([Command("stop")])

    def waiting() -> Fed:
        fed = stalled.feed.next()
        if fed.batch is None:
            stop()
        return fed

    _, step, stopped, *_ = train(loop.state, replace(loop.job, prefetch=SimpleNamespace(next=waiting)))
    stalled.over.set()
    stalled.feed.close()
    loop.compilations.close()
    assert (step, stopped, loop.ended_with) == (1, True, 1)
    assert [event["step"] for event in read(tmp_path) if event["type"] == "step"] == [1], "the log is not a step behind"


def test_a_pause_is_no_part_of_a_step_and_the_log_holds_every_step_before_it(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Played(tmp_path / "here", log, Command("pause"))
    seen: list[list[int]] = []
    clock, hours = time.perf_counter, 0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600 * hours)

    def wait(timeout: float) -> list[Any]:
        nonlocal hours
        seen.append([event["step"] for event in read(tmp_path) if event["type"] == "step"])
        hours += 1
        loop.commands._commands.append([Command("continue")])
        return loop.commands.take()

    monkeypatch.setattr(loop.commands, "wait", wait)
    train(loop.state, replace(loop.job, sample=no_memory, recipe=loop.recipe.model_copy(update={"sample": None})))
    loop.compilations.close()
    assert seen == [[1]]
    steps = {event["step"]: event["metrics"] for event in read(tmp_path) if event["type"] == "step"}
    assert sorted(steps) == [1, 2, 3]
    assert all(metrics.get("time/step", 0) < 1800 for metrics in steps.values())


def test_what_an_earlier_attempt_has_left_undone_is_done_first(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    undone = Owed(sets=frozenset({"held-out"}), statistics=True, samples=True, prompts=("one dog",))
    train(replace(loop.state, step=jnp.int32(2)), replace(loop.job, owed=undone))
    loop.compilations.close()
    first = [done[:2] for done in loop.done if done[1] == 2]
    assert first == [("save", 2), ("evaluate", 2), ("statistics", 2), ("sample", 2), ("sample", 2)]
    assert ("sample", 2, ["one dog"]) in loop.done and ("evaluate", STEPS) in loop.done


def test_a_command_that_was_answered_is_carried_out_though_its_step_is_found_to_have_failed(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Played(tmp_path / "here", log, Command("save"), Command("sample", "one dog"), Command("pause"))
    with monkeypatch.context() as patched:
        patched.setattr(loop.job.metrics, "flush", no_memory)
        patched.setattr("trainkit.train.loop.is_alive", lambda state: False)
        outcome = train(loop.state, loop.job)
    assert outcome == Outcome(None, 1, stopped=False, out_of_memory=True)
    assert len(loop.commands.answers) == 3 and loop.done == [], "a state that was lost is not saved"
    commands, metrics = loop.job.commands, MetricsWriter(log, data=lambda step: {}, work=WORK)
    later = {"signal": loop.signal, "log": log, "schedule": loop.job.schedule, "before": commands}
    again = Commands(server=loop.commands, **later)
    assert again.paused
    loop.commands._commands.append([Command("continue")])
    train(loop.state, replace(loop.job, metrics=metrics, commands=again))
    loop.compilations.close()
    assert loop.done.count(("sample", 1, ["one dog"])) == loop.done.count(("save", 1, False, True)) == 1
    assert ("save", STEPS, True, False) in loop.done


def test_a_state_that_a_step_without_memory_has_not_taken_is_saved_with_every_step_in_the_log(
    tmp_path: Path, log: EventLog
) -> None:
    loop = Played(tmp_path / "here", log)

    def update(state: State, batch: Any) -> Any:
        return no_memory() if state.step == 2 else loop._update(state, batch)

    outcome = train(loop.state, replace(loop.job, step=update))
    loop.compilations.close()
    assert outcome == Outcome(None, 2, stopped=False, out_of_memory=True) and loop.ended_with == 2
    assert [event["step"] for event in read(tmp_path) if event["type"] == "step"] == [1, 2]


def test_without_memory_for_the_first_step_nothing_is_saved(tmp_path: Path, log: EventLog) -> None:
    loop = Played(tmp_path / "here", log)
    outcome = train(loop.state, replace(loop.job, step=no_memory))
    loop.compilations.close()
    assert outcome.out_of_memory and outcome.step == 0 and loop.done == []


def test_steps_that_cannot_be_profiled_are_refused_before_there_are_tokens(tmp_path: Path) -> None:
    trainer.workplace(tmp_path)
    recipe = load(tmp_path / "tiny.toml", []).recipe
    check_before_data(recipe, Start(profile=(20, 24)), done=0)
    for profile, done in (((20, 25), 0), ((20, 24), 20)):
        with pytest.raises(TrainkitError, match="this attempt does the steps"):
            check_before_data(recipe, Start(profile=profile), done=done)


def test_an_attempt_that_is_stopped_just_before_it_trains_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def stopped(self: Signals) -> None:
        self.received = signal.SIGTERM
        raise StopBeforeTraining

    monkeypatch.setattr(Signals, "training_begins", stopped)
    listeners = len(jax._src.monitoring._event_duration_secs_listeners)
    directory = create(load(Path("tiny.toml"), []))
    assert attempt(directory, Start()) == 75
    assert [event["status"] for event in read(directory) if event["type"] == "run_finished"] == ["stopped"]
    assert not (directory / "control.sock").exists()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("control", "checkpoint", "prefetch"))]
    assert len(jax._src.monitoring._event_duration_secs_listeners) == listeners
