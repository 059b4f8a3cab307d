"""The base of every section: frozen, strict, and closed to unknown keys.

The docstring below a field is its documentation: `toml/schema.py` finds it when somebody asks. (Pydantic could find it
when the class is made, but would read every source file a second time for it, at every start.)
"""

from __future__ import annotations

import sys
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

#: The name, in the module of a plugin, of its file's SHA-256.
PLUGIN_DIGEST = "__trainkit_sha256__"


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


class MissingKey(ValueError):
    """A key of a section is missing that other values ask for."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} is missing: {why}")
        self.key, self.why = key, why


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
    return Annotated[reduce(or_, map(_tagged, members)), by_type(default)]


def widened(union: Any, *members: type[Spec]) -> Any:
    """Return a union that `union_of` made, with more members."""
    known, discriminator = get_args(union)
    return Annotated[reduce(or_, map(_tagged, members), known), discriminator]


def members_of(union: Any) -> list[type[Spec]]:
    """Return the specs of a union that `union_of` made."""
    return [get_args(tagged)[0] for tagged in get_args(get_args(union)[0])]


def _tagged(member: type[Spec]) -> Any:
    return Annotated[member, Tag(type_of(member))]


def implementation_of(spec: Any) -> Any:
    """Import and return what `spec.implementation` names, which has the function `build`: a module, or a class in it
    (`module:Class`)."""
    return import_named(spec.implementation)


def import_named(path: str) -> Any:
    """Import and return a module, or what is in it: `module:name`."""
    module, _, name = path.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def plugin_digest(spec: Spec) -> str | None:
    """Return the SHA-256 of the plugin file that defines a spec, as it was imported; None for trainkit's own specs."""
    for owner in type(spec).__mro__:
        digest = getattr(sys.modules.get(owner.__module__), PLUGIN_DIGEST, None)
        if digest is not None:
            return str(digest)
    return None


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
