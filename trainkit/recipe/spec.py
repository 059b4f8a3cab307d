"""The base of every section: frozen, strict, and closed to unknown keys.

The docstring below a field documents it: `toml/schema.py` reads it when needed. (Pydantic could read it when it makes
the class, but would then read every source file again at every start.)
"""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

#: The variable in the module of a plugin that holds the SHA-256 of its file.
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
    """A key is missing that other values require."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} is missing: {why}")
        self.key, self.why = key, why


Count = Annotated[int, Field(gt=0)]
"""A whole number of at least 1."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
"""A probability of dropout."""


def implementation_of(spec: Any) -> Any:
    """Import and return the module, or the class in it (`module:Class`), that `spec.implementation` names."""
    return import_named(spec.implementation)


def import_named(path: str) -> Any:
    """Import and return a module, or an object in it (`module:name`, `module:name.attribute`)."""
    module, _, name = path.partition(":")
    found = import_module(module)
    return attrgetter(name)(found) if name else found


def plugin_digest(spec: Spec) -> str | None:
    """Return the SHA-256 of the plugin file that defines a spec, as it was imported; None for trainkit's own specs."""
    for owner in type(spec).__mro__:
        digest = getattr(sys.modules.get(owner.__module__), PLUGIN_DIGEST, None)
        if digest is not None:
            return str(digest)
    return None


def type_of(spec: type[Spec]) -> str:
    """Return the value of `type` that selects a spec in a recipe."""
    annotation = spec.model_fields["type"].annotation
    (name,) = get_args(annotation)
    return str(name)


def with_tuples(value: Any) -> Any:
    """Return a value with TOML's lists as tuples, which frozen and strict specs require."""
    if isinstance(value, dict):
        return {key: with_tuples(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(with_tuples, value))
    return value
