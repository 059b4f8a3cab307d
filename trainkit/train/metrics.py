"""Metrics from the device to the log, one step late, so that the device never waits for the host."""

from __future__ import annotations

import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int, PyTree

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import as_logged
from trainkit.models import leaf_names
from trainkit.parallel.hardware import peak_of
from trainkit.parallel.mesh import replicated_sharding
from trainkit.plan import Plan
from trainkit.train.state import State
from trainkit.train.statistics import LAYERS
from trainkit.train.step import WEIGHT, Metrics
from trainkit.train.system_metrics import SystemMetrics

#: Metrics that must be finite.
WATCHED = ("train/loss", "gradients/norm", "parameters/norm")
LOSS_SCALE = "precision/loss_scale"
#: Bins of a histogram of parameters.
BINS = 64
#: The leaves of a model's blocks, which have a leading axis of layers.
STACKED = "blocks."


class Broken(TrainkitError):
    """Training has broken: the run must end, and its state must not be saved."""


class NotFinite(Broken):
    """The state is no longer finite."""


class StepWork(NamedTuple):
    """The work of a step, and the peak performance of the devices."""

    flops_per_token: int
    """Analytic, as the plan counts them."""
    peak_flops: float | None
    """Operations per second of all devices that train; None if unknown."""
    of_examples: bool = False
    """Whether the plan counts examples, because the documents have no tokens."""
    by_length: Mapping[int, int] = {}
    """The FLOPs of a token by the length of the sequences, where that changes."""

    @classmethod
    def of(cls, plan: Plan, *, tflops: float | None) -> StepWork:
        """Return the work of a step of the plan. `tflops` is the recipe's `parallel.peak_tflops`, or None."""
        by_length = {stage.length: stage.flops_per_token for stage in plan.stages}
        return cls(plan.flops_per_token, peak_of(plan, tflops=tflops), plan.sequence_length is None, by_length)

    def rates(self, size: Mapping[str, int], *, seconds: float, length: float | None = None) -> dict[str, float]:
        """Return the throughput of a step of this size (`Task.count`) that took so many seconds.

        Tokens are included if the batch has any; model FLOP/s utilisation (Chowdhery et al. 2022, appendix B) if the
        peak is known.

        Args:
            length: of the sequences, where that changes.
        """
        tokens, samples = size["tokens"], {"throughput/samples_per_second": _digits(size["samples"] / seconds)}
        if not tokens and not self.of_examples:
            return samples
        flops = self.by_length.get(int(length or 0), self.flops_per_token) * (tokens or size["samples"]) / seconds
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

    `time/step` is the time between the results of the previous step and of this one. `time/data_wait`, `time/dispatch`
    and `time/device` are what the loop did in that time: wait for a batch, call the step, wait for the device. The rest
    is the loop's own work, such as the log. The loop is one step ahead of its results, so it mostly waited for the
    batch after this one. A CPU may compute within the call, which then counts as `time/dispatch`. `time/evaluation` and
    `time/checkpoint` came between the two steps, and are not part of `time/step`.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        data: Callable[[int], dict[str, float]],
        work: StepWork,
        scheduled: Callable[[int], dict[str, float]] = lambda step: {},
        check: Callable[[int, Mapping[str, float]], None] | None = None,
    ) -> None:
        """`data` returns the epochs of each source after so many steps; `scheduled`, what [schedules] says about the
        batch after so many steps. `check` judges the metrics of each step once they are logged; `check_finite` if
        None."""
        self._scheduled, self._check = scheduled, check or check_finite
        self._log, self._data, self._work = log, data, work
        self._pending: tuple[int, Metrics, Mapping[str, int]] | None = None
        self._system = SystemMetrics()
        self._last_done: float | None = None
        self._spent: defaultdict[str, float] = defaultdict(float)

    def add(self, step: int, metrics: Metrics, *, waited: float, size: Mapping[str, int]) -> None:
        """Log the metrics of the previous step, and keep those of `step`, just dispatched; `size` is `Task.count`'s.

        Raises:
            Broken: a loss, gradient or parameter is not finite, or [guard] ends the run.
        """
        self._spent["data_wait"] += waited
        previous, self._pending = self._pending, (step, metrics, size)
        if previous:
            self._write(*previous)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time of a block to `time/PART` of the next step that is logged."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spend(part, since=started)

    def spend(self, part: str, *, since: float) -> None:
        """Add the time since a moment of `time.perf_counter` to `time/PART` of the next step that is logged."""
        self._spent[part] += time.perf_counter() - since

    def flush(self) -> None:
        """Log the step that is pending. Waits for the device."""
        if self._pending:
            pending, self._pending = self._pending, None
            self._write(*pending)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Log every step so far, and count the time of a block, in which nothing is trained, for no step."""
        self.flush()
        try:
            yield
        finally:
            self.restart_clock()

    def restart_clock(self) -> None:
        """Count the time since the last step for no step."""
        self._last_done = time.perf_counter()
        self._spent.pop("data_wait", None)

    def _write(self, step: int, metrics: Metrics, size: Mapping[str, int]) -> None:
        with self.measure("device"):
            fetched = jax.device_get(metrics)
            layers = fetched.get(LAYERS, {})
            values = metrics_of(fetched)
        values |= (scheduled := self._scheduled(step - 1))
        done = time.perf_counter()
        values |= {f"time/{part}": round(seconds, 6) for part, seconds in self._spent.items()}
        self._spent.clear()
        if self._last_done is not None:
            seconds = done - self._last_done
            values["time/step"] = round(seconds, 6)
            values |= self._work.rates(size, seconds=seconds, length=scheduled.get("schedules/sequence_length"))
        self._last_done = done
        if system := self._system.read(done):
            values |= system
            values |= {f"data/epochs/{name}": round(epochs, 4) for name, epochs in self._data(step).items()}
        self._log.write("step", step=step, metrics=values)
        if layers:
            self._log.write("statistics", step=step, values={path: _list(array) for path, array in layers.items()})
        self._check(step, values)


def metrics_of(metrics: Metrics) -> dict[str, float]:
    """Return the metrics of a step on the host as the log has them, without statistics that have no value.

    A batch without targets has no mean loss.
    """
    values = {
        name: value.value() if hasattr(value, "value") else float(value)
        for name, value in metrics.items()
        if name != LAYERS
    }
    if values.pop(WEIGHT) == 0:
        del values["train/loss"]
    return {name: value for name, value in values.items() if value is not None}


def _list(array: np.ndarray) -> list[float | str]:
    return [as_logged(_digits(value)) for value in array.tolist()]


def _digits(value: float) -> float:
    """Return a number with four significant digits, so that small ones stay readable."""
    return float(f"{value:.4g}")


def check_finite(step: int, metrics: Mapping[str, float]) -> None:
    """Raise `NotFinite` if the loss, the gradient or a parameter is not finite.

    The parameters are those after the step, so that broken ones are never saved. A step that overflowed float16 has
    changed no parameter: it is an error only once its loss scale is less than 1.
    """
    wrong = [name for name in WATCHED if name in metrics and not math.isfinite(metrics[name])]
    scale = metrics.get(LOSS_SCALE)
    if scale is not None and scale >= 1 and "gradients/norm" in wrong and "parameters/norm" not in wrong:
        return  # the step was skipped, and the next one uses half the scale
    if scale is not None and scale < 1:
        raise NotFinite(
            f"{LOSS_SCALE} fell to {scale:g}: gradients overflow float16 even if the loss is not scaled up",
            where=f"step {step}",
            hint='precision.compute = "bfloat16" or "float32" has the range; or resume from an earlier checkpoint with '
            "a lower optimizer.learning_rate",
            exit_code=FAILED,
        )
    if wrong:
        raise NotFinite(
            " and ".join(f"{name} is {metrics[name]}" for name in wrong) + "; the run was stopped",
            where=f"step {step}",
            hint="resume from an earlier checkpoint with a lower optimizer.learning_rate, a longer schedule.warmup "
            "or a lower train.max_grad_norm",
            exit_code=FAILED,
        )


class Histogram(NamedTuple):
    """For each of N layers (1 if a leaf has none): counts in bins of equal width from `low` to `high`."""

    low: Float[Array, " N"]
    high: Float[Array, " N"]
    counts: Int[Array, "N bins"]


def histogram(values: Float[Array, " count"]) -> Histogram:
    """Return the histogram of all values. Its bounds are not finite if a value is not."""
    values = values.astype(jnp.float32)
    low, high = values.min(), values.max()
    place = jnp.floor((values - low) / jnp.where(high > low, high - low, 1) * BINS)
    place = jnp.clip(place, 0, BINS - 1).astype(jnp.int32)
    if jax.default_backend() == "cpu":
        return Histogram(low, high, jnp.zeros(BINS, jnp.int32).at[place].add(1))
    # other devices add to a bin for one thread after the other, so they look at each number once for each bin
    place = place.astype(jnp.int8)
    bins = jnp.arange(BINS, dtype=jnp.int8)
    return Histogram(low, high, jax.lax.map(lambda bin_: (place == bin_).sum(dtype=jnp.int32), bins))


@functools.cache
def _histograms_on(mesh: Mesh | None) -> Callable[[dict[str, Array]], dict[str, Histogram]]:
    """Return a compiled function whose whole result is on every process."""

    def histograms(leaves: dict[str, Array]) -> dict[str, Histogram]:
        return {
            name: jax.vmap(histogram)(leaf.reshape(leaf.shape[0] if name.startswith(STACKED) else 1, -1))
            for name, leaf in leaves.items()
        }

    return jax.jit(histograms, out_shardings=None if mesh is None else replicated_sharding(mesh))


def distributions(params: PyTree) -> dict[str, dict[str, Any]]:
    """Return `{"low", "high", "counts"}` by path, such as `parameters/layers/3/attention.qkv.weight`.

    Layers with a value that is not finite are omitted.
    """
    leaves = eqx.filter(params, eqx.is_inexact_array)
    named = dict(zip(jax.tree.leaves(leaf_names(leaves)), jax.tree.leaves(leaves), strict=True))
    shardings = (leaf.sharding for leaf in named.values() if isinstance(leaf, jax.Array))
    mesh = next((sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)), None)
    by_path: dict[str, dict[str, Any]] = {}
    for name, layers in jax.device_get(_histograms_on(mesh)(named)).items():
        for layer, (low, high, counts) in enumerate(zip(*map(np.asarray, layers), strict=True)):
            path = f"layers/{layer}/{name.removeprefix(STACKED)}" if name.startswith(STACKED) else name
            if math.isfinite(low) and math.isfinite(high):
                by_path[f"parameters/{path}"] = {"low": float(low), "high": float(high), "counts": counts.tolist()}
    return by_path


def log_distributions(log: EventLog, state: State, step: int) -> None:
    """Write the distributions of the parameters to the log."""
    log.write("distributions", step=step, values=distributions(state.params))
