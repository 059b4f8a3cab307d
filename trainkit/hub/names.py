"""Our leaves and the tensors of a checkpoint: which is which, and how the one is made of the other.

A leaf of the blocks holds all layers, and of experts all experts: it is stacked from a tensor for each. torch keeps
matrices (out, in), we keep them (in, out). Nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from trainkit.errors import TrainkitError

Shape = tuple[int, ...]
#: Tensors that are listed in an error.
LISTED = 12


@dataclass(frozen=True)
class Name:
    """`theirs` may hold {layer} and {expert}, for which the leaf has leading axes in this order."""

    ours: str
    theirs: str
    transposed: bool = False

    @property
    def stacked(self) -> int:
        """How many axes of the leaf are counted by names."""
        return ("{layer}" in self.theirs) + ("{expert}" in self.theirs)

    def places(self, shape: Shape) -> Iterator[tuple[tuple[int, ...], str]]:
        """(index into the leaf's leading axes, name of the tensor) for a leaf of this shape."""
        for index in product(*map(range, shape[: self.stacked])):
            yield index, self.at(index)

    def at(self, index: tuple[int, ...]) -> str:
        """The name of the tensor for an index into the leading axes."""
        counted = dict(zip(("layer", "expert"), index, strict=False))
        return self.theirs.format(**counted)

    def tensor_shape(self, shape: Shape) -> Shape:
        """The shape of one of its tensors for a leaf of this shape."""
        own = shape[self.stacked :]
        return own[::-1] if self.transposed else own


def matrix(ours: str, theirs: str, *, transposed: bool = True, bias: bool = False) -> tuple[Name, ...]:
    """The names of a linear layer: of its weight and, where it has one, its bias."""
    names = (Name(f"{ours}.weight", f"{theirs}.weight", transposed),)
    return (*names, Name(f"{ours}.bias", f"{theirs}.bias")) if bias else names


def norm(ours: str, theirs: str, *, bias: bool = False) -> tuple[Name, ...]:
    return matrix(ours, theirs, transposed=False, bias=bias)


def expected(names: Mapping[str, Name], leaves: Mapping[str, Shape]) -> dict[str, Shape]:
    """Every tensor that leaves of these shapes are made of. A leaf that has no name is a fault of the name map."""
    return {
        tensor: names[leaf].tensor_shape(shape)
        for leaf, shape in leaves.items()
        for _, tensor in names[leaf].places(shape)
    }


def compare(wanted: Mapping[str, Shape], found: Mapping[str, Shape], *, where: str) -> None:
    """Raises TrainkitError where tensors are missing, too many, or of another shape; lists them with their shapes."""
    missing = [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in found]
    extra = [f"{name} {list(shape)}" for name, shape in found.items() if name not in wanted]
    other = [
        f"{name} {list(found[name])}, the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    kinds = (("missing", missing), ("not known", extra), ("of another shape", other))
    lines = [line for kind, which in kinds if which for line in (f"{len(which)} {kind}:", *_listed(which))]
    if lines:
        raise TrainkitError(
            "the tensors of the checkpoint are not those of the model:\n" + "\n".join(lines),
            where=where,
            hint="they must be those that its config.json speaks of, and [model] must not say otherwise",
        )


def _listed(lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    rest = [f"  … and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [*(f"  {line}" for line in islice(lines, LISTED)), *rest]
