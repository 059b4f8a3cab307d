"""From a run to an adapter that PEFT loads, which is read back and compared before it is there."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from trainkit.checkpoint.store import checkpoint_of
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import FAILED, TrainkitError
from trainkit.export.draft import draft, made_by
from trainkit.hub import adapter_config, peft, tokenizer
from trainkit.hub.card import adapter_card
from trainkit.infer.adapted import open_adapted
from trainkit.infer.text_format import pad_of, text_format_of
from trainkit.infer.trained_model import all_devices
from trainkit.models.adapters import adapt, adapted_layers, merge, trainable, with_numbers
from trainkit.models.stack import LanguageModel
from trainkit.recipe.families.transformer import Transformer
from trainkit.rundir.directory import recipe_of


def export_adapter(directory: Path, step: int | None, out: Path) -> tuple[int, list[Path]]:
    """Write the adapter of a run, as it was at `step` (None: the newest checkpoint), into the new directory `out`.

    Beside it lie a model card and, where that of its base is another one or begins texts otherwise, or conversations
    were learned, the tokenizer. Returns the step that it is of, and the files.

    Raises:
        TrainkitError: the run trains more of its model, there is something at `out`, it cannot be written, there is
            no such checkpoint, its base is not available, or what was written is not what is read back.
    """
    loaded = recipe_of(directory)
    recipe = loaded.recipe
    if recipe.adapter is None:
        raise TrainkitError(
            "the run has no adapter: all of its model is trained", where=str(directory), hint="--format hf"
        )
    spec = recipe.language_model
    if spec.resize_vocabulary:
        raise TrainkitError(
            "the run has another vocabulary than its base (resize_vocabulary), which an adapter alone does not tell",
            where=str(directory),
            hint="export it merged into its base: --format hf",
        )
    info = checkpoint_of(directory, step)
    with draft(out) as made:
        codec = vocabulary.load(directory / tokenizer.TOKENIZER)
        texts, on = text_format_of(recipe, directory, codec), all_devices(recipe.parallel.platform)
        model = open_adapted(info, recipe, vocab_size=spec.rows(codec.vocab_size), on=on)
        peft.save(made, model, spec, recipe.adapter)
        _compare(made, model, spec)
        own = (
            texts.template is not None
            or recipe.text_tokenizer.path is None
            or recipe.text_tokenizer.path != spec.pretrained
            or tokenizer.put_around(directory / tokenizer.TOKENIZER) != (texts.begin, ())
        )
        if own:
            tokenizer.write(
                made,
                directory,
                codec,
                begin=texts.begin,
                ends=texts.ends,
                template=texts.template,
                context_length=spec.context_length or recipe.data.positions,
                pad=pad_of(recipe, codec),
            )
        text = adapter_card(
            made_by(directory, loaded, info.step),
            recipe.adapter,
            family=spec.type,
            parameters=sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, trainable(model)))),
            tokenizer=own,
        )
        (made / "README.md").write_text(text, encoding="utf-8")
        names = sorted(file.name for file in made.iterdir())
    return info.step, [out / name for name in names]


def _compare(written: Path, model: LanguageModel, spec: Transformer) -> None:
    """Raises TrainkitError where what is read back is not, to the last bit, the adapter of the model."""
    found = adapter_config.read(written, spec)
    shapes = jax.eval_shape(lambda model: adapt(merge(model), found, key=jax.random.key(0)), model)
    back, ours = adapted_layers(with_numbers(shapes, peft.read(written, shapes, spec))), adapted_layers(model)
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
