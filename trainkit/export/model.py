"""From a run to a directory that `transformers` loads, which is read back and compared before it is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from trainkit import models
from trainkit.checkpoint.store import Info, checkpoint_of
from trainkit.data.tokenizer import vocabulary
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import FAILED, TrainkitError
from trainkit.export.draft import draft, made_by
from trainkit.hub import tokenizer
from trainkit.hub.card import card
from trainkit.hub.config import check_loads
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.infer.adapted import merge_adapter
from trainkit.infer.text_format import TextFormat, pad_of, text_format_of
from trainkit.infer.trained_model import all_devices, restore_model
from trainkit.models.stack import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer
from trainkit.recipe.toml.load import Loaded
from trainkit.rundir.directory import recipe_of

#: Random tokens on which an export is compared with the model that was exported: rows, and positions of each at most.
ROWS, POSITIONS = 2, 64
#: Share of the largest logit that they may differ by. Weights are the same to the last bit, and so is the program.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Exported:
    """What was written."""

    directory: Path
    files: tuple[str, ...]
    bytes: int
    step: int
    difference: float
    """The largest difference of a logit, as a share of the largest logit."""
    rounding: float
    """The same to the logits of the weights before they were rounded to the export's dtype."""


def export(directory: Path, step: int | None, out: Path, *, dtype: str) -> Exported:
    """Write the model of a run, as it was at `step` (None: the newest checkpoint), into the new directory `out`.

    Raises:
        TrainkitError: there is something at `out`, it cannot be written, there is no such checkpoint, the model is of
            no family that `transformers` knows so, or what was written does not give the same logits.
    """
    loaded = recipe_of(directory)
    recipe, info = loaded.recipe, checkpoint_of(directory, step)
    if not isinstance(recipe.model, Transformer):
        raise TrainkitError(
            f'a model of type = "{recipe.model.type}" ({recipe.model.kind}) is none that transformers loads',
            where=str(directory),
            hint="its checkpoints are TensorStore arrays: see checkpoints/STEP/manifest.json",
        )
    check_loads(recipe.model)
    with draft(out) as made:
        codec = vocabulary.load(directory / tokenizer.TOKENIZER)
        texts, on = text_format_of(recipe, directory, codec), all_devices(recipe.parallel.platform)
        model = _model(info, recipe, codec, on=on)
        _write(made, directory, info, loaded, model, codec, texts, dtype=dtype)
        difference, rounding = _compare(made, model, on=on, dtype=dtype)
        written = sorted(made.iterdir())
        size = sum(file.stat().st_size for file in written)
    return Exported(out, tuple(file.name for file in written), size, info.step, difference, rounding)


def _write(
    out: Path,
    directory: Path,
    info: Info,
    loaded: Loaded,
    model: LanguageModel,
    codec: LoadedTokenizer,
    texts: TextFormat,
    *,
    dtype: str,
) -> None:
    recipe = loaded.recipe
    spec, length = recipe.language_model, recipe.data.positions
    tokens = tokenizer.write(
        out,
        directory,
        codec,
        begin=texts.begin,
        ends=texts.ends,
        template=texts.template,
        context_length=spec.context_length or length,
        pad=pad_of(recipe, codec),
        encoder=spec.kind == "encoder",
    )
    save(out, model, spec, dtype=dtype, sequence_length=length, tokens=tokens)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    text = card(made_by(directory, loaded, info.step), family=spec.type, parameters=parameters, kind=spec.kind)
    (out / "README.md").write_text(text, encoding="utf-8")


def _model(info: Info, recipe: Recipe, codec: LoadedTokenizer, *, on: Mesh) -> LanguageModel:
    """The model in a checkpoint in the dtype in which it is kept, an adapter merged into its base."""
    kept = jnp.dtype(recipe.precision.params)
    if recipe.adapter is not None:
        return merge_adapter(info, recipe, vocab_size=recipe.model.rows(codec.vocab_size), on=on, dtype=kept)
    return restore_model(info, recipe, on=on, dtype=kept)


def _compare(out: Path, model: LanguageModel, *, on: Mesh, dtype: str) -> tuple[float, float]:
    """`Exported.difference` and `rounding`. The model is gone after, so that at no time there are two of them.

    Raises:
        TrainkitError: the difference is more than `TOLERANCE`.
    """
    vocab, length = model.unembedding().shape[0], min(POSITIONS, model.context_length)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, (ROWS, length)), jnp.int32)
    kept = {leaf.dtype for leaf in jax.tree.leaves(model) if eqx.is_inexact_array(leaf)}
    whole, written = jnp.dtype("float32"), jnp.dtype(dtype)
    model = _as(model, whole)
    exact = wanted = np.asarray(_logits(model, tokens))
    if any(jnp.promote_types(each, written) != written for each in kept):
        model = _as(_as(model, written), whole)
        wanted = np.asarray(_logits(model, tokens))
    for leaf in filter(eqx.is_array, jax.tree.leaves(model)):
        leaf.delete()
    found = np.asarray(_logits(_read_back(out, vocab, length, on), tokens))
    difference = _apart(found, wanted)
    if not difference <= TOLERANCE:
        raise TrainkitError(
            f"what was exported does not give the model's logits: they differ by {difference:.1e} of the largest",
            where=str(out),
            hint="this is a fault of trainkit; nothing was exported",
            exit_code=FAILED,
        )
    return difference, _apart(wanted, exact)


def _as(model: LanguageModel, dtype: jnp.dtype) -> LanguageModel:
    """The model in another dtype, leaf by leaf; the one before is gone."""

    def converted(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        made = leaf.astype(dtype).block_until_ready()
        leaf.delete()
        return made

    return jax.tree.map(converted, model)


def _read_back(out: Path, vocab: int, length: int, on: Mesh) -> LanguageModel:
    """The model that the files say, in float32."""
    build = partial(models.build, read_spec(out), vocab_size=vocab, sequence_length=length, implementation="xla")
    shapes = jax.eval_shape(lambda key: build(key=key), jax.random.key(0))
    return load_params(out, shapes, mesh.shardings(on, shapes), np.float32)


@eqx.filter_jit
def _logits(model: LanguageModel, tokens_BT: Array) -> Array:
    found = model.hidden(tokens_BT)
    return model.logits(found[0] if isinstance(found, tuple) else found)  # a causal model also returns its cache


def _apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
