"""From a checkpoint's directory to the arrays of a model, leaf by leaf, each part once and straight to its device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import ml_dtypes
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import PyTree

from trainkit.errors import TrainkitError
from trainkit.hub.config import Config, Family, family_of, read_config, spec_values
from trainkit.hub.names import Name, Shape, compare, expected
from trainkit.hub.safetensors import Tensors, open_directory
from trainkit.models.build import leaf_names
from trainkit.recipe.model import Model
from trainkit.recipe.spec import with_tuples

#: Leaves with a row for each entry of the vocabulary.
EMBEDDINGS = ("token_embedding", "output")
#: Tensors that are copied at once.
COPIES = 4
#: Rows that are transposed at once: what they are read from and written to stays in a core's cache.
TILE = 16


def read_spec(directory: Path) -> Model:
    """The spec of the model in a checkpoint's directory. Raises TrainkitError."""
    config = read_config(directory)
    family = family_of(config, where=str(directory))
    values = with_tuples(spec_values(config, family, where=str(directory)))
    return cast(Model, family.spec.model_validate(values))


def load_params(
    directory: Path,
    shapes: PyTree,
    shardings: PyTree | None = None,
    dtype: Any = None,
    *,
    resize: bool = False,
) -> PyTree:
    """The weights of a checkpoint in the structure of `shapes`, a model or the arrays of one.

    Each leaf is put together in host memory, a part for each device, and handed over before the next is looked at.

    Args:
        shapes: a pytree of arrays or `jax.ShapeDtypeStruct`, named as a model's leaves; what is no array stays.
        shardings: where each leaf goes; where None, as its shape says or, if it does not, to the first device.
        dtype: that all leaves get; as `shapes` says where None.
        resize: whether embeddings may have other rows than the checkpoint: the first are taken, further ones are
            their mean (Hewitt 2021).

    Raises:
        TrainkitError: the checkpoint is damaged, of another family, or its tensors are not those of `shapes`.
    """
    config, tensors = read_config(directory), open_directory(directory)
    source = _Source(tensors, config, family_of(config, where=str(directory)), str(directory))
    leaves, structure = jax.tree.flatten(shapes)
    where = jax.tree.leaves(shardings) if shardings is not None else [None] * len(leaves)
    names = jax.tree.leaves(leaf_names(shapes))
    asked = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array | np.ndarray)]
    source.check({names[i]: leaves[i].shape for i in asked}, resize=resize)
    with ThreadPoolExecutor(COPIES, "weights") as pool:
        for i in asked:
            leaf = leaves[i]
            to = where[i] or getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
            leaves[i] = _placed(
                source.reader(names[i], leaf.shape, np.dtype(dtype or leaf.dtype), pool), leaf.shape, to
            )
    return jax.tree.unflatten(structure, leaves)


def _placed(read: Callable[[Any], np.ndarray], shape: Shape, sharding: Any) -> jax.Array:
    array = jax.make_array_from_callback(shape, sharding, read)
    array.block_until_ready()  # so that its host copy is gone before the next is made
    return array


