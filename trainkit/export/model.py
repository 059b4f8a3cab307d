"""Exports a run's model for `transformers`, and reads it back before the export gets its name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from trainkit import files, models
from trainkit.checkpoint.store import Info, checkpoint_of, read_checkpoint
from trainkit.data.tokenizer import vocabulary
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.attempts import current_events
from trainkit.events.commands import issued_commands
from trainkit.events.tail import of_kinds
from trainkit.hub import tokenizer
from trainkit.hub.card import Made, card, shareable_recipe
from trainkit.hub.config import check_loads
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.infer.adapted import Weights, merge_adapter
from trainkit.infer.seq2seq import start_of
from trainkit.infer.text_format import TextFormat, after_source, pad_of, text_format_of
from trainkit.infer.trained_model import all_devices, restore_model, weights_of
from trainkit.models.stack import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.toml.load import Loaded
from trainkit.rundir.directory import disk_errors, recipe_of

#: Random tokens on which an export is compared with the exported model: rows, and at most so many positions in each.
ROWS, POSITIONS = 2, 64
#: The largest difference of a logit, as a share of the largest logit. Both models have the same weights and program.
TOLERANCE = 1e-5
#: The commands that changed what was learned, as a model card describes them.
COMMANDS = {
    "rate": "learning rate {} times the schedule's",
    "decay": "the decay of the schedule began",
    "finish": "to finish in time, the end was set to step {}",
}


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    directory: Path
    files: tuple[str, ...]
    bytes: int
    step: int
    difference: float
    """The largest difference of a logit, as a share of the largest logit."""
    rounding: float
    """The largest change of a logit by rounding the weights to the export's dtype, as a share of the largest logit."""


def export(directory: Path, step: int | None, out: Path, *, dtype: str, average: bool | None = None) -> Exported:
    """Write the model of a run, as it was at `step` (None: the newest checkpoint), into the new directory `out`.

    `average` as for `weights_of`.

    Raises:
        TrainkitError: `out` exists or cannot be written, the checkpoint is missing or has no averages that are wanted,
            transformers has no such model, or the export does not give the model's logits.
    """
    loaded = recipe_of(directory)
    recipe = loaded.recipe
    checkpoint_of(directory, step)  # if it is missing, the tokenizer may be missing too
    if not isinstance(recipe.model, Transformer):
        raise TrainkitError(
            f'transformers cannot load a model of type = "{recipe.model.type}" ({recipe.model.kind})',
            where=str(directory),
            hint="its checkpoints are TensorStore arrays: see checkpoints/STEP/manifest.json",
        )
    check_loads(recipe.model)
    with draft(out) as made:
        codec = vocabulary.load(directory / tokenizer.TOKENIZER)
        texts, on = text_format_of(recipe, directory, codec), all_devices(recipe.parallel.platform)

        def read(info: Info) -> tuple[Info, Weights, LanguageModel]:
            part = weights_of(info, recipe, average=average)
            return info, part, _model(info, recipe, codec, part=part, on=on)

        info, part, model = read_checkpoint(directory, step, read)
        how = made_by(directory, loaded, info.step, weights=part)
        _write(made, directory, how, recipe, model, codec, texts, dtype=dtype)
        if recipe.model.kind == "encoder-decoder":  # both read the same first token, as the config names it
            model = replace(model, decoder_start=start_of(recipe.model, codec))  # type: ignore[call-arg]
        difference, rounding = _compare(made, model, on=on, dtype=dtype)
        written = sorted(made.iterdir())
        size = sum(file.stat().st_size for file in written)
    return Exported(out, tuple(file.name for file in written), size, info.step, difference, rounding)


