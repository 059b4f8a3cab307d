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


# Every number of a recipe has a range, and a test finds numbers without one: beyond it are mistakes, endless loops and
# arrays that no machine holds. It is wider than anything that was ever trained, so that it need not change.
#: The range of positive numbers: less would be 0 in float32, and the square of more would be infinite.
LEAST, GREATEST = 1e-37, 1e18
MOST = 10**9
"""Of what is counted: steps, examples, positions."""
Count = Annotated[int, Field(ge=1, le=MOST)]
"""A whole number of at least 1."""
Index = Annotated[int, Field(ge=0, le=MOST)]
"""A whole number of at least 0, such as a step."""
LargeCount = Annotated[int, Field(ge=1, le=10**15)]
"""Of tokens or bytes."""
Width = Annotated[int, Field(ge=1, le=1 << 20)]
"""An axis of an array, or the length of a list that a search or a program holds."""
Depth = Annotated[int, Field(ge=1, le=10_000)]
"""Layers, one after the other."""
VocabSize = Annotated[int, Field(ge=1, le=10**7)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Integer = Annotated[int, Field(ge=-(10**15), le=10**15)]
Number = Annotated[float, Field(ge=-GREATEST, le=GREATEST)]
Positive = Annotated[float, Field(ge=LEAST, le=GREATEST)]
NotNegative = Annotated[float, Field(ge=0, le=GREATEST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
# Each upper limit below is about 100 times the largest published value: a run with a larger one fails sooner or later.
LearningRate = Annotated[float, Field(ge=LEAST, le=1e4)]
WeightDecay = Annotated[float, Field(ge=0, le=1e3)]
Eps = Annotated[float, Field(ge=LEAST, le=100)]
"""What an optimizer adds to a divisor, or another small number that it starts from."""
NormEps = Annotated[float, Field(ge=LEAST, le=1)]
"""What a norm adds to a variance."""
LossWeight = Annotated[float, Field(ge=0, le=1e4)]
"""The weight of a loss or of a part of it, or the strength of noise."""
Ratio = Annotated[float, Field(ge=0, le=1e4)]
"""A factor, such as of the learning rate or of the value that a schedule changes, or another number near 1."""
PositiveRatio = Annotated[float, Field(ge=1e-12, le=1e4)]
Exponent = Annotated[float, Field(ge=1e-6, le=1e3)]
Temperature = Annotated[float, Field(ge=1e-4, le=1e3)]
"""A number by which logits are divided."""
Theta = Annotated[float, Field(ge=1, le=1e12)]
"""The base of the wavelengths of rotary positions."""
Scale = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A factor of attention scores, or what they are divided by."""
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
