"""A trained model, opened to be used: parameters alone, in the dtype that is computed in, sharded as in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from trainkit import models
from trainkit.checkpoint import restore, store
from trainkit.checkpoint.names import named_leaves
from trainkit.checkpoint.store import Info
from trainkit.data import vocabulary
from trainkit.data.chat_template import ChatTemplate, resolve_template
from trainkit.data.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.models.build import LanguageModel
from trainkit.parallel import devices, mesh
from trainkit.parallel.precision import compute_dtype
from trainkit.recipe import Recipe
from trainkit.recipe.document import Chat
from trainkit.run.adapted import merged
from trainkit.run.assemble import TOKENIZER
from trainkit.run.directory import recipe_of, typed


@dataclass(frozen=True)
class Served:
    """A model with what its tokens mean."""

    model: LanguageModel
    codec: LoadedTokenizer
    where: Path
    """The run, or the directory of a checkpoint from elsewhere."""
    begin: tuple[int, ...]
    """Tokens before every text that it has learned."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    rows: Callable[[int], Sharding]
    """Where arrays of so many sequences lie."""
    document: Chat
    """How it has learned to write conversations."""
    tokenizers: tuple[Path, ...]
    """Files of the tokenizer, beside which there may be a chat template."""

    def prompt(self, text: str) -> list[int]:
        """A text to go on with; an empty one is the token after which documents begin."""
        return [*self.begin, *self.codec.encode(text)] or [self.codec.end_of_text]

    def template(self) -> ChatTemplate:
        """Raises TrainkitError where it has none, or none that can be used."""
        for path in self.tokenizers:
            if self.document.template is not None or _has_template(path):
                return resolve_template(self.document, path)
        raise TrainkitError(
            "the model has no chat template, so how a conversation is written is not known",
            where=str(self.where),
            hint=f"put a chat_template.jinja beside {typed(self.tokenizers[0].absolute())}; or let the model go on with"
            " a text: --raw",
        )


def open_run(directory: Path, step: int | None = None) -> Served:
    """The model of a run as it was at `step`, None for the newest checkpoint.

    Raises:
        TrainkitError: there is no such checkpoint, it is damaged, or it is not of the run's recipe.
    """
    recipe = recipe_of(directory).recipe
    info = store.newest(directory) if step is None else store.find(directory, step)
    if info is None:
        raise TrainkitError(
            "the run has no checkpoint yet", where=str(directory), hint=f"trainkit send {typed(directory)} save"
        )
    codec = vocabulary.load(directory / TOKENIZER)
    there, compute = _devices(recipe.parallel.fsdp, platform=recipe.parallel.platform), _compute(recipe)
    if recipe.adapter is None:
        model = restored(info, recipe, on=there, dtype=compute)
    else:
        model = merged(info, recipe, vocab_size=recipe.model.rows(codec.vocab_size), on=there, dtype=compute)
    begin = (codec.beginning_of_text,) if recipe.data.encoding.bos and codec.beginning_of_text is not None else ()
    documents = (getattr(source, "document", None) for source in recipe.data.train)
    given = Path(recipe.tokenizer.path) if recipe.tokenizer.path else None
    beside = [given / TOKENIZER if given.is_dir() else given] if given is not None and given.exists() else []
    tokenizers = (directory / TOKENIZER, *beside)
    return Served(
        model=model,
        codec=codec,
        where=directory,
        begin=begin,
        ends=_ends(codec, *(path.parent for path in tokenizers)),
        rows=partial(_rows, there),
        document=next((found for found in documents if isinstance(found, Chat)), Chat(type="chat")),
        tokenizers=tokenizers,
    )


