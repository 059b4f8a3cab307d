"""What may change when a run resumes: a change is allowed if, and only if, the saved optimizer state fits it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pydantic import ValidationError

from trainkit import optim
from trainkit.checkpoint.leaves import leaf_of, named_leaves
from trainkit.recipe.optimizers.spec import Optimizer, OptimizerSpec
from trainkit.recipe.optimizers.wrappers import WRAPPERS
from trainkit.recipe.spec import type_of
from trainkit.recipe.union import members_of

SHAPES = {"token_embedding": (80, 64), "blocks.mlp_in.weight": (2, 64, 160), "blocks.mlp_in.bias": (2, 160)}
#: A valid table of each rule, beside its type; rules that begin without a part of their state begin here with it too.
MORE: dict[str, list[dict[str, Any]]] = {
    "sgd": [{}, {"momentum": 0.9}],
    "rmsprop": [{}, {"momentum": 0.9}],
    "adam": [{}, {"amsgrad": True}],
}
#: So many valid values are tried for each key.
MOST = 4
#: Values that are tried for every key, beside the choices that it has; those that are not valid are skipped.
VALUES: tuple[Any, ...] = (
    True, False, 0, 1, 2, 3, 100, 0.0, 1e-3, 0.5, 1.0, 2.0, (0.1, 0.2), (0.1, 0.2, 0.3), (False, True), (True, False),
    "float32", "bfloat16", "int8", "decoupled", "coupled", "independent", "cautious",
)  # fmt: skip


@cache
def language() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Optimizer)


def spec_of(table: dict[str, Any]) -> OptimizerSpec:
    return language().validate_python(table)


def leaves_of(spec: OptimizerSpec) -> dict[str, Any]:
    """Return the name, shape and type of every array of the state, as a checkpoint has them."""
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    rule = optim.build(spec, {name: name for name in SHAPES}, shapes)
    return {name: leaf_of(leaf) for name, leaf in named_leaves(jax.eval_shape(rule.init, shapes)).items()}


def changes(table: dict[str, Any], spec: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a key and the table with another value of it, for every key but the type and lists of tables."""
    for key, field in type(spec).model_fields.items():
        if key in ("type", "groups", "wrappers"):
            continue
        value = getattr(spec, key)
        if isinstance(value, OptimizerSpec):
            inner = table.get(key, {})
            yield from ((f"{key}.{name}", {**table, key: other}) for name, other in changes(inner, value))
            continue
        literals = getattr(field.annotation, "__args__", ())
        for other in (*VALUES, *(choice for choice in literals if isinstance(choice, str))):
            if other != value or type(other) is not type(value):
                yield key, {**table, key: other}


@pytest.mark.parametrize("rule", [type_of(member) for member in members_of(Optimizer)])
def test_a_change_of_a_key_is_allowed_if_the_saved_state_fits_it(rule: str) -> None:
    wrong = []
    for more in MORE.get(rule, [{}]):
        table = {"type": rule, "learning_rate": 0.1, "weight_decay": 0.1, **more}
        if "adamw" in next(member for member in members_of(Optimizer) if type_of(member) == rule).model_fields:
            table["adamw"] = {"learning_rate": 0.1}
        before = spec_of(table)
        leaves, values = leaves_of(before), before.state_key_values()
        by_key: dict[str, list[tuple[bool, bool]]] = {}
        for key, other in changes(table, before):
            try:
                after = spec_of(other)
            except ValidationError:
                continue
            if len(by_key.setdefault(key, [])) < MOST:
                by_key[key].append((leaves_of(after) == leaves, after.state_key_values() == values))
        for key, found in by_key.items():
            if any(allowed and not fits for fits, allowed in found):
                wrong.append(f"{key} {more}: allowed, but the state does not fit")
            if all(fits for fits, _ in found) and not all(allowed for _, allowed in found):
                wrong.append(f"{key} {more}: refused, but the state fits")
    assert not wrong, "\n".join(wrong)


MUON = {"type": "muon", "learning_rate": 0.1, "adamw": {"learning_rate": 0.1}}
ADAMW, LION = {"type": "adamw", "learning_rate": 0.1}, {"type": "lion", "learning_rate": 0.1}
OUTLIERS, LOOKAHEAD, MARS = {"type": "skip-outliers"}, {"type": "lookahead"}, {"type": "mars"}


