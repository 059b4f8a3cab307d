"""[track]: experiment trackers that follow the run."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Spec


class WandB(Spec):
    mode: Literal["offline", "online"] = "offline"
    """`"offline"` writes files below the run's directory, for `wandb sync`; `"online"` sends as it goes."""
    project: str = "trainkit"
    """Under which W&B lists the run."""
    entity: str | None = None
    """Whose project it is; your own where not given."""


class Track(Spec):
    """Trackers; each is brought up to date by a process of its own, whose failure is an alert and stops nothing."""

    aim: bool = True
    """Copy the run's events into Aim."""
    repository: str = "."
    """Directory of the Aim repository (`.aim` is made in it)."""
    experiment: str = "trainkit"
    """Under which Aim lists the run."""
    tensorboard: bool = False
    """Write them for TensorBoard, into `tensorboard/` in the run's directory. Needs the extra `tensorboard`."""
    wandb: bool | WandB = False
    """Write them for W&B: true, or a table such as `{ mode = "online", project = "mine" }`. Needs the extra `wandb`."""
