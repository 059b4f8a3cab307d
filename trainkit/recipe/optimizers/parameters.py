"""What the name and the shape of a parameter say about it."""

from __future__ import annotations

from typing import TypeAlias

#: Dimensions of one parameter.
Shape: TypeAlias = tuple[int, ...]


def is_stacked(name: str) -> bool:
    """Whether the first axis of a parameter is that of layers."""
    return name.startswith("blocks.")


def is_hidden_matrix(name: str, shape: Shape) -> bool:
    """Whether a parameter is a matrix between hidden layers: its last two axes are inputs and outputs.

    `blocks.*` have a leading axis of layers. Embeddings, the output matrix, routers and norms are no hidden matrices.
    """
    own_axes = len(shape) - is_stacked(name)
    parts = name.split(".")
    outside = any("embedding" in part or "norm" in part or part == "router" for part in parts)
    return own_axes >= 2 and name not in ("output", "output_bias", "classifier.output.weight") and not outside


def is_exempt_from_decay(name: str) -> bool:
    """Whether a parameter is a norm, a bias, an embedding or a magnitude (DoRA), which are not decayed by default."""
    *parents, last = name.split(".")
    return (
        last.endswith("bias")
        or "embedding" in last
        or any("norm" in parent or parent == "magnitude" for parent in parents)
    )
