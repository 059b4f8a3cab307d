"""A checkpoint's tensors by the names of our leaves: checked for completeness, and copied into parts of leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path

import numpy as np

from trainkit.errors import TrainkitError
from trainkit.hub.config import family_of, other_width, read_config
from trainkit.hub.copying import Memory, copy
from trainkit.hub.safetensors import open_directory
from trainkit.recipe.families.hugging_face import TensorName
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.sizes import Shape
from trainkit.recipe.families.transformer import CLASSIFIER

#: Tensors that are listed in an error.
LISTED = 12
#: Leaves with a row for each entry of the vocabulary.
EMBEDDINGS = ("token_embedding", "output")
#: Leaves with numbers for each entry of the vocabulary, and the axis along which the entries lie.
VOCABULARY_AXIS = {"token_embedding": 0, "output": 0, "output_bias": -1}
#: Bytes of a tensor that a thread copies in one go.
PIECE = 16 << 20

#: The bounds of a part of a leaf, by axis.
Bounds = tuple[tuple[int, int], ...]


class TensorSource:
    """The tensors in a directory, for a model with such a head."""

    def __init__(self, directory: Path, head: Head = TOKENS) -> None:
        """Raise TrainkitError if it holds no checkpoint of a known family, or a damaged one."""
        self.where = str(directory)
        config = read_config(directory)
        self.family = family_of(config, where=self.where)
        self.tensors = open_directory(directory)
        self.head, self.names = head, self.family.names_of(head.kind)
        self.tied = self.family.is_tied(config)
        prefix = self.family.prefix_of(head.kind)
        bare = not any(name.startswith(prefix) for name in self.tensors)
        #: The family's name of a tensor -> its name in this checkpoint.
        self.called = {
            prefix + name if bare and not name.startswith("lm_head") else name: name for name in self.tensors
        }
        own = {name.theirs for leaf, name in self.names.items() if leaf.startswith(CLASSIFIER)}
        self.called = {
            name: called
            for name, called in self.called.items()
            if name in own or not re.fullmatch(self.family.ignored, called)
        }
        # TensorFlow's names of a norm in checkpoints from before 2020, which transformers renames as well
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            self.called = {name.replace(old, new): called for name, called in self.called.items()}
        for other, ours in self.family.aliases.items():
            for name in [name for name in self.called if name.startswith(other)]:
                called = self.called.pop(name)
                self.called.setdefault(ours + name.removeprefix(other), called)
        embedding, output = (self.names[leaf].theirs for leaf in EMBEDDINGS)
        if self.tied and embedding not in self.called and output in self.called:
            self.called[embedding] = self.called[output]

    def begins_at_random(self, leaf: str) -> bool:
        """Return whether a leaf belongs to a classifier layer that the checkpoint lacks or that is to be replaced."""
        layer, is_output = leaf.rpartition(".")[0], leaf.startswith(f"{CLASSIFIER}.output.")
        if not leaf.startswith(f"{CLASSIFIER}."):
            return False
        return (is_output and self.head.new) or self.names[f"{layer}.weight"].theirs not in self.called

    def is_zero(self, leaf: str) -> bool:
        """Return whether a leaf is 0 because the checkpoint lacks it and may."""
        name = self.names[leaf]
        return name.optional and name.theirs not in self.called

    def check(self, leaves: Mapping[str, Shape], *, resize: bool) -> None:
        """Raise TrainkitError if these leaves cannot be made from the tensors, except those that begin at random or are
        0."""
        if unknown := [leaf for leaf in leaves if leaf not in self.names]:
            raise TrainkitError(
                f"a model of the family {self.family.type} has no {', '.join(unknown[:3])}",
                where=self.where,
                hint="the model is of another family than the checkpoint",
            )
        leaves = {leaf: shape for leaf, shape in leaves.items() if not self.is_zero(leaf)}
        shapes = {name: self.tensors[called].shape for name, called in self.called.items()}
        if self.head.kind != "tokens":
            self._check_classes(shapes)
            leaves = {leaf: shape for leaf, shape in leaves.items() if not self.begins_at_random(leaf)}
            for name in self._of_heads(leaves):
                shapes.pop(name, None)
        wanted = tensor_shapes(self.names, leaves)
        for leaf, axis in VOCABULARY_AXIS.items():
            name = self.names[leaf].theirs if leaf in leaves else ""
            if name in shapes and _differ_only_along(axis, shapes[name], wanted[name]):
                if shapes[name] != wanted[name] and not resize:
                    raise _other_rows(shapes[name][axis], wanted[name][axis], self.where)
                wanted[name] = shapes[name]
        if "output" not in leaves and self.tied:
            shapes.pop(self.names["output"].theirs, None)
        compare(wanted, shapes, where=self.where)
        for name in wanted:
            kind = self.tensors[self.called[name]].dtype
            if not (np.issubdtype(kind, np.floating) or kind.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")):
                raise TrainkitError(f"the tensor {name} is of {kind}: no numbers to train", where=self.where)

    def _check_classes(self, shapes: Mapping[str, Shape]) -> None:
        """Raise TrainkitError if the checkpoint's classifier has another width and the recipe does not ask for a new
        one."""
        name = self.names[f"{CLASSIFIER}.output.weight"].theirs
        if name in shapes and shapes[name][0] != self.head.width and not self.head.new:
            raise other_width(shapes[name][0], self.head.width, self.where)

    def _of_heads(self, leaves: Mapping[str, Shape]) -> set[str]:
        """Return the tensors of heads, that of this model and others, that none of these leaves is made of."""
        heads = (*self.family.names, *(name for table in self.family.heads.values() for name in table.names))
        ours = {self.names[leaf].theirs for leaf in leaves}
        return {name.theirs for name in heads if not name.stacked} - ours

    def check_tied(self) -> None:
        """Raise TrainkitError if a tied checkpoint holds two different embeddings."""
        embedding, output = (self.called.get(self.names[leaf].theirs) for leaf in EMBEDDINGS)
        if not self.tied or embedding is None or output is None or embedding == output:
            return
        first, second = self.tensors.view(embedding), self.tensors.view(output)
        if not np.array_equal(first.view(np.uint8), second.view(np.uint8)):
            raise TrainkitError(
                f"config.json says that embeddings are tied, but {output} is not {embedding}",
                where=self.where,
                hint='if they are not tied, set "tie_word_embeddings": false in its config.json',
            )
        for name in (embedding, output):
            self.tensors.release(name)

    def reader(
        self, leaf: str, shape: Shape, dtype: np.dtype, pool: Executor, memory: Memory
    ) -> Callable[[tuple[slice, ...]], np.ndarray]:
        """Return a function that reads any part of a leaf into `memory`; it reads the same part only once."""
        name, known = self.names[leaf], dict[Bounds, np.ndarray]()
        new = self._new_entry(name, shape)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
            if bounds not in known:
                part = known[bounds] = memory(tuple(end - start for start, end in bounds), dtype)
                list(pool.map(lambda piece: self._copy(name, new, *piece), self._pieces(name, bounds, part)))
            return known[bounds]

        return read

    def _pieces(self, name: TensorName, bounds: Bounds, part: np.ndarray) -> Iterator[tuple[str, Bounds, np.ndarray]]:
        """Yield (a tensor, bounds in it in the leaf's order, their destination), in pieces that one thread copies."""
        for at in np.ndindex(part.shape[: name.stacked]):
            called = self.called[name.at(tuple(bounds[axis][0] + place for axis, place in enumerate(at)))]
            to, inner = part[at], bounds[name.stacked :]
            axis = 1 if name.transposed else 0  # of the leaf, along which the tensor's rows lie
            start, end = inner[axis]
            step = max(1, PIECE // max(1, to.nbytes // max(1, end - start)))
            for first in range(start, end, step):
                rows = (first, min(first + step, end))
                piece = to[:, rows[0] - start : rows[1] - start] if axis else to[rows[0] - start : rows[1] - start]
                yield called, (*inner[:axis], rows, *inner[axis + 1 :]), piece

    def _new_entry(self, name: TensorName, shape: Shape) -> np.ndarray | None:
        """Return the numbers for entries of the vocabulary that the checkpoint lacks: the mean of its entries; None if
        it lacks none."""
        if (axis := VOCABULARY_AXIS.get(name.ours)) is None:
            return None
        called = self.called[name.theirs]
        given = self.tensors.view(called)
        if shape[axis] <= given.shape[axis]:
            return None
        mean = np.asarray(given.mean(axis, dtype=np.float32))
        self.tensors.release(called)
        return mean

    def _copy(self, name: TensorName, new: np.ndarray | None, called: str, bounds: Bounds, to: np.ndarray) -> None:
        tensor = self.tensors.view(called)
        given = tensor.T if name.transposed else tensor
        if new is None:
            copy(given[tuple(slice(*bound) for bound in bounds)], to)
        else:
            entries_first = VOCABULARY_AXIS[name.ours] == 0
            _copy_entries(*((given, bounds, to) if entries_first else (given.T, bounds[::-1], to.T)), new=new)
        self.tensors.release(called, slice(*bounds[1 if name.transposed else 0]))


def _copy_entries(given: np.ndarray, bounds: Bounds, to: np.ndarray, *, new: np.ndarray) -> None:
    """Copy a part of a tensor whose first axis is the vocabulary, and give the entries that it lacks the numbers
    `new`."""
    (first, end), others = bounds[0], tuple(slice(*bound) for bound in bounds[1:])
    known = min(max(0, len(given) - first), end - first)
    copy(given[(slice(first, first + known), *others)], to[:known])
    to[known:] = new[others]


def _differ_only_along(axis: int, first: Shape, second: Shape) -> bool:
    """Return whether two shapes are the same but for an axis."""
    sizes = enumerate(zip(first, second, strict=False))
    return len(first) == len(second) and all(a == b for at, (a, b) in sizes if at != axis % len(second))


def _other_rows(rows: int, wanted: int, where: str) -> TrainkitError:
    return TrainkitError(
        f"the embedding of the checkpoint has {rows:,} rows, but the model needs {wanted:,}",
        where=where,
        hint="to resize it to the tokenizer: [model] resize_vocabulary = true",
    )


def tensor_shapes(names: Mapping[str, TensorName], leaves: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shape of every tensor that leaves of these shapes are made of. Every leaf must have a name."""
    return {
        tensor: names[leaf].tensor_shape(shape)
        for leaf, shape in leaves.items()
        for _, tensor in names[leaf].places(shape)
    }


def compare(wanted: Mapping[str, Shape], shapes: Mapping[str, Shape], *, where: str) -> None:
    """Raise TrainkitError if tensors are missing, unknown or of another shape; it lists them with their shapes."""
    missing = [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in shapes]
    extra = [f"{name} {list(shape)}" for name, shape in shapes.items() if name not in wanted]
    other = [
        f"{name} {list(shapes[name])}, the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and shapes[name] != shape
    ]
    kinds = (("missing", missing), ("not known", extra), ("of another shape", other))
    lines = [line for kind, which in kinds if which for line in (f"{len(which)} {kind}:", *_list(which))]
    if lines:
        raise TrainkitError(
            "the tensors of the checkpoint are not those of the model:\n" + "\n".join(lines),
            where=where,
            hint="they must match its config.json, which [model] must not contradict",
        )


def _list(lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    rest = [f"  … and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [*(f"  {line}" for line in islice(lines, LISTED)), *rest]
