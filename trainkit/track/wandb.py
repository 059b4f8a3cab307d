"""A run in Weights & Biases: without a network unless the recipe says online. Only here is wandb imported.

| log                             | W&B                                                                  |
|---------------------------------|----------------------------------------------------------------------|
| `step`, `evaluated`             | metrics, by path, over `step`: that of training                      |
| `distributions`                 | histograms, by path, over `step`                                     |
| `sampled`                       | a table `samples` of step, prompt and text                           |
| the resolved recipe             | the configuration                                                    |
| which trial of a sweep it is    | `sweep` in the configuration                                         |
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.schema import Event
from trainkit.recipe.sections.outputs import Track, WandB
from trainkit.track import projections
from trainkit.track.projections import TrackerProgress

#: In the run's directory; W&B gives it that name.
DIRECTORY = "wandb"


class WandBRun:
    """The W&B run of a run's directory: the same one each time.

    Offline its files are written again each time, since they can only grow. Online it continues where it was; steps
    that a later attempt replaced stay there, because W&B deletes nothing that it was sent.
    """

    def __init__(self, run_directory: Path, spec: Track, known: TrackerProgress | None) -> None:
        """Raises TrainkitError where W&B cannot be written."""
        settings = spec.wandb if isinstance(spec.wandb, WandB) else WandB()
        run_id = known.run if known and known.run.isalnum() else secrets.token_hex(4)
        self.progress = TrackerProgress(run=run_id, repository=f"{settings.mode}, {settings.project}")
        self._online = settings.mode == "online"
        if self._online and known and known.repository == self.progress.repository:
            self.progress = known
        # it would tell its makers of every crash
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if not self._online:
            for before in (run_directory / DIRECTORY).glob(f"offline-run-*-{run_id}"):
                shutil.rmtree(before)
        self._wandb = wandb
        try:
            self._run = wandb.init(
                id=run_id,
                dir=str(run_directory.resolve()),
                project=settings.project,
                entity=settings.entity,
                name=run_directory.resolve().name,
                mode=settings.mode,
                resume="allow" if self._online else None,
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    disable_code=True,
                    save_code=False,
                    x_disable_stats=True,
                    x_disable_meta=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.errors.Error as error:
            raise TrainkitError(
                f"the W&B run cannot be opened: {error}",
                where=str(run_directory / DIRECTORY),
                hint='check the project, and that you are logged in (wandb login), or write files: mode = "offline"',
                exit_code=FAILED,
            ) from error
        self._run.define_metric("*", step_metric="step")

    def set_recipe(self, recipe: dict[str, Any]) -> None:
        self._run.config.update(recipe, allow_val_change=True)

    def set_sweep(self, sweep: dict[str, Any]) -> None:
        self._run.config.update({"sweep": sweep}, allow_val_change=True)

    def write(self, event: Event) -> None:
        row: dict[str, Any] = dict(projections.metrics(event))
        for path, it in projections.distributions(event).items():
            row[path] = self._wandb.Histogram(np_histogram=(np.array(it.counts), np.array(it.edges())))
        if event["type"] == "sampled":
            cells = [event["step"], event["prompt"], event["text"]]
            row["samples"] = self._wandb.Table(columns=["step", "prompt", "text"], data=[cells])
        if row:
            self._run.log({**row, "step": event["step"], "_timestamp": event["t"]})

    def forget_beyond(self, step: int) -> bool:
        return self._online

    def close(self) -> None:
        self._run.finish()
        # its own process may still hold what was written last
        self._wandb.teardown()
