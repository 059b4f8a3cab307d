"""The loss and the metrics of a model over whole sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from trainkit.data.cache.section import SourceSpan
from trainkit.errors import FAILED, TrainkitError
from trainkit.evaluation.results import PredictionTable, ResultWriter
from trainkit.evaluation.set_sums import SetSums, Sums, add_up, labels_of_gathered
from trainkit.models.casting import cast
from trainkit.parallel import agreement
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import divisors
from trainkit.tasks import Task
from trainkit.tasks.metric import GatheredItems, GatheredMetric, Metric
from trainkit.train.gradients import no_loss
from trainkit.train.out_of_memory import can_recover_from
from trainkit.train.prefetch import PATIENCE, HostBatch, whole_to_device
from trainkit.train.state import EVALUATION, State


class EvaluationSet(Protocol):
    """The batches of a set, in order.

    Attributes:
        targets: how many tokens of its documents may be targets.
        bytes: the bytes of its documents; 0 if unknown.
    """

    @property
    def targets(self) -> int:
        """Return how many tokens of the whole set are targets; 0 if not all that could be are."""

    @property
    def bytes(self) -> int:
        """Return the bytes of its texts in UTF-8; 0 if `targets` is."""

    def ready(self, seconds: float, /) -> bool:
        """Return whether the set is complete, after waiting at most `seconds`."""

    def __len__(self) -> int: ...
    def batch(self, index: int, /) -> HostBatch:
        """Return the batch of this index."""

    def places(self, index: int, /) -> Sequence[Sequence[SourceSpan]]:
        """Return where each example of a batch comes from."""


class TextReport(Protocol):
    """What makes texts of what a model says about a set, and returns the values of metrics of them."""

    @property
    def reads_predictions(self) -> bool:
        """Whether the texts follow from the predictions in the table, which are then kept for it."""

    def __call__(self, state: State, data: EvaluationSet, table: PredictionTable, /) -> dict[str, float]: ...


class EventWriter(Protocol):
    """Where an evaluation reports its progress and results: the log of a run."""

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        """Append one event; see `EventLog.write`."""


class Evaluator:
    """Evaluates every set and writes one `evaluated` event for each."""

    def __init__(
        self,
        sets: Mapping[str, EvaluationSet],
        *,
        batch_size: int,
        task: Task,
        compute: jnp.dtype,
        mesh: Mesh,
        log: EventWriter,
        interrupted: Callable[[], bool],
        compares: bool = False,
        metrics: Mapping[str, Metric] = {},
        tags: Mapping[str, Collection[str]] = {},
        results: ResultWriter | None = None,
        texts: TextReport | None = None,
        jit: Callable[..., Any] = jax.jit,
    ) -> None:
        """`compares` says whether the task compares the examples of a batch, so that fewer at once have other values.
        `tags` names the sets that are also reported together, under the tag.
        `results` keeps predictions; None if they are not kept. `texts` reports on texts that the model writes or
        finds; None if there are none. `jit` compiles."""
        self._sets, self._tags = sets, tags
        self._task, self._compares, self._metrics = task, compares, metrics
        self._mesh, self._sharding, self._whole = mesh, batch_sharding(mesh), replicated_sharding(mesh)
        self._log, self._results, self._texts = log, results, texts
        kept = results is not None or (texts is not None and texts.reads_predictions)
        self._interrupted = interrupted

        def model_of(state: State) -> Any:
            return eqx.combine(cast(state.params, compute), cast(state.frozen, compute))

        def add_baselines(
            sums: PyTree, lost: PyTree, state: State, batch: Mapping[str, Array]
        ) -> tuple[PyTree, PyTree]:
            rows = {name: array[0] for name, array in batch.items()}
            return add_compensated(sums, lost, dict(task.measure_baselines(model_of(state), rows)))

        def add(
            sums: Sums, lost: Sums, state: State, batch: Mapping[str, Array], baselines: PyTree, number: Array
        ) -> tuple[Sums, Sums, Mapping[str, Array], Mapping[str, Mapping[str, Array]]]:
            # depends on the set alone, so that the same is drawn at every step, after a resume and on any devices
            key = jax.random.fold_in(jax.random.fold_in(state.key, EVALUATION), number)
            rows = {name: array[0] for name, array in batch.items()} | baselines
            loss, predictions = task.predict(model_of(state), rows, key=key)
            found = Sums(loss, {label: metric.statistics(predictions) for label, metric in metrics.items()})
            needed = {
                label: {**metric.needed_arrays(predictions), "weights": predictions["weights"]}
                for label, metric in metrics.items()
                if isinstance(metric, GatheredMetric)
            }
            return *add_compensated(sums, lost, found), predictions if kept else {}, needed

        # the initial sums have this sharding too; otherwise it would be compiled twice
        self._add = jit(add, out_shardings=self._whole)
        self._add_baselines = jit(add_baselines, out_shardings=self._whole)
        self._rows, self._parts = batch_size, 1

    def __call__(self, state: State, step: int, only: Collection[str] | None = None) -> dict[str, dict[str, float]]:
        """Evaluate all sets and tags, or some, and return the metrics of each.

        If the run is to end now, return early, without an event for the unfinished set.
        """
        evaluated: dict[str, dict[str, float]] = {}
        tagged: dict[str, SetSums] = {}
        needed = {name for tag, names in self._tags.items() if only is None or tag in only for name in names}
        for name, data in self._sets.items():
            wanted = only is None or name in only
            if not wanted and name not in needed:
                continue
            started = time.perf_counter()
            self._log.write("evaluation_started", step=step, name=name)
            while not data.ready(PATIENCE):
                if self._interrupted():
                    return evaluated
            sums, predictions = self._evaluate(state, data, np.uint32(crc32(name.encode())), step)
            written = self._texts(state, data, predictions) if self._texts and wanted else {}
            if self._interrupted():
                return evaluated
            if name in needed:
                tagged[name] = sums
            if not wanted:
                continue
            if sums.is_empty:
                message = f"the validation set {name} has nothing to predict, so there is no loss to report"
                self._log.write("alert", step=step, kind="evaluation", message=message)
            values = sums.values(self._task, self._metrics) | ({} if sums.is_empty else written)
            evaluated[name] = self._report(name, step, values, predictions, time.perf_counter() - started)
        for tag, names in self._tags.items():
            if only is None or tag in only:
                values = add_up([tagged[name] for name in names]).values(self._task, self._metrics)
                evaluated[tag] = self._report(tag, step, values, PredictionTable(), 0.0)
        return evaluated

    def _report(
        self, name: str, step: int, values: Mapping[str, float], predictions: PredictionTable, seconds: float
    ) -> dict[str, float]:
        """Return the metrics of a set or a tag, after writing them to the log and to the results."""
        metrics = {f"validation/{name}/{metric}": value for metric, value in values.items()}
        self._log.write("evaluated", step=step, name=name, metrics=metrics, seconds=round(seconds, 3))
        if self._results is not None:
            try:
                self._results(name, step, metrics, predictions)
            except TrainkitError as error:
                message = f"{error.where}: {error.problem}"
                self._log.write("alert", step=step, kind="evaluation", message=message)
        return metrics

    def _evaluate(
        self, state: State, data: EvaluationSet, number: np.uint32, step: int
    ) -> tuple[SetSums, PredictionTable]:
        """Return the sums over a set and its predictions, after taking fewer rows at once where there is no memory."""
        found = self._sum(state, data, number)
        while found is None:  # nothing of the failed computation is left, and nothing is lost
            self._split(step)
            found = self._sum(state, data, number)
        sums, predictions, items = found
        arrays = {label: items.of(label) for label in labels_of_gathered(self._metrics)}
        return SetSums(sums, arrays, data.targets, data.bytes), predictions

    def _sum(
        self, state: State, data: EvaluationSet, number: np.uint32
    ) -> tuple[Sums, PredictionTable, GatheredItems] | None:
        """Return the sums on the host, the predictions where they are kept, and the items that metrics need, of what
        there was before an interruption; None where there was no memory."""
        try:
            zero = Sums(no_loss(self._task), {label: metric.zero for label, metric in self._metrics.items()})
            sums, lost = (jax.device_put(zero, self._whole) for _ in range(2))
            predictions, items = PredictionTable(), GatheredItems()
            baselines = self._baselines(state, data)
            for index, part, rows in self._parts_of(data):
                arrays = whole_to_device(rows, sharding=self._sharding)
                with jax.set_mesh(self._mesh):  # as in a step, each device finds its rows by the mesh
                    sums, lost, predicted, needed = self._add(sums, lost, state, arrays, baselines, number)
                size = self._rows // self._parts
                places: Sequence[Sequence[SourceSpan]] = ()
                if predicted or any("begins" in each for each in needed.values()):
                    places = data.places(index)[part * size : (part + 1) * size]
                if needed:
                    items.add(needed, size, places)
                if predicted:
                    predictions.add(places, size, predicted, rows.get("tokens"))
            found, error_of_rounding = jax.device_get((sums, lost))
        except jax.errors.JaxRuntimeError as error:
            if not can_recover_from(error):
                raise
            return None
        exact: Sums = jax.tree.map(_without_error, found, error_of_rounding)
        return exact, predictions, items

    def _baselines(self, state: State, data: EvaluationSet) -> PyTree:
        """Return what the task measures of the whole set before it computes a loss; empty for most tasks."""
        zero = dict(self._task.baselines)
        if not zero:
            return zero
        sums, lost = (jax.device_put(zero, self._whole) for _ in range(2))
        for _, _, rows in self._parts_of(data):
            arrays = whole_to_device(rows, sharding=self._sharding)
            with jax.set_mesh(self._mesh):
                sums, lost = self._add_baselines(sums, lost, state, arrays)
        return sums

    def _parts_of(self, data: EvaluationSet) -> Iterator[tuple[int, int, HostBatch]]:
        """Yield the parts of all batches of a set, with the numbers of the batch and of the part in it. Stop after the
        batch during which the run is to end."""
        for index in range(len(data)):
            batch = agreement.make_together("evaluation", partial(data.batch, index))
            for part in range(self._parts):
                yield index, part, {name: np.array_split(array, self._parts)[part] for name, array in batch.items()}
            if self._interrupted():
                return

    def _split(self, step: int) -> None:
        """Take fewer rows at once from now on. Raises TrainkitError where one row per device is too much, or where the
        values depend on the number of rows."""
        if self._compares:
            raise TrainkitError(
                f"there is no memory to evaluate {self._rows} examples at once, which the task compares with each"
                " other: with fewer, the values would mean something else",
                where="evaluate.batch_size",
                hint=f"set it to less than {self._rows}: evaluations with different sizes cannot be compared",
                exit_code=FAILED,
            )
        devices = self._mesh.size
        more = [n for n in divisors(self._rows) if n > self._parts and self._rows // n % devices == 0]
        if not more:
            raise TrainkitError(
                f"there is no memory to evaluate {self._rows // self._parts} sequences at once",
                where="evaluate.batch_size",
                hint="use shorter sequences, a smaller model, or more devices",
                exit_code=FAILED,
            )
        self._parts = more[0]
        fewer = self._rows // self._parts
        message = f"no memory to evaluate so many sequences at once: continuing with {fewer};"
        message += f" to start with that number: evaluate.batch_size = {fewer}"
        self._log.write("alert", step=step, kind="out of memory", message=message)


def _without_error(total: np.ndarray, error: np.ndarray) -> np.ndarray:
    return np.float64(total) - error if np.issubdtype(total.dtype, np.floating) else total


def add_compensated(sums: PyTree, lost: PyTree, more: PyTree) -> tuple[PyTree, PyTree]:
    """Return `sums` + `more`, leaf by leaf, and what rounding added to them, which the next sum takes off again.

    So a float32 sum of a million batches is as exact as one of two, and counts beyond 2^24 (Kahan 1965). Whole numbers
    are added as they are.
    """

    def add(total: Array, error: Array, part: Array) -> tuple[Array, Array]:
        if not jnp.issubdtype(part.dtype, jnp.floating):
            return total + part, error
        part = part - error
        after = total + part
        # infinite sums have no rounding error
        return after, jnp.where(jnp.isfinite(after), (after - total) - part, 0)

    leaves, structure = jax.tree.flatten(sums)
    pairs = [add(*parts) for parts in zip(leaves, jax.tree.leaves(lost), jax.tree.leaves(more), strict=True)]
    return jax.tree.unflatten(structure, [a for a, _ in pairs]), jax.tree.unflatten(structure, [b for _, b in pairs])
