"""Memory that really runs out: the system refuses it to a real run."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainer
from places import SUPPORT

from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluator import Evaluator
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel.mesh import make_mesh
from trainkit.recipe.toml.load import load
from trainkit.run.attempt import attempt
from trainkit.run.start import Start
from trainkit.rundir.directory import create
from trainkit.tasks import Loss, Task
from trainkit.train.program import Program
from trainkit.train.state import State, initial_live

CHILD = SUPPORT / "oom_child.py"
STEPS, SIZE = 3, 32
#: A step with the whole batch at once takes more than this, one with half of it less.
ROOM_MB = 450
#: The last step before the one that fails where no memory is taken but an error is raised.
LAST = 7
RECIPE = (
    trainer.BARE.replace("sequence_length = 32", "sequence_length = 512")
    .replace("heads = 2", "heads = 4")
    .replace("steps = 24", f"steps = {STEPS}")
    .replace("batch_size = 8", f"batch_size = {SIZE}")
    .replace("micro_batch_size = 1", f'micro_batch_size = {SIZE}\nremat = "none"')
    .replace("keep_every = 6", "keep_every = 1")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainer.workplace(tmp_path_factory.mktemp("oom"), RECIPE)


@pytest.fixture(scope="module")
def small(place: Path) -> Path:
    """The run as it is with the small micro-batch from the beginning."""
    half = f"train.micro_batch_size={SIZE // 2}"
    done = trainer.trainkit(place, "run", "tiny.toml", "--plain", "--name", "small", "--set", half)
    assert done.returncode == 0, done.stderr
    return place / "runs" / "small"


def starved(
    place: Path, name: str, *, recipe: str = "tiny.toml", megabytes: int = ROOM_MB, step: int
) -> subprocess.CompletedProcess[str]:
    # an arena for each thread would take address space that nobody uses
    environment = trainer.environment() | {"MALLOC_ARENA_MAX": "1"}
    return subprocess.run(
        [sys.executable, str(CHILD), recipe, name, str(megabytes), str(step)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=trainer.LIMIT,
        check=False,
    )


@pytest.mark.parametrize("step", [0, 2], ids=["in the first step", "in a later one"])
def test_a_step_without_memory_is_done_again_in_smaller_parts_and_nothing_else_changes(place, small, step):
    done = starved(place, f"starved-{step}", step=step)
    assert done.returncode == 0, done.stdout + done.stderr
    run = place / "runs" / f"starved-{step}"
    events = read(run)
    assert len({event["pid"] for event in events if event["type"] == "run_started"}) == 1, "in the same process"
    # what the steps before have taken may come back late: then half is too much as well
    alert, *more = [e for e in events if e["type"] == "alert" and e["kind"] == "out of memory"]
    assert f"micro-batch {SIZE} x accumulation 1" in alert["message"]
    assert f"micro-batch {SIZE // 2} x accumulation 2 and the same batches" in alert["message"]
    last = [event for event in events if event["type"] == "planned"][-1]["plan"]
    parts = 2 ** (1 + len(more))
    assert last["batch"] == {"global_size": SIZE, "micro": SIZE // parts, "accumulation": parts, "replicas": 1}
    found, wanted = trainer.losses(run), trainer.losses(small)
    assert found.keys() == wanted.keys() == set(range(1, STEPS + 1))
    np.testing.assert_allclose([found[n] for n in sorted(found)], [wanted[n] for n in sorted(wanted)], rtol=1e-5)
    if step == 0 and not more:
        assert trainer.arrays(run, STEPS) == trainer.arrays(small, STEPS), "bit for bit, since all of it was done again"
    if step:
        began = [event["resumed_from"] for event in events if event["type"] == "run_started"]
        assert began[0] is None and set(began[1:]) <= {1, 2}, (
            "where the state was lost, the newest checkpoint goes before the beginning"
        )


def test_one_sequence_that_does_not_fit_is_an_error_that_says_what_would(place):
    long = RECIPE.replace("sequence_length = 512", "sequence_length = 2048")
    (place / "long.toml").write_text(re.sub(rf"(batch_size = ){SIZE}\b", r"\g<1>1", long))
    done = starved(place, "hopeless", recipe="long.toml", megabytes=120, step=0)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "one sequence at a time" in done.stderr and "for details: trainkit plan RECIPE" in done.stderr
    assert "Traceback" not in done.stderr
    assert read(place / "runs" / "hopeless")[-1]["status"] == "failed"


def array_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


def stopped_at(place: Path, name: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Path:
    """A run of micro-batches of 4, whose step after `LAST` fails once, before it has taken the state."""
    calls: list[int] = []
    update = Program.__call__

    def fails_once(self: Program, state: State, batch: Any) -> Any:
        calls.append(int(state.step))
        if calls == [*range(LAST + 1)]:
            raise type(error)(*error.args)  # one that nobody keeps, with the state in its traceback
        return update(self, state, batch)

    changes = [f"run.name={name}", "train.micro_batch_size=4", "checkpoint.keep_every=1000"]
    directory = create(load(place / "tiny.toml", changes))
    with monkeypatch.context() as patched, contextlib.suppress(type(error)):
        patched.chdir(place)
        patched.setattr(signal, "signal", lambda *_: None)
        patched.setattr(Program, "__call__", fails_once)
        attempt(directory, Start())
    return directory


def test_a_run_without_memory_continues_as_one_that_was_resumed_by_hand_with_the_smaller_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = trainer.BARE.replace("steps = 24", "steps = 12").replace("batch_size = 8", "batch_size = 32")
    place = trainer.workplace(tmp_path, recipe)
    monkeypatch.chdir(place)
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
    held, again = [array_bytes()], Start.again

    def noted(*arguments: Any, **named: Any) -> Start:
        held.append(array_bytes())
        return again(*arguments, **named)

    monkeypatch.setattr(Start, "again", noted)
    starved = stopped_at(place, "starved", monkeypatch, full)
    before, at_restart = held
    assert at_restart <= before, "the state and its copy are gone before there is another"
    by_hand = stopped_at(place, "by-hand", monkeypatch, KeyError())
    changes = ("--set", "train.micro_batch_size=2")
    done = trainer.trainkit(place, "resume", str(by_hand), "--plain", *changes, devices=jax.device_count())
    assert done.returncode == 0, done.stderr
    assert trainer.arrays(starved, 12) == trainer.arrays(by_hand, 12), "bit for bit"
    assert trainer.losses(starved) == trainer.losses(by_hand)
    events = read(starved)
    kinds = ("run_started", "checkpoint_saved", "planned", "alert")
    told = [(e["type"], e["step"]) for e in events if e["type"] in kinds or e.get("what") == "train step"]
    restart = [("checkpoint_saved", LAST), ("alert", LAST), ("planned", LAST), ("compiled", LAST)]
    assert told == [("run_started", 0), ("planned", 0), ("compiled", 0), *restart, ("checkpoint_saved", 12)]
    (alert,) = [event for event in events if event["type"] == "alert"]
    assert alert["kind"] == "out of memory" and alert["message"].endswith(
        "micro-batch 4 x accumulation 1: continuing with micro-batch 2 x accumulation 2 and the same batches"
    )
    assert [e["step"] for e in events if e["type"] == "step"] == list(range(1, 13)), "no step is done twice"


@pytest.mark.parametrize("saved_by", [None, 1, 2])
def test_an_attempt_starts_again_with_its_own_commands_and_resets_the_optimizer_until_it_has_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_by: int | None
) -> None:
    rate = {"command": "rate", "argument": 0.5}
    forgotten = {"forgotten": [{**rate, "step": 5, "attempt": 1}]}
    for run, omitted in ((tmp_path / "forgets", forgotten), (tmp_path / "keeps", {})):
        run.mkdir()
        for number, resumed_from, step, more in [(1, None, 5, {}), (2, 5, 6, omitted)]:
            log = EventLog(run, attempt=number)
            log.write("run_started", step=resumed_from or 0, **fake_run.started(resumed_from=resumed_from), **more)
            log.write("control", step=step, **rate, detail="", total_steps=None)
            log.close()
    newest = saved_by and SimpleNamespace(manifest=SimpleNamespace(attempt=saved_by))
    monkeypatch.setattr("trainkit.checkpoint.store.newest", lambda directory: newest)
    told = Start(step=5, reset_optimizer=True, forget_commands=True, profile=(6, 7))
    again = told.again(tmp_path / "forgets", log=log)
    assert again.step is None and again.profile is None and again.reset_optimizer == (saved_by != 2)
    assert [given.step for given in again.commands_to_repeat(after=4)] == [6], "that of attempt 1 stays forgotten"
    kept = replace(told, forget_commands=False, profile=(7, 7)).again(tmp_path / "keeps", log=log)
    assert [given.step for given in kept.commands_to_repeat(after=4)] == [5, 6] and kept.profile == (7, 7)


class Set:
    targets, bytes = 8 * 4, 0

    def ready(self, seconds: float) -> bool:
        return True

    def __len__(self) -> int:
        return 2

    def batch(self, index: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(8, dtype=np.float32).reshape(8, 1) + 8 * index}


class SumTask(Task):
    def loss(self, model, batch, *, key):
        return Loss(batch["x"].sum(), jnp.float32(batch["x"].size))


def evaluator_of(log: EventLog, *, most: int, compares: bool = False) -> Evaluator:
    """An evaluator of 8 rows at once on a device that has memory for `most`."""
    evaluator = Evaluator(
        {"set": Set()},
        batch_size=8,
        task=SumTask(),
        compute=np.dtype(np.float32),
        mesh=make_mesh(data=1, fsdp=1),
        log=log,
        interrupted=lambda: False,
        compares=compares,
    )
    add = evaluator._add

    def refuse(sums, lost, state, batch, baselines, key):
        if batch["x"].shape[1] > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return add(sums, lost, state, batch, baselines, key)

    evaluator._add = refuse  # type: ignore[assignment]
    return evaluator


def test_an_evaluation_that_compares_its_examples_is_refused_and_not_divided(tmp_path):
    log = EventLog(tmp_path, attempt=1)
    state = State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live())
    with pytest.raises(TrainkitError, match="no memory to evaluate 8 examples at once") as told:
        evaluator_of(log, most=4, compares=True)(state, 3)
    assert told.value.where == "evaluate.batch_size" and "less than 8" in told.value.hint
    log.close()


@pytest.mark.parametrize(("most", "parts"), [(8, 1), (4, 2), (3, 4), (1, 8), (0, None)])
def test_an_evaluation_without_memory_is_done_in_smaller_parts_with_the_same_result(tmp_path, most, parts):
    log = EventLog(tmp_path, attempt=1)
    evaluator = evaluator_of(log, most=most)
    state = State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live())
    if parts is None:
        with pytest.raises(TrainkitError, match="no memory to evaluate 1 sequences at once"):
            evaluator(state, 3)
    else:
        evaluator(state, 3)
        (event,) = [event for event in read(tmp_path) if event["type"] == "evaluated"]
        assert event["metrics"] == {"validation/set/loss": 7.5}
        alerts = [event for event in read(tmp_path) if event["type"] == "alert"]
        assert len(alerts) == {1: 0, 2: 1, 4: 2, 8: 3}[parts]
    log.close()
