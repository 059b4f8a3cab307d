"""A step is dispatched while the one before computes: between two steps the host reads old metrics and nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
import trainer
from jax._src.array import ArrayImpl
from sample_recipe import write

from trainkit.plan import Devices, make_plan
from trainkit.recipe.toml.load import load
from trainkit.run import prepare
from trainkit.run.attempt import attempt
from trainkit.run.start import Start
from trainkit.rundir.directory import create
from trainkit.train.planning import needs_room_to_compile
from trainkit.train.program import Program

STEPS = 8


class Waits:
    """What the thread of the loop waits for on a device: by step, the ids of the arrays that it reads after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: For each step that was dispatched, the ids of its metrics, and of all arrays that were read before the next.
        self.metrics: list[set[int]] = []
        self.read: list[set[int]] = []
        self._kept: list[Any] = []  # an id is of one array only while that is in memory
        call, value, block = Program.__call__, ArrayImpl._value, ArrayImpl.block_until_ready

        def dispatch(program: Program, state: Any, batch: Any) -> Any:
            state, metrics = call(program, state, batch)
            leaves = jax.tree.leaves(metrics)
            self._kept.append(leaves)
            self.metrics.append(set(map(id, leaves)))
            self.read.append(set())
            return state, metrics

        def read(array: Any) -> Any:
            self._note(array)
            return value.fget(array)

        def wait(array: Any) -> Any:
            self._note(array)
            return block(array)

        def wait_for_all(tree: Any) -> Any:
            for leaf in jax.tree.leaves(tree):
                self._note(leaf)
            return tree

        monkeypatch.setattr(Program, "__call__", dispatch)
        monkeypatch.setattr(ArrayImpl, "_value", property(read))
        monkeypatch.setattr(ArrayImpl, "block_until_ready", wait)
        monkeypatch.setattr(jax, "block_until_ready", wait_for_all)

    def _note(self, array: Any) -> None:
        if self.read and threading.current_thread() is threading.main_thread():
            self._kept.append(array)
            self.read[-1].add(id(array))


class Attempt(NamedTuple):
    """What was seen of an attempt."""

    waits: Waits
    order: list[str]
    """What was made before the first step, in this order."""


@pytest.fixture(scope="module")
def attempted(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """A whole attempt in this process, on a device whose memory the state crowds."""
    place, order = tmp_path_factory.mktemp("attempt"), list[str]()
    recipe = trainer.BARE.replace("steps = 24", f"steps = {STEPS}").replace("keep_every = 6", f"keep_every = {STEPS}")
    trainer.workplace(place, recipe)

    def noting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            order.append(what)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr(prepare, "needs_room_to_compile", lambda plan: True)
        patch.setattr(prepare, "with_statistics", noting("the step", prepare.with_statistics))
        patch.setattr(prepare, "initial_state", noting("the state", prepare.initial_state))
        directory = create(load(Path("tiny.toml"), []))
        waits = Waits(patch)
        assert attempt(directory, Start()) == 0
    return Attempt(waits, order)


def test_between_two_steps_the_host_reads_the_metrics_of_the_step_before_and_waits_for_nothing_else(
    attempted: Attempt,
) -> None:
    read, metrics = attempted.waits.read, attempted.waits.metrics
    assert len(read) == STEPS
    assert read[0] == set(), "nothing is known after the first step is dispatched"
    for step in range(1, STEPS - 1):
        assert read[step] == metrics[step - 1]
    assert read[-1] >= metrics[-1], "after the last step, its own too"


def test_where_the_state_takes_most_of_a_gpu_the_step_is_compiled_before_it_exists(
    attempted: Attempt, tmp_path: Path
) -> None:
    assert attempted.order == ["the step", "the state"]
    recipe, used = load(write(tmp_path), []).recipe, Devices(count=1, platform="gpu", kind="x")
    plan = make_plan(recipe, devices=used, vocab_size=300, data=None)
    state = plan.total_bytes - plan.step_bytes
    for memory, crowded in ((1.9 * state, True), (4 * state, False)):
        there = replace(used, memory_bytes=int(memory))
        assert needs_room_to_compile(replace(plan, devices=there)) == crowded
        assert not needs_room_to_compile(replace(plan, devices=replace(there, platform="cpu")))
    assert not needs_room_to_compile(plan), "the memory is unknown"
