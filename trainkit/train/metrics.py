"""Metrics from device to log, a step late, so that the host never makes the device wait."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax

from trainkit.events.log import EventLog
from trainkit.parallel.hardware import peak_of
from trainkit.plan import Plan
from trainkit.train.guard import check_finite
from trainkit.train.step import WEIGHT, Metrics
from trainkit.train.system_metrics import SystemMetrics


class StepWork(NamedTuple):
    """What a step amounts to, and what the devices could do at best."""

    flops_per_token: int
    """Analytic, as the plan counts them."""
    peak_flops: float | None
    """Operations a second of all devices that train; None where that is not known."""
    of_examples: bool = False
    """Whether the plan counts examples, since the documents have no tokens."""

    @classmethod
    def of(cls, plan: Plan, *, tflops: float | None) -> StepWork:
        """`tflops` is what the recipe says of one device (`parallel.peak_tflops`), None where it says nothing."""
        return cls(plan.flops_per_token, peak_of(plan, tflops=tflops), plan.sequence_length is None)

    def rates(self, size: Mapping[str, int], *, seconds: float) -> dict[str, float]:
        """Return the metrics of a step of this size (`Task.count`) that took so long.

        Those of tokens only where the batch has any; model FLOP/s utilisation (Chowdhery et al. 2022, appendix B) only
        where the peak is known.
        """
        tokens, samples = size["tokens"], {"throughput/samples_per_second": _digits(size["samples"] / seconds)}
        if not tokens and not self.of_examples:
            return samples
        flops = self.flops_per_token * (tokens or size["samples"]) / seconds
        rates = {
            **({"throughput/tokens_per_second": round(tokens / seconds, 1)} if tokens else {}),
            **samples,
            "throughput/model_tflops": _digits(flops / 1e12),
        }
        if self.peak_flops is not None:
            rates["throughput/mfu"] = _digits(flops / self.peak_flops)
        return rates


class MetricsWriter:
    """Writes one `step` event for every step, with what the step computed and how long it took.

    `time/step` is the time from the moment at which the result of the step before was here to that at which this one's
    was. `time/data_wait`, `time/dispatch` and `time/device` are what the loop did meanwhile: it waited for a batch,
    called the step, waited for the device; the rest is its own work, such as the log's. They are told of the same
    stretch of time, so that they add up; since the loop is a step ahead of its results, what it waited for was mostly
    the batch after this one. A device that computes within the call, as a CPU may, shows in `time/dispatch`.
    `time/evaluation` and `time/checkpoint` came between the step before and this one, and are no part of `time/step`.
    """

    def __init__(self, log: EventLog, *, data: Callable[[int], dict[str, float]], work: StepWork) -> None:
        """`data` says how often each source has been seen after so many steps."""
        self._log, self._data, self._work = log, data, work
        self._pending: tuple[int, Metrics, Mapping[str, int]] | None = None
        self._machine = SystemMetrics()
        self._last_done: float | None = None
        self._spent: defaultdict[str, float] = defaultdict(float)

    def add(self, step: int, metrics: Metrics, *, waited: float, size: Mapping[str, int]) -> None:
        """Take the metrics of `step`, just dispatched, and log those of the step before; `size` is `Task.count`'s.

        Raises:
            TrainkitError: a loss or gradient is not finite.
        """
        self._spent["data_wait"] += waited
        previous, self._pending = self._pending, (step, metrics, size)
        if previous:
            self._write(*previous)

    @contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """The time that this block takes is told as `time/PART` with the next step that is logged."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spend(part, since=started)

    def spend(self, part: str, *, since: float) -> None:
        """The same of the time since this moment of `time.perf_counter`."""
        self._spent[part] += time.perf_counter() - since

    def flush(self) -> None:
        """Log what is pending: waits for the device."""
        if self._pending:
            pending, self._pending = self._pending, None
            self._write(*pending)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For blocks in which nothing is trained: the log holds every step before, and no time of it is a step's."""
        self.flush()
        try:
            yield
        finally:
            self.restart_clock()

    def restart_clock(self) -> None:
        """The time since the last step was spent on something else: it is not the next step's."""
        self._last_done = time.perf_counter()
        self._spent.pop("data_wait", None)

    def _write(self, step: int, metrics: Metrics, size: Mapping[str, int]) -> None:
        with self.spent("device"):
            values = _numbers(jax.device_get(metrics))
        if values.pop(WEIGHT) == 0:  # a step that learned from nothing has no mean loss
            del values["train/loss"]
        done = time.perf_counter()
        values |= {f"time/{part}": round(seconds, 6) for part, seconds in self._spent.items()}
        self._spent.clear()
        if self._last_done is not None:
            seconds = done - self._last_done
            values["time/step"] = round(seconds, 6)
            values |= self._work.rates(size, seconds=seconds)
        self._last_done = done
        if machine := self._machine.look(done):
            values |= machine
            values |= {f"data/epochs/{name}": round(epochs, 4) for name, epochs in self._data(step).items()}
        self._log.write("step", step=step, metrics=values)
        check_finite(step, values)


def _numbers(metrics: Metrics) -> dict[str, float]:
    """The numbers of a step on the host: arrays, and statistics that have a value."""
    found = {name: value.value() if hasattr(value, "value") else float(value) for name, value in metrics.items()}
    return {name: value for name, value in found.items() if value is not None}


def _digits(value: float) -> float:
    """Four of them: a tiny model's numbers are as readable as a large one's."""
    return float(f"{value:.4g}")
