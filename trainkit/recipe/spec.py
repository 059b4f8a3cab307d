"""The base of every section: frozen, strict, and closed to unknown keys.

The docstring below a field is its documentation: `language.py` finds it when somebody asks. (Pydantic could find it
when the class is made, but would read every source file a second time for it, at every start.)
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class Spec(BaseModel):
    """A section of a recipe. Strict: `"600"` is no integer and `true` is no number."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


Count = Annotated[int, Field(gt=0)]
"""A whole number of at least 1."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def by_type(default: str) -> Discriminator:
    """Tells the members of a union apart by their `type`; one that has none is `default`."""

    def tag(value: Any) -> str:
        if isinstance(value, dict):
            return str(value.get("type", default))
        return str(getattr(value, "type", default))

    return Discriminator(tag)


def union_of(default: str, *members: type[Spec]) -> Any:
    """Return the union of specs that their `type` tells apart; a table without one is a `default`.

    Plugins add members to a section by building its union again: see `toml/plugins.py`.
    """
    tagged = [Annotated[member, Tag(type_of(member))] for member in members]  # type: ignore[valid-type]
    return Annotated[reduce(or_, tagged), by_type(default)]


def type_of(spec: type[Spec]) -> str:
    """Return the value of `type` that stands for a spec in a recipe."""
    annotation = spec.model_fields["type"].annotation
    (name,) = get_args(annotation)
    return str(name)


def with_tuples(value: Any) -> Any:
    """TOML's lists as tuples, which frozen specs hold and strict ones ask for."""
    if isinstance(value, dict):
        return {key: with_tuples(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(with_tuples, value))
    return value