class _Source:
    """A checkpoint's tensors by the names of our leaves."""

    def __init__(self, tensors: Tensors, config: Config, family: Family, where: str) -> None:
        self.tensors = tensors
        self.family = family
        self.where = where
        self.names = {name.ours: name for name in family.names}
        self.tied = bool(config.get("tie_word_embeddings", family.defaults.get("tie_word_embeddings")))
        bare = not any(name.startswith(family.prefix) for name in tensors)
        #: As the family calls them -> as they are called here.
        self.called = {
            family.prefix + name if bare and not name.startswith("lm_head") else name: name
            for name in tensors
            if not re.fullmatch(family.ignored, name)
        }

    def check(self, leaves: Mapping[str, Shape], *, resize: bool) -> None:
        """Raises TrainkitError where these leaves cannot be made of the tensors."""
        found = {name: self.tensors[called].shape for name, called in self.called.items()}
        wanted = expected(self.names, leaves)
        for leaf in EMBEDDINGS:
            name = self.names[leaf].theirs if leaf in self.names else ""
            if leaf in leaves and name in found and found[name][1:] == wanted[name][1:]:
                if found[name] != wanted[name] and not resize:
                    raise _other_rows(found[name][0], wanted[name][0], self.where)
                wanted[name] = found[name]
        if "output" not in leaves and "output" in self.names:
            self._check_tied(self.names["output"].theirs, found)
        compare(wanted, found, where=self.where)
        for name in wanted:
            kind = self.tensors[self.called[name]].dtype
            if not (np.issubdtype(kind, np.floating) or kind.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")):
                raise TrainkitError(f"the tensor {name} is of {kind}: no numbers to train", where=self.where)

    def _check_tied(self, output: str, found: dict[str, Shape]) -> None:
        """A tied checkpoint may hold its embedding twice; twice the same, or it is not tied."""
        if not self.tied or output not in found:
            return
        embedding = self.called[self.names["token_embedding"].theirs]
        first, second = self.tensors.view(embedding), self.tensors.view(self.called[output])
        if not np.array_equal(first.view(np.uint8), second.view(np.uint8)):
            raise TrainkitError(
                f"config.json says that embeddings are tied, but {output} is not {embedding}",
                where=self.where,
                hint='where they are not tied, write "tie_word_embeddings": false into its config.json',
            )
        for name in (embedding, self.called[output]):
            self.tensors.release(name)
        del found[output]

    def reader(
        self, leaf: str, shape: Shape, dtype: np.dtype, pool: Executor
    ) -> Callable[[tuple[slice, ...]], np.ndarray]:
        """What reads any part of a leaf."""
        name = self.names[leaf]

        def read(index: tuple[slice, ...]) -> np.ndarray:
            bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
            part = np.empty([len(range(*bound)) for bound in bounds], dtype)
            inner = tuple(slice(*bound) for bound in bounds[name.stacked :])

            def one(at: tuple[int, ...]) -> None:
                counted = tuple(bounds[axis][0] + place for axis, place in enumerate(at))
                self._copy(name, counted, inner, part[at] if at else part)

            list(pool.map(one, np.ndindex(part.shape[: name.stacked])))
            return part

        return read

    def _copy(self, name: Name, at: tuple[int, ...], inner: tuple[slice, ...], to: np.ndarray) -> None:
        """Part `inner` of a tensor, as the leaf has it, to where it belongs."""
        called = self.called[name.at(at)]
        tensor = self.tensors.view(called)
        given = tensor.T if name.transposed else tensor
        if name.ours in EMBEDDINGS and inner[0].stop > len(given):
            first, end = inner[0].start, inner[0].stop
            known = max(0, len(given) - first)
            _write(given[first:end, inner[1]], to[:known])
            to[known:] = given[:, inner[1]].astype(np.float32).mean(0)
        else:
            _write(given[inner], to)
        self.tensors.release(called)


def _write(given: np.ndarray, to: np.ndarray) -> None:
    """Copy and convert. A transposed matrix goes some rows at a time: a column whole would miss the cache each time."""
    if given.ndim == 2 and not given.flags.c_contiguous:
        for start in range(0, given.shape[1], TILE):
            rows = given[:, start : start + TILE].T
            to[:, start : start + TILE] = _converted(rows, to.dtype).T
    else:
        to[...] = _converted(given, to.dtype)


def _converted(given: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if given.dtype == ml_dtypes.bfloat16 and dtype == np.float32:
        # bfloat16 is the upper half of float32: shifted by numpy itself, which lets other threads work meanwhile
        return (given.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return given


def _other_rows(found: int, wanted: int, where: str) -> TrainkitError:
    return TrainkitError(
        f"the embedding of the checkpoint has {found:,} rows, and the model is to have {wanted:,}",
        where=where,
        hint="cut or widen it to the tokenizer: [model] resize_vocabulary = true",
    )
