"""The tensors that a model needs of a checkpoint, and how those that it has differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from trainkit.errors import TrainkitError
from trainkit.recipe.families.hugging_face import TensorName
from trainkit.recipe.families.sizes import Shape

#: Tensors that are listed in an error.
LISTED = 12


def expected(names: Mapping[str, TensorName], leaves: Mapping[str, Shape]) -> dict[str, Shape]:
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
    lines = [line for kind, which in kinds if which for line in (f"{len(which)} {kind}:", *_list(which))]
    if lines:
        raise TrainkitError(
            "the tensors of the checkpoint are not those of the model:\n" + "\n".join(lines),
            where=where,
            hint="they must be those that its config.json speaks of, and [model] must not say otherwise",
        )


def _list(lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    rest = [f"  … and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return [*(f"  {line}" for line in islice(lines, LISTED)), *rest]
