"""Opening a trained model: its parameters alone, in the compute dtype, sharded as in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from trainkit import models
from trainkit.checkpoint import restore
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.store import Info, checkpoint_of, read_checkpoint
from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.tokenizer import vocabulary
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.hub import adapter_config
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.tokenizer import TEMPLATE, TOKENIZER, put_around
from trainkit.infer.adapted import Weights, adapter_merger, base_of, merge_adapter
from trainkit.infer.beam_search import GREEDY, BeamSearch
from trainkit.infer.generator import Generator
from trainkit.infer.seq2seq import TargetGenerator, start_of
from trainkit.infer.text_format import after_source, begin_of, chat_of, ends_of, template_of, usable_template
from trainkit.models.stack import LanguageModel
from trainkit.parallel import devices, mesh
from trainkit.parallel.precision import compute_dtype
from trainkit.recipe import Recipe
from trainkit.recipe.families.model import WRITING
from trainkit.recipe.sections.document_spec import ChatTemplateChoice
from trainkit.recipe.sections.model import Model
from trainkit.rundir.directory import as_typed, recipe_of


@dataclass(frozen=True)
class TrainedModel:
    """A model with its tokenizer and text format."""

    model: LanguageModel
    codec: LoadedTokenizer
    where: Path
    """The run, or the directory of a checkpoint from elsewhere."""
    begin: tuple[int, ...]
    """Tokens before every text that it has learned."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    mesh: Mesh
    """The devices that it lies on."""
    chat: ChatTemplateChoice | None
    """The chat template that the recipe chooses; None if it has learned no conversations."""
    directories: tuple[Path, ...]
    """Directories with files of the tokenizer, such as a chat template."""
    spec: Model
    after: tuple[int, ...] = ()
    """Tokens after every source that it has learned to read; none where it continues texts."""
    step: int | None = None
    """That of the checkpoint of a run; None for a checkpoint from elsewhere."""

    def generator(self, search: BeamSearch = GREEDY) -> Generator:
        """Return a generator that continues prompts or, if the model reads sources, writes their targets.

        Raises TrainkitError if a search is requested for a model that continues texts.
        """
        if self.spec.kind != "encoder-decoder":
            if search.beams > 1:
                raise TrainkitError(
                    f'model.type = "{self.spec.type}" ({self.spec.kind}) continues texts without beams',
                    where="--beams",
                    hint="omit it: only encoder-decoders search with beams",
                )
            return Generator(self.model, self.codec, self.ends, self.mesh)
        start, context = start_of(self.spec, self.codec), getattr(self.spec, "context_length", None)
        return TargetGenerator(
            self.model,
            self.codec,
            self.ends,
            self.mesh,
            start=start,
            begin=self.begin,
            context_length=context,
            search=search,
        )

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a text to continue or of a source to read.

        The name of a special token becomes that token. An empty text becomes the token that documents begin with.
        """
        (ids,) = self.codec.encode_batch([text], special_tokens=True)
        ids = ids if tuple(ids[: len(self.begin)]) == self.begin else [*self.begin, *ids]
        ids = ids if self.after and tuple(ids[-len(self.after) :]) == self.after else [*ids, *self.after]
        return ids or [self.codec.end_of_text]

    def template(self) -> ChatTemplate:
        """Return its chat template. Raises TrainkitError if it has none, or one that cannot be used."""
        if (template := template_of(self.chat, self.directories)) is not None:
            return template
        raise TrainkitError(
            "the model has no chat template, which says how to write a conversation",
            where=str(self.where),
            hint=f"put a {TEMPLATE} beside {as_typed((self.directories[0] / TOKENIZER).absolute())},"
            " or continue plain text with --raw",
        )


def open_run(directory: Path, step: int | None = None, *, average: bool | None = None) -> TrainedModel:
    """Return the model of a run as it was at `step` (None: the newest checkpoint); `average` as for `weights_of`.

    Raises:
        TrainkitError: there is no such checkpoint, it is damaged, it does not belong to the run's recipe, or it has no
            averages and they are wanted.
    """
    recipe = recipe_of(directory).recipe
    check_generates(recipe.model, directory)
    checkpoint_of(directory, step)  # if it is missing, the tokenizer may be missing too
    codec = vocabulary.load(directory / TOKENIZER)
    there = all_devices(recipe.parallel.platform, fsdp=recipe.parallel.fsdp)
    compute = _compute(recipe)

    def read(info: Info) -> tuple[LanguageModel, int]:
        part = weights_of(info, recipe, average=average)
        if recipe.adapter is None:
            return restore_model(info, recipe, part=part, on=there, dtype=compute), info.step
        rows = recipe.model.rows(codec.vocab_size)
        return merge_adapter(info, recipe, part=part, vocab_size=rows, on=there, dtype=compute), info.step

    model, found = read_checkpoint(directory, step, read)
    chat, directories = chat_of(recipe), (directory,)
    return TrainedModel(
        model=model,
        codec=codec,
        where=directory,
        begin=begin_of(recipe, codec),
        ends=ends_of(codec, directories, usable_template(chat, directories)),
        mesh=there,
        chat=chat,
        directories=directories,
        spec=recipe.model,
        after=after_source(recipe, codec),
        step=found,
    )


def weights_of(info: Info, recipe: Recipe, *, average: bool | None) -> Weights:
    """Return the part of a checkpoint with the weights of the model: the parameters, or their averages.

    Args:
        average: whether to use the averages; None for what the run's evaluations use.

    Raises:
        TrainkitError: the averages are wanted, and the checkpoint has none.
    """
    exists = any(name.startswith("averages.") for name in info.manifest.leaves)
    if average and not exists:
        raise TrainkitError(
            "the checkpoint has no average of the parameters",
            where=as_typed(info.directory),
            hint="omit --average: a run keeps an average if its recipe has the section [average]",
        )
    wanted = recipe.evaluates_average if average is None else average
    return "averages" if wanted and exists else "params"


def restore_model(info: Info, recipe: Recipe, *, part: Weights = "params", on: Mesh, dtype: jnp.dtype) -> LanguageModel:
    """Return the model in a checkpoint, read leaf by leaf, so that only one leaf is in memory in two dtypes.

    Its weights are those in `part`.

    Raises:
        TrainkitError: it has other leaves than the recipe's model.
        DamagedCheckpoint: something is missing or fails its checksum.
    """
    leaves = info.manifest.leaves
    shapes = _shapes(recipe, vocab_size=leaves[f"{part}.token_embedding"].shape[0])
    template = jax.tree.map(
        lambda name, leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaves[name].dtype if name in leaves else leaf.dtype, sharding=sharding
        ),
        jax.tree.map(f"{part}.{{}}".format, models.leaf_names(shapes)),
        shapes,
        mesh.shardings(on, shapes),
    )
    named, wanted = named_leaves(template, under=part), jax.tree.leaves(jax.eval_shape(_cast(dtype), template))
    if set(named) != {name for name in leaves if name.startswith(f"{part}.")}:
        restore.restore(info.directory, template, under=part)  # this error lists everything that does not fit
    arrays = [
        restore.restore(info.directory, leaf, under=name).astype(cast.dtype)
        for (name, leaf), cast in zip(named.items(), wanted, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(template), arrays)


def open_pretrained(directory: Path) -> TrainedModel:
    """Return the Hugging Face checkpoint in a directory, or its PEFT adapter with the base; in bfloat16, on a CPU in
    float32.

    Raises:
        TrainkitError: its family is unknown, something in it is not supported, or it is an adapter whose base is not
            available or has fewer rows than the tokenizer has entries.
    """
    is_adapter = (directory / adapter_config.FILE).is_file()
    base = base_of(directory) if is_adapter else directory
    # files beside an adapter are those that it was trained with
    directories = (directory, base) if is_adapter else (directory,)
    tokenizers = tuple(directory / TOKENIZER for directory in directories)
    there = all_devices("auto")
    dtype = jnp.dtype("float32" if jax.devices()[0].platform == "cpu" else "bfloat16")
    spec = read_spec(base)
    check_generates(spec, directory)
    codec = vocabulary.load(next(filter(Path.is_file, tokenizers), tokenizers[-1]), config=True)
    build = partial(_build, spec, vocab_size=_rows(spec, codec), length=spec.context_length or 1)
    shapes = jax.eval_shape(build, jax.random.key(0))
    finish: Callable[[LanguageModel], LanguageModel]
    finish = adapter_merger(directory, spec, shapes) if is_adapter else lambda model: model
    lie = mesh.shardings(there, shapes)
    weights = load_params(base, shapes, lie, dtype, owned=is_adapter)
    return TrainedModel(
        model=finish(weights),
        codec=codec,
        where=directory,
        begin=put_around(codec.path)[0],
        ends=ends_of(codec, directories, usable_template(None, directories)),
        mesh=there,
        chat=None,
        directories=directories,
        spec=spec,
        after=put_around(codec.path)[1] if spec.kind == "encoder-decoder" else (),
    )


def check_generates(spec: Model, where: Path) -> None:
    """Raise TrainkitError if a model cannot continue texts."""
    width = spec.head.width
    if spec.head.kind != "tokens":
        raise TrainkitError(
            f"the model gives {'one score' if width == 1 else f'scores of {width} classes'} and generates no text",
            where=str(where),
            hint="trainkit export RUN OUT writes it for transformers, whose pipelines classify texts with it",
        )
    if spec.kind not in WRITING:
        raise TrainkitError(
            f'a model of type = "{spec.type}" ({spec.kind}) generates no text',
            where=str(where),
            hint=f"models of the kinds {' and '.join(sorted(WRITING))} generate text",
        )


def _rows(spec: Model, codec: LoadedTokenizer) -> int:
    try:
        return spec.rows(codec.vocab_size)
    except TrainkitError as error:
        raise TrainkitError(
            error.problem,
            where=str(codec.path),
            hint="put the tokenizer there with which the model was trained; beside an adapter none is needed",
        ) from None


def _shapes(recipe: Recipe, *, vocab_size: int) -> PyTree[jax.ShapeDtypeStruct]:
    build = partial(_build, recipe.model, vocab_size=vocab_size, length=recipe.data.positions)
    return jax.eval_shape(build, jax.random.key(0))


def _build(spec: Any, key: jax.Array, *, vocab_size: int, length: int) -> LanguageModel:
    # with a cache there is only one implementation of attention
    return models.build(spec, vocab_size=vocab_size, sequence_length=length, implementation="xla", key=key)


def _cast(dtype: jnp.dtype) -> Callable[[PyTree], PyTree]:
    return lambda tree: models.cast(tree, dtype)


def _compute(recipe: Recipe) -> jnp.dtype:
    if recipe.precision.compute == "auto":
        return jnp.dtype("float32" if jax.devices()[0].platform == "cpu" else "bfloat16")
    return compute_dtype(recipe.precision.compute)


def all_devices(platform: str, *, fsdp: int | None = None) -> Mesh:
    """Return a mesh of all devices; of the CPU if the run used the CPU.

    `fsdp` of the devices share the parameters if that divides their number, else all of them.
    """
    # a model trained on a GPU can be used without one
    count = devices.local("cpu" if platform == "cpu" else "auto").count
    fsdp = fsdp if fsdp is not None and count % fsdp == 0 else count
    return mesh.make_mesh(data=count // fsdp, fsdp=fsdp)
