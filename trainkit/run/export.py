"""From a run to a directory that `transformers` loads, which is read back and compared before it is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from trainkit import models
from trainkit.checkpoint import store
from trainkit.checkpoint.store import Info
from trainkit.data import vocabulary
from trainkit.data.chat_template import resolve_template
from trainkit.data.vocabulary import LoadedTokenizer
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import read
from trainkit.hub import tokenizer
from trainkit.hub.card import card
from trainkit.hub.find import local
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.models.build import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.document import Chat
from trainkit.recipe.load import Loaded
from trainkit.recipe.write import dumps
from trainkit.run.adapted import merged
from trainkit.run.directory import recipe_of, typed
from trainkit.run.serving import restored

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
        TrainkitError: there is something at `out`, there is no such checkpoint, the model is of no family that
            `transformers` knows so, or what was written does not give the same logits.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise TrainkitError("there is something already", where=str(out), hint="name a directory that does not exist")
    loaded = recipe_of(directory)
    info = store.newest(directory) if step is None else store.find(directory, step)
    if info is None:
        raise TrainkitError(
            "the run has no checkpoint yet", where=str(directory), hint=f"trainkit send {typed(directory)} save"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        draft.chmod(0o755)
        codec = vocabulary.load(directory / tokenizer.TOKENIZER)
        model = _model(info, loaded.recipe, codec)
        _write(draft, directory, info, loaded, model, codec, dtype=dtype)
        difference, rounding = _compare(draft, model, dtype=dtype)
        written = sorted(draft.iterdir())
        size = sum(file.stat().st_size for file in written)
        draft.replace(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(out, tuple(file.name for file in written), size, info.step, difference, rounding)


def _write(
    out: Path,
    directory: Path,
    info: Info,
    loaded: Loaded,
    model: LanguageModel,
    codec: LoadedTokenizer,
    *,
    dtype: str,
) -> None:
    recipe = loaded.recipe
    spec, length = recipe.model, recipe.data.sequence_length
    template = _template(recipe, directory)
    tokens = tokenizer.write(out, directory, codec, template=template, context_length=spec.context_length or length)
    save(out, model, spec, dtype=dtype, sequence_length=length, tokens=tokens)
    base = spec.pretrained if spec.pretrained and local(spec.pretrained) is None else None
    text = card(
        name=str(recipe.run.name),
        family=spec.type,
        step=info.step,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))),
        recipe=dumps(loaded),
        base=base,
        evaluations=_evaluations(directory, info.step),
    )
    (out / "README.md").write_text(text, encoding="utf-8")


def _template(recipe: Recipe, directory: Path) -> str | None:
    """The chat template that conversations were written with in training; None where there were none."""
    documents = (getattr(source, "document", None) for source in recipe.data.train)
    for document in documents:
        if isinstance(document, Chat):
            beside = Path(recipe.tokenizer.path or "").expanduser()
            beside = beside / tokenizer.TOKENIZER if beside.is_dir() else beside
            here = directory / tokenizer.TOKENIZER
            return resolve_template(document, beside if beside.is_file() else here).text
    return None


def _evaluations(directory: Path, step: int) -> Mapping[str, Mapping[str, float]]:
    """Of each set the last one up to `step`."""
    return {
        event["name"]: {path.rpartition("/")[2]: value for path, value in event["metrics"].items()}
        for event in read(directory)
        if event["type"] == "evaluated" and event["step"] <= step
    }


def _model(info: Info, recipe: Recipe, codec: LoadedTokenizer) -> LanguageModel:
    """The model in a checkpoint in the dtype in which it is kept, an adapter merged into its base."""
    on, kept = mesh.make_mesh(data=1, fsdp=len(jax.local_devices())), jnp.dtype(recipe.precision.params)
    if recipe.adapter is not None:
        return merged(info, recipe, vocab_size=recipe.model.rows(codec.vocab_size), on=on, dtype=kept)
    return restored(info, recipe, on=on, dtype=kept)


def _compare(out: Path, model: LanguageModel, *, dtype: str) -> tuple[float, float]:
    """`Exported.difference` and `rounding`. Raises TrainkitError where the former is more than `TOLERANCE`."""
    vocab, length = model.unembedding().shape[0], min(POSITIONS, model.context_length)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, (ROWS, length)), jnp.int32)
    exact = models.cast(model, jnp.dtype("float32"))
    rounded = models.cast(models.cast(model, jnp.dtype(dtype)), jnp.dtype("float32"))
    found = _logits(_read_back(out, vocab, length), tokens)
    wanted = _logits(rounded, tokens)
    difference, rounding = _apart(found, wanted), _apart(wanted, _logits(exact, tokens))
    if not difference <= TOLERANCE:
        raise TrainkitError(
            f"what was exported does not give the model's logits: they differ by {difference:.1e} of the largest",
            where=str(out),
            hint="this is a fault of trainkit; nothing was exported",
            exit_code=FAILED,
        )
    return difference, rounding


def _read_back(out: Path, vocab: int, length: int) -> LanguageModel:
    """The model that the files say, in float32."""
    build = partial(models.build, read_spec(out), vocab_size=vocab, sequence_length=length, implementation="xla")
    shapes = eqx.filter_eval_shape(lambda key: build(key=key), jax.random.key(0))
    return load_params(out, shapes, dtype=np.float32)


def _logits(model: LanguageModel, tokens_BT: Array) -> np.ndarray:
    def logits(model: LanguageModel, tokens_BT: Array) -> Array:
        return model.logits(model.hidden(tokens_BT)[0])

    return np.asarray(eqx.filter_jit(logits)(model, tokens_BT), np.float32)


def _apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
