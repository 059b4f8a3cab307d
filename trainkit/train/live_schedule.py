"""What commands have changed about the learning rate of a run, and the step at which it therefore ends."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np

from trainkit.errors import TrainkitError
from trainkit.events.commands import Command
from trainkit.recipe.sections.schedule import Schedule
from trainkit.train.state import Live, State


class LiveSchedule:
    """The host's copy of `State.live`, which saves asking the device. Commands change it; the loop passes it on."""

    def __init__(self, schedule: Schedule, *, steps: int, live: Live) -> None:
        """`steps` are those of the plan."""
        self._schedule, self._steps = schedule, steps
        self._rate_factor, self._decay_start = float(live.rate_factor), int(live.decay_start)
        self._changed = False

    @property
    def total_steps(self) -> int:
        return self._schedule.last_step(self._steps, decay_start=self._decay_start)

    def holds(self, command: Command, *, step: int) -> bool:
        """Whether it already is as this command, given after `step`, would make it."""
        if command.name == "decay":
            return self._decay_start == step
        return self._rate_factor == np.float32(command.argument)

    def change_rate(self, factor: float, *, step: int) -> str:
        """Multiply what the schedule says by `factor`, whatever the factor was before; what was done in words."""
        self._rate_factor, self._changed = float(np.float32(factor)), True
        return f"the learning rate is {factor:g} x the schedule's from step {step + 1} on"

    def begin_decay(self, *, step: int) -> str:
        """Let the decay begin after `step` and the run end with it; what was done in words.

        Raises:
            TrainkitError: the schedule has no decay, it has begun, or the warm-up is not over.
        """
        schedule = self._schedule
        begins = schedule.decay_start(self._steps, ordered=self._decay_start)
        if begins is None:
            raise TrainkitError(
                f"there is no decay to begin: schedule.type is '{schedule.type}', and only that of 'wsd' can be moved"
            )
        warm = schedule.warmup_steps(self._steps)
        if step >= begins:
            raise TrainkitError(f"the decay has begun already, after step {begins}; it ends at {self.total_steps}")
        if step < warm:
            raise TrainkitError(f"the learning rate is still warming up: the decay can begin after step {warm}")
        self._decay_start, self._changed = step, True
        return f"the decay begins after step {step}; the run ends with it, at step {self.total_steps}"

    def put_into(self, state: State) -> State:
        """Return the state with the changes since the last call; waits for nothing."""
        if not self._changed:
            return state
        self._changed = False
        live = Live(
            jax.device_put(np.float32(self._rate_factor), state.live.rate_factor.sharding),
            jax.device_put(np.int32(self._decay_start), state.live.decay_start.sharding),
        )
        return eqx.tree_at(lambda state: state.live, state, live)