def groups(*optimizers: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
    matches = ("token*", "*.weight", "*.bias")
    tables = [{"match": match, **options} for match in matches[: len(optimizers)]]
    return {"groups": tuple(t | ({"optimizer": o} if o else {}) for t, o in zip(tables, optimizers, strict=True))}


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (ADAMW, {**ADAMW, **groups(None, weight_decay=0.3, learning_rate_factor=0.5)}, True),
        (ADAMW, {**ADAMW, **groups(LION)}, False),
        ({**ADAMW, **groups(LION)}, {**ADAMW, **groups({**LION, "learning_rate": 0.2})}, True),
        ({**ADAMW, **groups(LION, LION)}, {**ADAMW, **groups(LION, {**LION, "learning_rate": 0.2})}, False),
        ({**MUON, **groups(LION)}, {**MUON, **groups({**LION, "type": "adamw"})}, False),
        ({**MUON, **groups({**ADAMW, "eps": 0.1})}, {**MUON, **groups({**ADAMW, "eps": 0.2})}, True),
        ({**MUON, **groups(None, {**ADAMW, "eps": 0.1})}, {**MUON, **groups(None, ADAMW)}, False),
        (ADAMW, {**ADAMW, "wrappers": ({"type": "cautious"}, {"type": "clip-value", "limit": 1.0})}, True),
        (ADAMW, {**ADAMW, "wrappers": (OUTLIERS,)}, False),
        ({**ADAMW, "wrappers": (OUTLIERS,)}, {**ADAMW, "wrappers": ({"type": "sam"}, {**OUTLIERS, "window": 9})}, True),
        ({**ADAMW, "wrappers": (MARS, OUTLIERS)}, {**ADAMW, "wrappers": (OUTLIERS, MARS)}, True),
        ({**ADAMW, "wrappers": (LOOKAHEAD, OUTLIERS)}, {**ADAMW, "wrappers": (OUTLIERS, LOOKAHEAD)}, False),
    ],
)
def test_a_change_of_groups_or_wrappers_is_allowed_if_the_saved_state_fits_it(
    before: dict[str, Any], after: dict[str, Any], fits: bool
) -> None:
    old, new = spec_of(before), spec_of(after)
    assert (leaves_of(old) == leaves_of(new)) is fits
    assert (old.state_key_values() == new.state_key_values()) is fits


def test_mars_does_not_take_saved_gradients_for_parameters() -> None:
    ways = [spec_of({**ADAMW, "wrappers": ({**MARS, **more},)}) for more in ({}, {"gamma": 0.1}, {"exact": True})]
    plain, other_gamma, exact = (spec.state_key_values() for spec in ways)
    assert plain == other_gamma != exact


@pytest.mark.parametrize("name", [type_of(member) for member in (*members_of(Optimizer), *WRAPPERS)])
def test_an_update_of_bfloat16_parameters_keeps_the_types_of_every_state(name: str) -> None:
    """A scan over micro-batches, a donated state and a checkpoint need the same arrays after a step as before."""
    rules = {type_of(member): member for member in members_of(Optimizer)}
    table = {"type": name if name in rules else "adamw", "learning_rate": 0.1, "weight_decay": 0.1}
    if "adamw" in rules[table["type"]].model_fields:
        table["adamw"] = {"learning_rate": 0.1}
    if name not in rules:
        table["wrappers"] = ({"type": name} | ({"limit": 1.0} if name.startswith("clip") else {}),)
    params = {key: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for key, shape in SHAPES.items()}
    grads = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in SHAPES.items()}
    rule = optim.build(spec_of(table), {key: key for key in SHAPES}, params)

    def update(grads: Any, state: Any, params: Any, key: jax.Array) -> Any:
        again = {"value": jnp.float32(1.0), "learning_rate": jnp.float32(0.1), "key": key}
        return rule.update(grads, state, params, **again, grad_fn=lambda _: (jnp.float32(1.0), grads))[1]

    before = jax.eval_shape(rule.init, params)
    after = jax.eval_shape(update, grads, before, params, jax.random.key(0))
    shown = [{key: (leaf.shape, leaf.dtype) for key, leaf in named_leaves(state).items()} for state in (before, after)]
    assert shown[0] == shown[1] and jax.tree.structure(before) == jax.tree.structure(after)
