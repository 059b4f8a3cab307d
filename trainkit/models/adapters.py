"""Low-rank adapters beside linear layers (Hu et al. 2021), on a frozen base.

R rank, L any leading axes: blocks are stacked, and so are their adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from trainkit.models.casting import Exact, cast
from trainkit.models.dropout import Dropout
from trainkit.models.layers import Linear
from trainkit.models.master_weights import add, exact, product
from trainkit.models.nf4 import Nf4, quantise
from trainkit.recipe.families.transformer import CLASSIFIER
from trainkit.recipe.sections.adapter import Adapter, targeted_layers

#: The purpose that the key of a fresh adapter is folded with.
ADAPTER = 0x10A
#: The trained leaves of an `Adapted`; with LoRA+ the second learns faster.
TRAINED = ("a", "b", "magnitude")
#: The trained arrays of adapters, by the layer's name within a block and the leaf's name.
Numbers: TypeAlias = Mapping[str, Mapping[str, np.ndarray | Array]]


class Adapted(eqx.Module):
    """A linear layer with an adapter: x @ (base + scale x a @ b), plus the base's bias. It can replace any `Linear`.

    With `magnitude` (DoRA: Liu et al. 2024, equation 5) each column of that matrix is scaled to the length given there.
    As in their section 4.3, no gradient flows through the column's own length.
    """

    base: Linear
    a: Float[Array, "*L in R"]
    b: Float[Array, "*L R out"]
    magnitude: Exact | None
    """(*L, out)."""
    dropout: Dropout
    """Of the inputs of `a`; with `magnitude` also of those of the base, as far as it is scaled (PEFT's order)."""
    scale: float = eqx.field(static=True)

    @property
    def weight(self) -> Float[Array, "*L in out"]:
        """Return the matrix that it multiplies with, in the dtype of the base; in float32 if the base is in 4 bit."""
        weight = self._sum()
        if self.magnitude is not None:
            weight = weight * (self.magnitude.value / _lengths(weight))[..., None, :]
        return weight.astype(jnp.float32 if isinstance(self.base.weight, Nf4) else self.base.weight.dtype)

    @property
    def bias(self) -> Float[Array, "*L out"] | None:
        """Return the bias of the base; None if it has none."""
        return self.base.bias

    def __call__(self, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
        base, dropped = Linear(self.base.weight, None, self.base.fp8), self.dropout(x)
        y, added = base(x), product(product(dropped, self.a), self.b) * self.scale
        if self.magnitude is None:
            y = y + added
        else:
            factor = self.magnitude.value / jax.lax.stop_gradient(_lengths(self._sum()))
            seen = base(dropped) if self.dropout.is_on else y
            scaled = (seen + added).astype(jnp.float32) * factor
            y = (scaled + (y - seen) if self.dropout.is_on else scaled).astype(y.dtype)
        return y if self.base.bias is None else add(y, self.base.bias)

    def _sum(self) -> Float[Array, "*L in out"]:
        return _full(self.base.weight).astype(jnp.float32) + (exact(self.a) @ exact(self.b)) * self.scale


def with_adapter(base: PyTree, spec: Adapter | None, *, key: PRNGKeyArray, numbers: Numbers | None = None) -> PyTree:
    """Return the model that a recipe trains: `base`, with an adapter unless `spec` is None.

    Args:
        key: the key that a random base was drawn from; the adapter's key derives from it.
        numbers: the adapter's initial arrays; None for a fresh adapter.
    """
    if spec is None:
        return base
    adapted = adapt(base, spec, key=jax.random.fold_in(key, ADAPTER))
    return adapted if numbers is None else with_numbers(adapted, numbers)


def adapt(model: PyTree, spec: Adapter, *, key: PRNGKeyArray) -> PyTree:
    """Return the model with an adapter on each target, which changes nothing yet, and its base stored as `spec` says.

    A head with classes is trained in full, so it is not part of the base. What is trained is float32 whatever the base
    is, because it is small. Parts of the base that are in 4 bit already (see `packed_leaves`) stay as they are.

    Raises:
        TrainkitError: a target names no linear layer.
    """
    chosen = targeted_layers(spec, _names(model))

    def adapted(name: str, linear: Linear) -> Linear | Adapted:
        base = linear
        if _is_packed(name, spec):
            # can replace an array, because `x @ packed` is defined
            packed: Any = linear.weight if isinstance(linear.weight, Nf4) else quantise(linear.weight)
            base = Linear(packed, linear.bias)
        if name not in chosen:
            return base
        *lead, inputs, outputs = linear.weight.shape
        bound = inputs**-0.5  # as in the authors' code; the paper says only that b begins at zero
        a = jax.random.uniform(
            jax.random.fold_in(key, chosen.index(name)), (*lead, inputs, spec.rank), minval=-bound, maxval=bound
        )
        magnitude = Exact(_lengths(_full(base.weight).astype(jnp.float32))) if spec.variant == "dora" else None
        b = jnp.zeros((*lead, spec.rank, outputs))
        return Adapted(base, a, b, magnitude, Dropout(spec.dropout), spec.scale)

    model = _replace_linears(model, adapted)
    head = getattr(model, CLASSIFIER, None)
    whole = cast(head, jnp.dtype("float32"))
    return model if head is None else eqx.tree_at(lambda model: getattr(model, CLASSIFIER), model, whole)


def packed_leaves(model: PyTree, spec: Adapter | None) -> frozenset[str]:
    """Return the names (see `leaf_names`) of the leaves of a base that `adapt` keeps in 4 bit.

    A caller that replaces them by `nf4.quantise` one after the other never holds the whole base in full precision.
    """
    if spec is None:
        return frozenset()
    return frozenset(f"{_path(path)}.weight" for path, _ in _linears(model) if _is_packed(_path(path), spec))


def merge(model: PyTree) -> PyTree:
    """Return the model with plain linear layers: adapters are merged into their bases, which become full precision."""

    def plain(_: str, linear: Linear | Adapted) -> Linear:
        base = linear.base if isinstance(linear, Adapted) else linear
        return Linear(_full(linear.weight), linear.bias, base.fp8)

    return _replace_linears(model, plain)


def without_adapters(model: PyTree) -> PyTree:
    """Return the base that the adapters of a model are put on."""
    return _replace_linears(model, lambda _, linear: linear.base if isinstance(linear, Adapted) else linear)


def trainable(model: PyTree) -> PyTree[bool]:
    """Return which leaves are trained: all floats or, with adapters, those of the adapters and of a head
    with classes."""
    if not any(isinstance(layer, Adapted) for layer in jax.tree.leaves(model, is_leaf=_is_linear)):
        return jax.tree.map(lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact), model)

    def of(path: Any, layer: Any) -> Any:
        mask = jax.tree.map(lambda _: _path(path).startswith(CLASSIFIER), layer)
        if not isinstance(layer, Adapted):
            return mask
        # a magnitude that is None has nothing to be trained
        ours = [name for name in TRAINED if getattr(layer, name) is not None]
        leaves = [jax.tree.map(lambda _: True, getattr(layer, name)) for name in ours]
        return eqx.tree_at(lambda a: [getattr(a, name) for name in ours], mask, leaves)

    return jax.tree_util.tree_map_with_path(of, model, is_leaf=_is_linear)


def adapted_layers(model: PyTree) -> dict[str, Adapted]:
    """Return the layers with an adapter, by their names within a block."""
    return {_name(path): node for path, node in _linears(model) if isinstance(node, Adapted)}


def with_numbers(model: PyTree, numbers: Numbers) -> PyTree:
    """Return an adapted model whose adapters hold these arrays, which must cover all its adapted layers."""

    def filled(name: str, layer: Any) -> Any:
        if not isinstance(layer, Adapted):
            return layer
        found = {leaf: jnp.asarray(array, jnp.float32) for leaf, array in numbers[name].items()}
        magnitude = Exact(found["magnitude"]) if "magnitude" in found else None
        return replace(layer, a=found["a"], b=found["b"], magnitude=magnitude)

    return _replace_linears(model, filled)


def _replace_linears(model: PyTree, replaced: Callable[[str, Any], Any]) -> PyTree:
    """Return the model with each linear layer of its blocks replaced by `replaced(name, layer)`."""

    def one(path: Any, node: Any) -> Any:
        return replaced(_name(path), node) if _is_linear(node) and _is_of_blocks(path) else node

    return jax.tree_util.tree_map_with_path(one, model, is_leaf=_is_linear)


def _names(model: PyTree) -> list[str]:
    return [_name(path) for path, _ in _linears(model)]


def _linears(model: PyTree) -> list[tuple[Any, Any]]:
    """Return the linear layers of blocks, each with its path. Those of heads are never adapted."""
    nodes, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=_is_linear)
    return [(path, node) for path, node in nodes if _is_linear(node) and _is_of_blocks(path)]


def _is_of_blocks(path: Any) -> bool:
    return _path(path).startswith("blocks.")


def _name(path: Any) -> str:
    return _path(path).removeprefix("blocks.")


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_packed(name: str, spec: Adapter) -> bool:
    return spec.base == "nf4" and "router" not in name


def _is_linear(node: Any) -> bool:
    return isinstance(node, Linear | Adapted)


def _full(weight: Array | Nf4) -> Array:
    return weight.dequantise(jnp.float32) if isinstance(weight, Nf4) else weight


def _lengths(weight: Float[Array, "*L in out"]) -> Float[Array, "*L out"]:
    return jnp.sqrt(jnp.square(weight).sum(-2))
