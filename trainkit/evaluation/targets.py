"""Targets that a model writes for the sources of a set, compared with the targets in the set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from trainkit.data.cache.stream import SourceSpan
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.evaluation.evaluator import TextReport
from trainkit.evaluation.results import PredictionTable
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.generate import NOTHING
from trainkit.infer.sampling import Sampling
from trainkit.infer.seq2seq import start_of, write_targets
from trainkit.infer.text_format import text_format_of
from trainkit.models.casting import cast
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.recipe import Recipe
from trainkit.recipe.spec import import_named
from trainkit.tasks.text_metrics import TextMetric, build_text_metrics
from trainkit.train.prefetch import HostBatch, whole_to_device
from trainkit.train.state import State


class SourceSet(Protocol):
    """Batches of sources with their targets, and where they come from."""

    def __len__(self) -> int: ...
    def batch(self, index: int, /) -> HostBatch: ...
    def places(self, index: int, /) -> Sequence[Sequence[SourceSpan]]: ...


class WrittenTarget(NamedTuple):
    """What a model wrote for a source."""

    place: SourceSpan
    source: str
    target: str
    generated: str


class TargetWriter:
    """Writes the targets of the first sources of a set, and returns the values of metrics."""

    reads_predictions: ClassVar[bool] = False

    def __init__(
        self,
        recipe: Recipe,
        codec: LoadedTokenizer,
        *,
        ends: tuple[int, ...],
        metrics: Sequence[TextMetric],
        compute: jnp.dtype,
        mesh: Mesh,
        interrupted: Callable[[], bool],
    ) -> None:
        how = recipe.evaluate.generate
        assert how is not None
        self._codec, self._metrics, self._interrupted = codec, metrics, interrupted
        self._max_items, self._mesh = how.max_items, mesh
        self._hidden = {*codec.special_tokens.values(), *ends} - {codec.unknown}
        context = recipe.language_model.context_length
        new_tokens = how.max_tokens if context is None else min(how.max_tokens, context - 1)
        search = BeamSearch(how.beams, how.length_penalty, how.early_stopping)
        start = start_of(recipe.model, codec)

        def write(params: PyTree, frozen: PyTree, batch: Mapping[str, Array]) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            tokens, lengths = batch["tokens"][0, :, 0].astype(jnp.int32), batch["filled"][0, :, 0]
            keys = jax.random.split(jax.random.key(0), len(lengths))  # nothing is drawn
            greedy = Sampling(temperature=0)
            how = {"start": start, "new_tokens": new_tokens, "ends": ends}
            return write_targets(model, tokens, lengths, keys, sampling=greedy, search=search, **how)  # type: ignore

        self._write = jax.jit(write, out_shardings=replicated_sharding(mesh))

    def __call__(self, state: State, data: SourceSet, table: PredictionTable) -> dict[str, float]:
        """Return the values of the metrics, and add the texts to a table. After an interruption there are none."""
        texts: list[WrittenTarget] = []
        for written in self._written(state, data):
            texts.append(written)
            table.add_texts(
                written.place, {"text": written.source, "target": written.target, "generated": written.generated}
            )
        if not texts or self._interrupted():
            return {}
        generated, targets = [each.generated for each in texts], [each.target for each in texts]
        values: dict[str, float] = {}
        for metric in self._metrics:
            values |= metric.values(generated, targets)
        return values

    def _written(self, state: State, data: SourceSet) -> Iterator[WrittenTarget]:
        left, sharding = self._max_items, batch_sharding(self._mesh)
        for index in range(len(data)):
            if left <= 0 or self._interrupted():
                return
            batch, places = data.batch(index), data.places(index)[:left]
            arrays = whole_to_device({name: batch[name] for name in ("tokens", "filled")}, sharding=sharding)
            with jax.set_mesh(self._mesh):  # as in a step, each device finds its rows by the mesh
                rows = np.asarray(self._write(state.params, state.frozen, arrays)).tolist()
            for number, spans in enumerate(places):
                source, target = (
                    self._text(batch["tokens"][number, side, : batch["filled"][number, side]].tolist())
                    for side in (0, 1)
                )
                yield WrittenTarget(spans[0], source, target, self._text(rows[number]))
            left -= len(places)

    def _text(self, ids: Sequence[int]) -> str:
        return self._codec.decode([token for token in ids if token != NOTHING and token not in self._hidden])


def text_report(
    recipe: Recipe,
    directory: Path,
    codec: LoadedTokenizer | None,
    *,
    compute: jnp.dtype,
    mesh: Mesh,
    interrupted: Callable[[], bool],
) -> TextReport | None:
    """Return what reports on texts for the run in `directory`: the task's own report, or the writer of targets; None if
    the task has none and the recipe has no `[evaluate.generate]`.

    Raises:
        TrainkitError: a library that computes a metric is not installed.
    """
    if recipe.task.text_report is not None:
        report: TextReport = import_named(recipe.task.text_report)(recipe, codec)
        return report
    if recipe.evaluate.generate is None:
        return None
    assert codec is not None, "sources and targets are texts"
    return TargetWriter(
        recipe,
        codec,
        ends=text_format_of(recipe, directory, codec).ends,
        metrics=build_text_metrics(recipe.evaluate.metrics),
        compute=compute,
        mesh=mesh,
        interrupted=interrupted,
    )
