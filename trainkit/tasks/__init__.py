"""Tasks: a batch to (sum of losses, sum of weights), and what an evaluation reports. A task knows no loop."""

from trainkit.tasks.build import Task, build, check_learnable

__all__ = ["Task", "build", "check_learnable"]
