"""Which parameters are treated otherwise: by default and by `[[optimizer.groups]]`."""

from __future__ import annotations

from fnmatch import fnmatchcase

import jax
from jaxtyping import PyTree

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.optimizer import AdamW, Group


def weight_decays(spec: AdamW, names: PyTree[str]) -> PyTree[float]:
    """Weight decay of each parameter. Norms, biases, embeddings and magnitudes have none unless a group says so."""

    def decay(name: str) -> float:
        chosen = 0.0 if _is_exempt(name) else spec.weight_decay
        for group in _matching(spec, name):
            chosen = chosen if group.weight_decay is None else group.weight_decay
        return chosen

    return jax.tree.map(decay, names)


def learning_rate_factors(spec: AdamW, names: PyTree[str], adapter: Adapter | None = None) -> PyTree[float]:
    """Factor of each parameter's learning rate; the last group that matches decides.

    The second matrices of an adapter have its ratio as well (LoRA+, Hayou et al. 2024).
    """

    def factor(name: str) -> float:
        factors = [group.learning_rate_factor for group in _matching(spec, name)]
        ratio = adapter.learning_rate_ratio if adapter and name.endswith(".b") else 1.0
        return (factors[-1] if factors else 1.0) * ratio

    return jax.tree.map(factor, names)


def check(spec: AdamW, names: PyTree[str]) -> None:
    """Raise `TrainkitError` for a group that matches no parameter."""
    for i, group in enumerate(spec.groups):
        if not any(fnmatchcase(name, group.match) for name in jax.tree.leaves(names)):
            raise TrainkitError(
                f"match = {group.match!r} matches no parameter",
                where=f"optimizer.groups.{i}",
                hint="parameters are called " + ", ".join(sorted(jax.tree.leaves(names))),
            )


def _is_exempt(name: str) -> bool:
    *parents, last = name.split(".")
    return last == "bias" or "embedding" in last or any("norm" in parent or parent == "magnitude" for parent in parents)


def _matching(spec: AdamW, name: str) -> list[Group]:
    return [group for group in spec.groups if fnmatchcase(name, group.match)]