@contextmanager
def draft(out: Path) -> Iterator[Path]:
    """Yield a new directory, and move it to `out` at the end; after an exception nothing of it is left.

    An empty directory at `out` is kept and receives the files: a process may have it as its working directory, or it
    may be a mount point.

    Raises:
        TrainkitError: `out` exists and is not an empty directory, or it cannot be written.
    """
    out = out.resolve()
    existed = out.exists()
    if existed and not (out.is_dir() and not any(out.iterdir())):
        raise TrainkitError("this path exists already", where=str(out), hint="name a directory that does not exist")
    parent = out if existed else out.parent
    with disk_errors(out, what="the export", then="export it again, or name another directory"):
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=parent))
        try:
            temporary.chmod(0o755)
            yield temporary
            files.sync_tree(temporary)
            if existed:
                for path in list(temporary.iterdir()):
                    path.replace(out / path.name)
            else:
                temporary.replace(out)
            files.sync_directory(parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def made_by(directory: Path, loaded: Loaded, step: int, *, weights: Weights = "params") -> Made:
    """Return what the model card says about how a run reached its model of `step`, whose weights are a part of that
    checkpoint."""
    notes = {
        "averages": "Its weights are the average of the parameters over the steps.",
        "params": "Its weights are those of this step; the evaluations used their average over the steps.",
    }
    base = loaded.recipe.base_checkpoint
    return Made(
        name=str(loaded.recipe.run.name),
        step=step,
        recipe=shareable_recipe(loaded),
        # a resolved recipe has the whole path of a local directory, which a card cannot link to
        base=None if base is None or Path(base).is_absolute() else base,
        evaluations={
            event["name"]: {path.rpartition("/")[2]: value for path, value in event["metrics"].items()}
            for event in current_events(list(of_kinds(directory, "run_started", "evaluated")))
            if event["type"] == "evaluated" and event["step"] <= step
        },
        commands=[
            f"after step {issued.step:,}: {COMMANDS[issued.command.name].format(issued.command.argument)}"
            for issued in issued_commands(directory)
            if issued.step < step
        ],
        weights=notes[weights] if weights == "averages" or loaded.recipe.evaluates_average else "",
    )


def write_tokenizer(
    out: Path, directory: Path, recipe: Recipe, codec: LoadedTokenizer, texts: TextFormat
) -> dict[str, Any]:
    """Write the tokenizer of a run's model, and return its token ids for config.json. Raises TrainkitError."""
    spec = recipe.language_model
    pad, padded = pad_of(recipe, codec), not spec.predicts_tokens or spec.kind == "encoder-decoder"
    if pad is None and codec.padding is None and padded:
        pad = codec.end_of_text  # without one, transformers reads no batch of several texts
    return tokenizer.write(
        out,
        directory,
        codec,
        begin=texts.begin,
        ends=texts.ends,
        template=texts.template,
        context_length=spec.context_length or recipe.data.positions,
        pad=pad,
        encoder=spec.kind == "encoder",
        token_types=getattr(spec, "type_rows", 0) > 1,
        name_pad=padded,
        after=after_source(recipe, codec),
        start=start_of(spec, codec) if spec.kind == "encoder-decoder" else None,
    )


def _write(
    out: Path,
    directory: Path,
    how: Made,
    recipe: Recipe,
    model: LanguageModel,
    codec: LoadedTokenizer,
    texts: TextFormat,
    *,
    dtype: str,
) -> None:
    spec, length = recipe.language_model, recipe.data.positions
    tokens = write_tokenizer(out, directory, recipe, codec, texts)
    save(out, model, spec, dtype=dtype, sequence_length=length, tokens=tokens)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    kind = spec.kind if spec.predicts_tokens else spec.head.kind
    text = card(how, family=spec.type, parameters=parameters, kind=kind)
    (out / "README.md").write_text(text, encoding="utf-8")


def _model(info: Info, recipe: Recipe, codec: LoadedTokenizer, *, part: Weights, on: Mesh) -> LanguageModel:
    """Return the model of a checkpoint in the dtype of the parameters, with an adapter merged into its base."""
    kept = jnp.dtype(recipe.precision.params)
    if recipe.adapter is not None:
        rows = recipe.model.rows(codec.vocab_size)
        return merge_adapter(info, recipe, part=part, vocab_size=rows, on=on, dtype=kept)
    return restore_model(info, recipe, part=part, on=on, dtype=kept)


def _compare(out: Path, model: LanguageModel, *, on: Mesh, dtype: str) -> tuple[float, float]:
    """Return `Exported.difference` and `rounding`. Deletes the model, so that only one model is in memory at a time.

    Raises:
        TrainkitError: the difference exceeds `TOLERANCE`.
    """
    vocab, length = model.token_embedding.shape[0], min(POSITIONS, model.context_length)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, (ROWS, length)), jnp.int32)
    kept = {leaf.dtype for leaf in jax.tree.leaves(model) if eqx.is_inexact_array(leaf)}
    whole, written = jnp.dtype("float32"), jnp.dtype(dtype)
    model = _convert(model, whole)
    unrounded = expected = np.asarray(_logits(model, tokens))
    if any(jnp.promote_types(each, written) != written for each in kept):
        model = _convert(_convert(model, written), whole)
        expected = np.asarray(_logits(model, tokens))
    for leaf in filter(eqx.is_array, jax.tree.leaves(model)):
        leaf.delete()
    exported = np.asarray(_logits(_read_back(out, vocab, length, on), tokens))
    difference = _relative_difference(exported, expected)
    if not difference <= TOLERANCE:
        raise TrainkitError(
            f"the export does not reproduce the model's logits: they differ by {difference:.1e} of the largest",
            where=str(out),
            hint="this is a bug in trainkit; nothing was exported",
            exit_code=FAILED,
        )
    return difference, _relative_difference(expected, unrounded)


def _convert(model: LanguageModel, dtype: jnp.dtype) -> LanguageModel:
    """Return the model in another dtype. Each leaf is deleted once it is converted."""

    def converted(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        new = leaf.astype(dtype).block_until_ready()
        leaf.delete()
        return new

    return jax.tree.map(converted, model)


def _read_back(out: Path, vocab: int, length: int, on: Mesh) -> LanguageModel:
    """The model that the files say, in float32."""
    spec = read_spec(out)
    build = partial(models.build, spec, vocab_size=vocab, sequence_length=length, implementation="xla")
    shapes = jax.eval_shape(lambda key: build(key=key), jax.random.key(0))
    return load_params(out, shapes, mesh.shardings(on, shapes), np.float32, head=spec.head)


@eqx.filter_jit
def _logits(model: LanguageModel, tokens_BT: Array) -> Array:
    hidden_BTD, _ = model.hidden_and_penalty(tokens_BT)
    if model.classifier is None:
        return model.logits(hidden_BTD)
    return model.scores(hidden_BTD, jnp.ones_like(tokens_BT))


def _relative_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / max(float(np.abs(expected).max()), 1e-30))
