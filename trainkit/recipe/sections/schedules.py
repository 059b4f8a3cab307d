"""[schedules]: what changes over the run beside the learning rate."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.schedule_spec import Schedule
from trainkit.recipe.spec import Spec

#: The values of the optimizer that a schedule scales.
OF_OPTIMIZER = ("weight_decay", "momentum", "beta2")


class Schedules(Spec):
    """What changes over the run, beside the learning rate."""

    weight_decay: Schedule | None = None
    """Scales every weight decay at each step, as `[schedule]` scales the learning rate: warm-up and all, so give
    `warmup = 0` for one that begins at its peak."""
    momentum: Schedule | None = None
    """Scales the decay of the average of the gradients at each step, in the same way: `momentum` of the optimizer, or
    the first of its `betas`. Corrections of an average's start at zero use the value of the step, as in torch."""
    beta2: Schedule | None = None
    """Scales the decay of the average of squares at each step, in the same way: usually the second of `betas`."""

    @property
    def of_optimizer(self) -> dict[str, Schedule]:
        """Return the schedules that scale values of the optimizer, by the names of these values."""
        found = {name: getattr(self, name) for name in OF_OPTIMIZER}
        return {name: schedule for name, schedule in found.items() if schedule is not None}


def check_scheduled(name: str, schedule: Schedule, optimizer: OptimizerSpec, *, having: Sequence[str]) -> None:
    """Raise ValueError if the optimizer has no such value to scale, or if a scaled average would take in nothing.

    Args:
        having: the types of the optimizers that have such a value.
    """
    values = optimizer.scheduled_values(name)
    if not values:
        raise ValueError(
            f'schedules.{name}: optimizer.type = "{optimizer.type}" has nothing to scale; those that have are'
            f" {', '.join(having)}"
        )
    if not any(values.values()):
        raise ValueError(f"schedules.{name} scales optimizer.{next(iter(values))}, which is 0: set it too")
    greatest = schedule.greatest_ratio
    for key, value in values.items():
        if name != "weight_decay" and greatest * value >= 1:
            raise ValueError(
                f"schedules.{name} multiplies optimizer.{key} = {value:g} by up to {greatest:g}, and the product must"
                f" stay below 1: {greatest:g} x {value:g} = {greatest * value:g}"
            )