def restored(info: Info, recipe: Recipe, *, on: Mesh, dtype: jnp.dtype) -> LanguageModel:
    """The model in a checkpoint, leaf by leaf, so that no more than one leaf is there in two dtypes.

    Raises:
        TrainkitError: it has other leaves than the recipe's model.
        DamagedCheckpoint: something is missing or fails its checksum.
    """
    leaves = info.manifest.leaves
    shapes = _shapes(recipe, vocab_size=leaves["params.token_embedding"].shape[0])
    template = jax.tree.map(
        lambda name, leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaves[name].dtype if name in leaves else leaf.dtype, sharding=sharding
        ),
        jax.tree.map("params.{}".format, models.leaf_names(shapes)),
        shapes,
        mesh.shardings(on, shapes),
    )
    named, wanted = named_leaves(template, under="params"), jax.tree.leaves(jax.eval_shape(_cast(dtype), template))
    if set(named) != {name for name in leaves if name.startswith("params.")}:
        restore.restore(info.directory, template, under="params")  # which says all that does not fit
    found = [
        restore.restore(info.directory, leaf, under=name).astype(cast.dtype)
        for (name, leaf), cast in zip(named.items(), wanted, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(template), found)


def open_pretrained(directory: Path) -> Served:
    """A Hugging Face checkpoint in a directory, in bfloat16, on a CPU in float32.

    Raises:
        TrainkitError: it is of a family that is not known, or something in it cannot be used.
    """
    from trainkit.hub.load import load_params, read_spec

    there = _devices(len(jax.devices()), platform="auto")
    dtype = jnp.dtype("float32" if jax.devices()[0].platform == "cpu" else "bfloat16")
    spec, codec = read_spec(directory), vocabulary.load(directory / TOKENIZER)
    build = partial(_built, spec, vocab_size=spec.rows(codec.vocab_size), length=spec.context_length or 1)
    shapes = jax.eval_shape(build, jax.random.key(0))
    return Served(
        model=load_params(directory, shapes, mesh.shardings(there, shapes), dtype),
        codec=codec,
        where=directory,
        begin=_put_before(directory / TOKENIZER),
        ends=_ends(codec, directory),
        rows=partial(_rows, there),
        document=Chat(type="chat"),
        tokenizers=(directory / TOKENIZER,),
    )


def _shapes(recipe: Recipe, *, vocab_size: int) -> PyTree[jax.ShapeDtypeStruct]:
    build = partial(_built, recipe.model, vocab_size=vocab_size, length=recipe.data.sequence_length)
    return jax.eval_shape(build, jax.random.key(0))


def _built(spec: Any, key: jax.Array, *, vocab_size: int, length: int) -> LanguageModel:
    # with a cache there is one way to compute attention
    return models.build(spec, vocab_size=vocab_size, sequence_length=length, implementation="xla", key=key)


def _cast(dtype: jnp.dtype) -> Callable[[PyTree], PyTree]:
    return lambda tree: models.cast(tree, dtype)


def _compute(recipe: Recipe) -> jnp.dtype:
    if recipe.precision.compute == "auto":
        return jnp.dtype("float32" if jax.devices()[0].platform == "cpu" else "bfloat16")
    return compute_dtype(recipe.precision.compute)


def _devices(fsdp: int, *, platform: str) -> Mesh:
    """All devices, with as many to share the parameters as in training, where that divides them."""
    # what was trained on a GPU may be used without one
    count = devices.local("cpu" if platform == "cpu" else "auto").count
    fsdp = fsdp if count % fsdp == 0 else count
    return mesh.make_mesh(data=count // fsdp, fsdp=fsdp)


def _rows(there: Mesh, count: int) -> Sharding:
    whole = PartitionSpec((mesh.DATA, mesh.FSDP)) if count % there.size == 0 else PartitionSpec()
    return NamedSharding(there, whole)


def _ends(codec: LoadedTokenizer, *directories: Path) -> tuple[int, ...]:
    """The end-of-text token, and what a generation config beside the tokenizer says."""
    ends: list[Any] = [codec.end_of_text]
    for directory in directories:
        for file in ("generation_config.json", "config.json"):
            found = _config(directory / file).get("eos_token_id")
            ends += found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def _put_before(tokenizer: Path) -> tuple[int, ...]:
    """The special tokens that a tokenizer puts before a text by itself."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(tokenizer))
    whole, bare = own.encode("a").ids, own.encode("a", add_special_tokens=False).ids
    return tuple(whole[: next(n for n in range(len(whole) + 1) if whole[n : n + len(bare)] == bare)])


def _has_template(tokenizer: Path) -> bool:
    config = _config(tokenizer.with_name("tokenizer_config.json"))
    return tokenizer.with_name("chat_template.jinja").is_file() or bool(config.get("chat_template"))


def _config(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file. Raises TrainkitError where it holds none."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TrainkitError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise TrainkitError("is no JSON object", where=str(path))
    return found
