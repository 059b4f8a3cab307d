"""The base of every section: frozen, strict, and closed to unknown keys.

The docstring below a field documents it: `toml/schema.py` reads it when needed. (Pydantic could read it when it makes
the class, but would then read every source file again at every start.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import reduce
from importlib import import_module
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model

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


S = TypeVar("S", bound=Spec)


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


def by_type(default: str) -> Discriminator:
    """Return the discriminator of a union by `type`; a value without a `type` is a `default`."""

    def tag(value: Any) -> str:
        if isinstance(value, dict):
            return str(value.get("type", default))
        return str(getattr(value, "type", default))

    return Discriminator(tag)


def union_of(default: str, *members: type[Spec]) -> Any:
    """Return the union of specs with different `type`; a table without a `type` is a `default`.

    Plugins add members to it with `widen`.
    """
    return Annotated[reduce(or_, map(_tagged, members)), by_type(default)]


def members_of(union: Any) -> list[Any]:
    """Return the specs of a union that `union_of` made."""
    return _members(get_args(union)[0])


def members_at(spec: type[Spec], key: str) -> list[Any]:
    """Return the specs that a key of a spec may hold, those that plugins add included; the key holds a union."""
    return _members(spec.model_fields[key].annotation)


def _members(tagged: Any) -> list[Any]:
    return [get_args(member)[0] for member in get_args(tagged)]


def _tagged(member: type[Spec]) -> Any:
    return Annotated[member, Tag(type_of(member))]


def implementation_of(spec: Any) -> Any:
    """Import and return the module, or the class in it (`module:Class`), that `spec.implementation` names."""
    return import_named(spec.implementation)


def import_named(path: str) -> Any:
    """Import and return a module, or an object in it (`module:name`)."""
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


def widen(spec: type[S], added: Iterable[tuple[Any, Sequence[type[Spec]]]]) -> type[S]:
    """Return a subclass of a spec in which unions have more members, however deep in it they stand.

    The subclass has the name of the spec; it is the spec itself where it holds none of the unions.

    Args:
        added: unions that `union_of` made, each with the specs that join it.
    """
    wider: type[S] = _Widener({id(get_args(union)[1]): _with_members(union, specs) for union, specs in added}).spec(
        spec
    )
    return wider


def _with_members(union: Any, specs: Sequence[type[Spec]]) -> Any:
    known, discriminator = get_args(union)
    return Annotated[reduce(or_, map(_tagged, specs), known), discriminator]


class _Widener:
    """Makes the subclasses for `widen`, each once."""

    def __init__(self, unions: dict[int, Any]) -> None:
        #: The `id` of a union's discriminator -> the wider union. (Unions that are equal may be different objects.)
        self._unions = unions
        #: Unions whose members are being made: the optimizer of a group is not widened again inside.
        self._open: frozenset[int] = frozenset()
        self._made: dict[tuple[type[Spec], frozenset[int]], type[Spec]] = {}

    def spec(self, spec: Any) -> Any:
        """Return the subclass of a spec, with its name; the spec itself where nothing in it changes."""
        key = (spec, self._open)
        if key not in self._made:
            self._made[key] = spec  # for specs that lead back to this one: an optimizer has groups with optimizers
            hints = get_type_hints(spec, include_extras=True)
            wider = {name: (hints[name], self._annotation(hints[name])) for name in spec.model_fields}
            fields = {
                name: (new, field.default if not (field := spec.model_fields[name]).is_required() else ...)
                for name, (old, new) in wider.items()
                if new is not old
            }
            self._made[key] = _subclass(spec, fields) if fields else spec
        return self._made[key]

    def _annotation(self, annotation: Any) -> Any:
        if isinstance(annotation, type) and issubclass(annotation, Spec):
            return self.spec(annotation)
        if get_origin(annotation) is Annotated:
            return self._annotated(annotation)
        if get_origin(annotation) is Literal or not get_args(annotation):
            return annotation
        arguments = get_args(annotation)
        wider = tuple(map(self._annotation, arguments))
        if all(new is old for new, old in zip(wider, arguments, strict=True)):
            return annotation
        if get_origin(annotation) in (Union, UnionType):
            return reduce(or_, wider)
        return get_origin(annotation)[wider]

    def _annotated(self, annotation: Any) -> Any:
        inside, *marks = get_args(annotation)
        union = next((id(mark) for mark in marks if id(mark) in self._unions), None)
        if union is not None:
            annotation = self._unions[union]
            if union in self._open:
                return annotation
            inside = get_args(annotation)[0]
            self._open |= {union}
        wider = self._annotation(inside)
        self._open -= {union}
        return annotation if wider is get_args(annotation)[0] else Annotated[wider, *marks]


def _subclass(spec: type[Spec], fields: dict[str, Any]) -> type[Spec]:
    made = create_model(
        spec.__name__,
        __base__=spec,
        __module__=spec.__module__,
        __doc__=spec.__doc__,
        **fields,
    )
    # another process has no such class: there it is one of the class that this widens, which differs in types alone
    made.__reduce__ = lambda self: (_restored, (spec, self.__dict__))  # type: ignore[method-assign]
    return made


def _restored(spec: type[Spec], values: dict[str, Any]) -> Spec:
    return spec.model_construct(**values)
