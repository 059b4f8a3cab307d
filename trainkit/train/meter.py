"""Metrics from device to log, a step late, so that the host never makes the device wait."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from trainkit.events.log import EventLog
from trainkit.train.guard import check_finite
from trainkit.train.machine import Machine
from trainkit.train.step import Metrics


class Meter:
    """Writes one `step` event for every step, with what the step computed and how long it took."""

    def __init__(self, log: EventLog, *, data: Callable[[int], dict[str, float]]) -> None:
        """`data` says how often each source has been seen after so many steps."""
        self._log, self._data = log, data
        self._pending: tuple[int, Metrics, float, int] | None = None
        self._machine = Machine()
        self._last_done: float | None = None

    def add(self, step: int, metrics: Metrics, *, waited: float, tokens: int) -> None:
        """Take the metrics of `step`, just dispatched, and log those of the step before.

        Raises:
            TrainkitError: a loss or gradient is not finite.
        """
        previous, self._pending = self._pending, (step, metrics, waited, tokens)
        if previous:
            self._write(*previous)

    def flush(self) -> None:
        """Log what is pending: waits for the device."""
        if self._pending:
            pending, self._pending = self._pending, None
            self._write(*pending)

    def restart_clock(self) -> None:
        """The time since the last step was spent on something else: it is not the next step's."""
        self._last_done = time.perf_counter()

    def _write(self, step: int, metrics: Metrics, waited: float, tokens: int) -> None:
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        done = time.perf_counter()
        values["time/data_wait"] = round(waited, 6)
        if self._last_done is not None:
            seconds = done - self._last_done
            values["time/step"] = round(seconds, 6)
            values["throughput/tokens_per_second"] = round(tokens / seconds, 1)
        self._last_done = done
        if machine := self._machine.look(done):
            values |= machine
            values |= {f"data/epochs/{name}": round(epochs, 4) for name, epochs in self._data(step).items()}
        self._log.write("step", step=step, metrics=values)
        check_finite(step, values)
