"""[track]: experiment trackers that follow the run."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Spec


class WandB(Spec):
    mode: Literal["offline", "online"] = "offline"
    """`"offline"` writes files into the run's directory, for `wandb sync`; `"online"` sends them during training."""
    project: str = "trainkit"
    """The W&B project that lists the run."""
    entity: str | None = None
    """The user or team that owns the project. If absent, it is your own account."""


class Track(Spec):
    """Experiment trackers. A separate process feeds each; if it fails, an alert says so and training continues."""

    aim: bool = True
    """Whether to copy the run's events to Aim."""
    repository: str = "."
    """Directory that holds the Aim repository, `.aim`."""
    experiment: str = "trainkit"
    """The Aim experiment that lists the run."""
    tensorboard: bool = False
    """Whether to write them for TensorBoard into the run's `tensorboard/`. Needs the extra `tensorboard`."""
    wandb: bool | WandB = False
    """Whether to write them for W&B: a boolean, or a table such as `{ mode = "online", project = "mine" }`. Needs the
    extra `wandb`."""
