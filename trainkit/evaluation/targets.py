"""Texts that a model writes: targets of sources, or answers to prompts, compared with those in the set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from trainkit.data.batches.answers import last_answers
from trainkit.data.cache.section import SourceSpan
from trainkit.data.hub_files import read_object
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import FAILED, TrainkitError
from trainkit.evaluation.evaluator import TextReport
from trainkit.evaluation.results import PredictionTable
from trainkit.hub.tokenizer import GENERATION
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.generate import NOTHING, bucket, generate, pad_prompts
from trainkit.infer.sampling import Sampling
from trainkit.infer.seq2seq import start_of, write_targets
from trainkit.infer.settings import rules_beside
from trainkit.infer.target_rules import NO_RULES, TargetRules
from trainkit.infer.text_format import chat_of, end_of_answer, text_format_of, usable_template
from trainkit.models.casting import cast
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import divisors
from trainkit.recipe import Recipe
from trainkit.recipe.sections.evaluate import Generate
from trainkit.recipe.spec import import_named
from trainkit.tasks.text_metrics import TextMetric, build_text_metrics
from trainkit.train.out_of_memory import can_recover_from
from trainkit.train.prefetch import HostBatch, whole_to_device
from trainkit.train.state import State


class SourceSet(Protocol):
    """Batches of sources with their targets, and where they come from."""

    def __len__(self) -> int: ...
    def batch(self, index: int, /) -> HostBatch:
        """Return a batch by its number."""

    def places(self, index: int, /) -> Sequence[Sequence[SourceSpan]]:
        """Return where the rows of a batch come from."""


class Item(NamedTuple):
    """What a model is to write: tokens of a source or prompt, and of the target or answer in the set."""

    place: SourceSpan
    source: list[int]
    target: list[int]


def items_of_pairs(batch: HostBatch, places: Sequence[Sequence[SourceSpan]]) -> Iterator[Item]:
    """Yield the pairs of a batch in which each row has a source and its target."""
    for row, spans in enumerate(places):
        sides = (batch["tokens"][row, side, : batch["filled"][row, side]].tolist() for side in (0, 1))
        yield Item(spans[0], *sides)


def items_of_texts(
    batch: HostBatch, places: Sequence[Sequence[SourceSpan]], *, ends: Collection[int], positions: int
) -> Iterator[Item]:
    """Yield the prompts of a batch of texts with their last answers, except those whose end is cut off.

    An answer is cut off if it reaches the end of an example of `positions` positions without one of the tokens `ends`.
    """
    for found in last_answers(batch):
        place = places[found.row][found.document]
        # the last token of the answer is no input
        is_cut_off = len(found.prompt) + len(found.answer) > positions and found.answer[-1] not in ends
        if not place.first and not is_cut_off:  # a place beyond the first is the rest of a document that is divided
            yield Item(place, found.prompt, found.answer)


class TargetWriter:
    """Writes the targets of the first sources of a set, or the answers to its first prompts, and returns the values of
    metrics."""

    reads_predictions: ClassVar[bool] = False

    def __init__(
        self,
        recipe: Recipe,
        codec: LoadedTokenizer,
        *,
        ends: tuple[int, ...],
        stop: Sequence[str],
        rules: TargetRules = NO_RULES,
        metrics: Sequence[TextMetric],
        compute: jnp.dtype,
        mesh: Mesh,
        interrupted: Callable[[], bool],
        alert: Callable[[str], None],
        jit: Callable[..., Any] = jax.jit,
    ) -> None:
        """Write until one of the tokens `ends`, or a text up to one of the strings `stop`.

        `alert` is called with what a person should know; `jit` compiles.
        """
        how = recipe.evaluate.generate
        assert how is not None
        self._codec, self._metrics, self._interrupted, self._alert = codec, metrics, interrupted, alert
        self._parts = 1
        self._max_items, self._mesh, self._stop = how.max_items, mesh, stop
        self._hidden = {*codec.special_tokens.values(), *ends} - {codec.unknown}
        continues = recipe.model.kind != "encoder-decoder"
        of_texts = partial(items_of_texts, ends=ends, positions=recipe.data.positions)
        self._items: Callable[[HostBatch, Sequence[Sequence[SourceSpan]]], Iterator[Item]]
        self._items = of_texts if continues else items_of_pairs
        context = recipe.language_model.context_length or (recipe.data.positions if continues else None)
        #: Positions that a prompt and its answer share.
        self._context = context if continues else None
        new_tokens = how.max_tokens if context is None else min(how.max_tokens, context - 1)
        search = BeamSearch(how.beams, how.length_penalty, how.early_stopping, rules)
        start = start_of(recipe.model, codec)

        def write(params: PyTree, frozen: PyTree, batch: Mapping[str, Array]) -> Array:
            model = eqx.combine(cast(params, compute), cast(frozen, compute))
            tokens, lengths = batch["tokens"][0], batch["lengths"][0]
            keys = jax.random.split(jax.random.key(0), len(lengths))  # nothing is drawn
            how: dict[str, Any] = {"new_tokens": new_tokens, "ends": ends, "sampling": Sampling(temperature=0)}
            if continues:
                return generate(model, tokens, lengths, keys, **how)
            return write_targets(model, tokens, lengths, keys, start=start, search=search, **how)

        self._write = jit(write, out_shardings=replicated_sharding(mesh))

    def __call__(self, state: State, data: SourceSet, table: PredictionTable) -> dict[str, float]:
        """Return the values of the metrics, and add the texts to a table. After an interruption there are none."""
        generated: list[str] = []
        targets: list[str] = []
        for item, tokens in self._write_items(state, data):
            generated.append(self._text(tokens))
            targets.append(self._text(item.target))
            texts = {"text": self._text(item.source, whole=True), "target": targets[-1], "generated": generated[-1]}
            table.add_texts(item.place, texts)
        if not targets or self._interrupted():
            return {}
        values: dict[str, float] = {}
        for metric in self._metrics:
            values |= metric.values(generated, targets)
        return values

    def _write_items(self, state: State, data: SourceSet) -> Iterator[tuple[Item, list[int]]]:
        """Yield the first items of a set, and the tokens that the model writes for each."""
        left = self._max_items
        for index in range(len(data)):
            if left <= 0 or self._interrupted():
                return
            batch = data.batch(index)
            items = list(self._items(batch, data.places(index)))[:left]
            left -= len(items)
            rows, length = batch["tokens"].shape[0], batch["tokens"].shape[-1]
            while items:  # packed rows hold several items each
                some = items[: rows // self._parts]
                try:
                    written = list(self._write_rows(state, some, rows // self._parts, length))
                except jax.errors.JaxRuntimeError as error:
                    if not can_recover_from(error):
                        raise
                    self._parts = self._more_parts(rows)
                    continue
                yield from written
                items = items[len(some) :]

    def _more_parts(self, rows: int) -> int:
        """Return into how many parts to divide `rows` rows from now on, because memory ran out.

        Raises TrainkitError if each device has only one row already.
        """
        more = [n for n in divisors(rows) if n > self._parts and rows // n % self._mesh.size == 0]
        if not more:
            raise TrainkitError(
                f"there is no memory to write {rows // self._parts} texts at once",
                where="evaluate.generate",
                hint="use a smaller max_tokens or fewer beams",
                exit_code=FAILED,
            )
        self._alert(f"no memory to write {rows // self._parts} texts at once: continuing with {rows // more[0]}")
        return more[0]

    def _write_rows(
        self, state: State, items: Sequence[Item], rows: int, length: int
    ) -> Iterator[tuple[Item, list[int]]]:
        """Yield up to `rows` items, and what the model writes for each; no source is longer than `length`."""
        sources = [item.source for item in items]
        width = length if self._context is None else bucket(max(map(len, sources)), most=max(length, self._context))
        tokens, lengths = pad_prompts([*sources, *[[]] * (rows - len(items))], width)
        arrays = whole_to_device({"tokens": tokens, "lengths": lengths}, sharding=batch_sharding(self._mesh))
        with jax.set_mesh(self._mesh):  # as in a step, each device finds its rows by the mesh
            written = np.asarray(self._write(state.params, state.frozen, arrays)).tolist()
        for item, new in zip(items, written, strict=False):
            # beyond the context, a model that has learned its positions knows none
            yield item, new if self._context is None else new[: max(0, self._context - len(item.source))]

    def _text(self, ids: Sequence[int], *, whole: bool = False) -> str:
        """Return the text of tokens, up to a stop string unless it is wanted whole."""
        text = self._codec.decode([token for token in ids if token != NOTHING and token not in self._hidden])
        found = [] if whole else [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return text[: min(found)] if found else text


def unused_settings(how: Generate, directory: Path) -> str:
    """Return which settings of the generation_config.json in a run the recipe overrides; empty if there are none."""
    said = read_object(directory / GENERATION, missing_ok=True)
    ours: dict[str, Any] = {"num_beams": how.beams, "max_new_tokens": how.max_tokens}
    if how.beams > 1:
        ours |= {"length_penalty": how.length_penalty, "early_stopping": how.early_stopping}
    others = [f"{key} = {said[key]}" for key, value in ours.items() if said.get(key) not in (None, value)]
    if not others:
        return ""
    return (
        f"{GENERATION} of the model has {', '.join(others)}: evaluations use the recipe's [evaluate.generate] instead"
    )


def text_report(
    recipe: Recipe,
    directory: Path,
    codec: LoadedTokenizer | None,
    *,
    compute: jnp.dtype,
    mesh: Mesh,
    interrupted: Callable[[], bool],
    alert: Callable[[str], None],
    jit: Callable[..., Any] = jax.jit,
) -> TextReport | None:
    """Return what reports on texts for the run in `directory`: the task's own report, or the writer of targets; None if
    the task has none and the recipe has no `[evaluate.generate]`.

    `alert` is called with what a person should know; `jit` compiles.

    Raises:
        TrainkitError: a library that computes a metric is not installed.
    """
    if recipe.task.text_report is not None:
        report: TextReport = import_named(recipe.task.text_report)(recipe, codec)
        return report
    if recipe.evaluate.generate is None:
        return None
    assert codec is not None, "sources and targets are texts"
    template = usable_template(chat_of(recipe), (directory,)) if chat_of(recipe) is not None else None
    return TargetWriter(
        recipe,
        codec,
        ends=text_format_of(recipe, directory, codec).ends,
        stop=end_of_answer(template, codec)[1] if template is not None else (),
        rules=rules_beside(directory) if recipe.model.kind == "encoder-decoder" else NO_RULES,
        metrics=build_text_metrics(recipe.evaluate.metrics),
        compute=compute,
        mesh=mesh,
        interrupted=interrupted,
        alert=alert,
        jit=jit,
    )
