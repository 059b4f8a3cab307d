"""A step is dispatched while the one before computes: between two steps the host reads old metrics and nothing else."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import jax
import pytest
import trainer
from jax._src.array import ArrayImpl

from trainkit.recipe.toml.load import load
from trainkit.run.attempt import attempt
from trainkit.run.start import Start
from trainkit.rundir.directory import create
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


def test_between_two_steps_the_host_reads_the_metrics_of_the_step_before_and_waits_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = trainer.BARE.replace("steps = 24", f"steps = {STEPS}").replace("keep_every = 6", f"keep_every = {STEPS}")
    trainer.workplace(tmp_path, recipe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    directory = create(load(Path("tiny.toml"), []))
    waits = Waits(monkeypatch)
    assert attempt(directory, Start()) == 0
    assert len(waits.read) == STEPS
    assert waits.read[0] == set(), "nothing is known after the first step is dispatched"
    for step in range(1, STEPS - 1):
        assert waits.read[step] == waits.metrics[step - 1]
    assert waits.read[-1] >= waits.metrics[-1], "after the last step, its own too"
