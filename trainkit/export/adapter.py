"""Exports a run's adapter for PEFT, and reads it back before the export gets its name."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from trainkit.checkpoint.store import Info, checkpoint_of, read_checkpoint
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import FAILED, TrainkitError
from trainkit.export.model import draft, made_by, write_tokenizer
from trainkit.hub import adapter_config, peft, tokenizer
from trainkit.hub.card import adapter_card
from trainkit.infer.adapted import Weights, open_adapted
from trainkit.infer.text_format import after_source, text_format_of
from trainkit.infer.trained_model import all_devices, weights_of
from trainkit.models.adapters import adapt, adapted_layers, merge, trainable, with_numbers
from trainkit.models.stack import LanguageModel
from trainkit.recipe.families.transformer import Transformer
from trainkit.rundir.directory import recipe_of


def export_adapter(
    directory: Path, step: int | None, out: Path, *, average: bool | None = None
) -> tuple[int, list[Path]]:
    """Write the adapter of a run, as it was at `step` (None: the newest checkpoint), into the new directory `out`.

    `average` as for `weights_of`.

    A model card is written beside it. So is the tokenizer, unless the base has the same one and begins texts in the
    same way. Returns the step and the paths of the files.

    Raises:
        TrainkitError: the run has no adapter, `out` exists or cannot be written, the checkpoint is missing, its base is
            not available, or the adapter that is read back differs.
    """
    loaded = recipe_of(directory)
    recipe = loaded.recipe
    if recipe.adapter is None:
        raise TrainkitError(
            "the run has no adapter: all of its model is trained", where=str(directory), hint="--format hf"
        )
    spec = recipe.language_model
    if not spec.predicts_tokens:
        raise TrainkitError(
            "an adapter alone lacks the head with classes that was trained beside it",
            where=str(directory),
            hint="export it merged into its base: --format hf",
        )
    if spec.resize_vocabulary:
        raise TrainkitError(
            "the run changed the vocabulary of its base (resize_vocabulary), which an adapter alone does not record",
            where=str(directory),
            hint="export it merged into its base: --format hf",
        )
    checkpoint_of(directory, step)  # if it is missing, the tokenizer may be missing too
    with draft(out) as made:
        codec = vocabulary.load(directory / tokenizer.TOKENIZER)
        texts, on = text_format_of(recipe, directory, codec), all_devices(recipe.parallel.platform)
        vocab_size = spec.rows(codec.vocab_size)

        def read(info: Info) -> tuple[Info, Weights, LanguageModel]:
            part = weights_of(info, recipe, average=average)
            return info, part, open_adapted(info, recipe, part=part, vocab_size=vocab_size, on=on)

        info, part, model = read_checkpoint(directory, step, read)
        peft.save(made, model, spec, recipe.adapter)
        _compare(made, model, spec)
        own = (
            texts.template is not None
            or recipe.text_tokenizer.path is None
            or recipe.text_tokenizer.path != spec.pretrained
            or (spec.kind != "encoder" and _puts_around(directory) != (texts.begin, after_source(recipe, codec)))
        )
        if own:
            write_tokenizer(made, directory, recipe, codec, texts)
        text = adapter_card(
            made_by(directory, loaded, info.step, weights=part),
            recipe.adapter,
            family=spec.type,
            parameters=sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, trainable(model)))),
            tokenizer=own,
            kind=spec.kind,
        )
        (made / "README.md").write_text(text, encoding="utf-8")
        names = sorted(file.name for file in made.iterdir())
    return info.step, [out / name for name in names]


def _puts_around(directory: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that the tokenizer of a run puts before and after a text by itself."""
    return tokenizer.put_around(directory / tokenizer.TOKENIZER)


def _compare(written: Path, model: LanguageModel, spec: Transformer) -> None:
    """Raise TrainkitError unless the adapter that is read back is the model's, bit for bit."""
    config = adapter_config.read(written, spec)
    shapes = jax.eval_shape(lambda model: adapt(merge(model), config, key=jax.random.key(0)), model)
    back, ours = adapted_layers(with_numbers(shapes, peft.read(written, shapes, spec))), adapted_layers(model)
    parts = [(x.a, x.b, x.magnitude) for x in (*back.values(), *ours.values())]
    half = len(parts) // 2
    same = map(np.array_equal, jax.tree.leaves(parts[:half]), jax.tree.leaves(parts[half:]))
    scales = [{layer.scale for layer in layers.values()} for layers in (back, ours)]
    if list(back) != list(ours) or not all(same) or scales[0] != scales[1]:
        raise TrainkitError(
            "the exported adapter is not the one that is read back",
            where=str(written),
            hint="this is a bug in trainkit; nothing was exported",
            exit_code=FAILED,
        )
