"""From a run to an adapter that PEFT loads, which is read back and compared before it is there."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

from trainkit.checkpoint import store
from trainkit.data import vocabulary
from trainkit.errors import FAILED, TrainkitError
from trainkit.hub import peft
from trainkit.hub.tokenizer import TOKENIZER
from trainkit.models.adapters import adapt, adapted_layers, merge
from trainkit.models.build import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe.model import Model
from trainkit.run.adapted import opened
from trainkit.run.directory import recipe_of, typed


def export_adapter(directory: Path, step: int | None, out: Path) -> list[Path]:
    """Write the adapter of a run, as it was at `step` (None: the newest checkpoint), into the new directory `out`.

    Raises:
        TrainkitError: the run trains all of its model, there is something at `out`, there is no such checkpoint, its
            base is not to be had, or what was written is not what is read back.
    """
    recipe = recipe_of(directory).recipe
    if recipe.adapter is None:
        raise TrainkitError(
            "the run has no adapter: all of its model is trained", where=str(directory), hint="--format hf"
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise TrainkitError("there is something already", where=str(out), hint="name a directory that does not exist")
    info = store.newest(directory) if step is None else store.find(directory, step)
    if info is None:
        hint = f"trainkit send {typed(directory)} save"
        raise TrainkitError("the run has no checkpoint yet", where=str(directory), hint=hint)
    vocab_size = recipe.model.rows(vocabulary.load(directory / TOKENIZER).vocab_size)
    model = opened(info, recipe, vocab_size=vocab_size, on=mesh.make_mesh(data=1, fsdp=1))
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        draft.chmod(0o755)
        files = peft.save(draft, model, recipe.model, recipe.adapter)
        _compare(draft, model, recipe.model)
        draft.replace(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [out / file.name for file in files]


def _compare(written: Path, model: LanguageModel, spec: Model) -> None:
    """Raises TrainkitError where what is read back is not, to the last bit, the adapter of the model."""
    found = peft.read_adapter(written, spec)
    fresh = adapt(merge(model), found, key=jax.random.key(0))
    back, ours = adapted_layers(peft.load(written, fresh, spec)), adapted_layers(model)
    parts = [(x.a, x.b, x.magnitude) for x in (*back.values(), *ours.values())]
    half = len(parts) // 2
    same = map(np.array_equal, jax.tree.leaves(parts[:half]), jax.tree.leaves(parts[half:]))
    scales = [{layer.scale for layer in layers.values()} for layers in (back, ours)]
    if list(back) != list(ours) or not all(same) or scales[0] != scales[1]:
        raise TrainkitError(
            "what was exported is not what is read back",
            where=str(written),
            hint="this is a fault of trainkit; nothing was exported",
            exit_code=FAILED,
        )
