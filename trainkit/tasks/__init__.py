"""Tasks: a batch to its loss and metrics, and what an evaluation reports. A task knows no loop."""

from trainkit.tasks.build import build, check_tokenizer
from trainkit.tasks.task import Loss, Task

__all__ = ["Loss", "Task", "build", "check_tokenizer"]
