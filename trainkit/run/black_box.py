"""The black box of a step that broke: what is needed to see it again, in `RUN/blackbox/STEP`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trainkit import files
from trainkit.checkpoint import store
from trainkit.checkpoint.provenance import versions_of
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache.token_cache import Cache
from trainkit.data.show import as_shared, show
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import as_logged
from trainkit.parallel import hosts
from trainkit.recipe import Recipe
from trainkit.rundir import checkpoint_files
from trainkit.rundir.directory import BLACK_BOXES
from trainkit.train.state import DROPOUT, LOSS, MOMENTS, PARAMETERS, key_of_step
from trainkit.train.verdicts import Incident

#: A run keeps at most so many: the first ones say most.
MOST = 8
#: Why a black box keeps the checkpoint before its step.
REASON = "black box"
_PURPOSES = {"loss": LOSS, "dropout": DROPOUT, "optimizer": MOMENTS, "rounding": PARAMETERS}


class BlackBoxes:
    """Writes the black boxes of a run. An error in it is an alert, and never ends the run."""

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        cache: Cache,
        data: TrainSet,
        log: EventLog,
        *,
        left_out: tuple[int, ...] = (),
    ) -> None:
        """`left_out` are the steps that rollbacks have left out so far."""
        self._directory, self._recipe, self._cache, self._data, self._log = directory, recipe, cache, data, log
        self._left_out = left_out

    def write(self, incident: Incident) -> None:
        """Write step, batch with decoded text, random keys and recent metrics, and keep the checkpoint before it."""
        if not hosts.is_first():
            return
        target = self._directory / BLACK_BOXES / str(incident.step)
        if not target.exists() and len(boxes(self._directory)) >= MOST:
            return
        try:
            target.parent.mkdir(exist_ok=True)  # without parents: the run itself may have been moved away
            target.mkdir(exist_ok=True)
            with ThreadPoolExecutor(1, "black box") as thread:  # what it compiles is no part of the training step
                thread.submit(self._write, target, incident).result()
        except (OSError, TrainkitError, ValueError, RuntimeError) as error:
            message = f"the black box of step {incident.step} could not be written: {error}"
            self._log.write("alert", step=incident.step, kind="guard", message=message)
            return
        message = f"step {incident.step}: its batch, keys and metrics are in {BLACK_BOXES}/{incident.step}"
        self._log.write("log", step=incident.step, level="warning", message=message)

    def _write(self, target: Path, incident: Incident) -> None:
        first = incident.step - 1
        keep_checkpoint(self._directory, first)
        lines = [
            json.dumps({"step": step, "metrics": _as_logged(metrics)}, sort_keys=True)
            for step, metrics in incident.recent
        ]
        files.write(target / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **dict(self._data.cut_batch(first)))
        files.write(target / "batch.npz", packed.getvalue())
        rows = (json.dumps(as_shared(row), ensure_ascii=False) for row in show(self._cache, self._data, first))
        files.write(target / "batch.jsonl", "".join(f"{row}\n" for row in rows))
        key = jax.random.key(self._recipe.run.seed)
        keys = {
            purpose: jax.random.key_data(key_of_step(key, number, first)).tolist()
            for purpose, number in _PURPOSES.items()
        }
        found: dict[str, Any] = {
            "step": incident.step,
            "action": incident.action,
            "problem": incident.message,
            "metrics": _as_logged(incident.recent[-1][1]),
            "attempt": self._log.attempt,
            "left_out": list(self._left_out),
            "recipe": self._recipe.fingerprint(),
            "seed": self._recipe.run.seed,
            "keys": keys,
            "versions": versions_of(),
        }
        files.write_json(target / "box.json", found)  # last: a directory without it is no black box


def keep_checkpoint(directory: Path, step: int) -> None:
    """Keep the newest checkpoint up to `step`, from which what follows can be computed again. Raises OSError.

    A run keeps two of them for its black boxes: the first and the newest.
    """
    paths = [info.directory for info in store.checkpoints(directory)]
    marked = [path for path in paths if checkpoint_files.reason_of_mark(path) == REASON]
    before = [path for path in paths if int(path.name) <= step]
    # a viewer may have changed a mark meanwhile, or the checkpoint may be gone
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        for path in marked[1:]:
            checkpoint_files.mark(path, keep=False)
        if before and not checkpoint_files.is_marked(before[-1]):
            checkpoint_files.mark(before[-1], keep=True, reason=REASON)


def boxes(directory: Path) -> list[int]:
    """Return the steps of the black boxes of a run, in ascending order."""
    found = (directory / BLACK_BOXES).glob("*/box.json")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdecimal())


def _as_logged(metrics: Mapping[str, float]) -> dict[str, float | str]:
    return {name: as_logged(value) for name, value in metrics.items()}
