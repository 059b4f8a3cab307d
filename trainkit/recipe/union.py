"""Keys that hold one of several specs, such as `[task]`: the `type` of a table chooses which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, to_json

from trainkit.recipe.spec import Spec, import_named, type_of

S = TypeVar("S", bound=Spec)


class OneOf:
    """The specs that a key may hold, as a part of its annotation: `Annotated[TaskSpec, OneOf("causal-lm", …)]`.

    A spec of another file is imported and built when a recipe names its type, so that a recipe takes no longer to check
    the more types there are.
    """

    def __init__(self, default: str, *members: type[Spec] | str) -> None:
        """
        Args:
            default: the type of a table without `type`; empty if every table must have one.
            members: specs; or as text, for `import_named`, where a spec or a tuple of specs is.
        """
        self.default = default
        self.parts = members
        self._is_described = False

    def members(self) -> list[type[Spec]]:
        """Import and return all specs, in order."""
        return [spec for part in self.parts for spec in _specs_of(part)]

    def find(self, name: str) -> type[Spec] | None:
        """Return the spec of a type; None if there is none."""
        file = f".{name.replace('-', '_')}:"  # a spec that is alone in its file is in one that is named as its type
        for part in sorted(self.parts, key=lambda part: isinstance(part, str) and file not in part):
            for spec in _specs_of(part):
                if type_of(spec) == name:
                    return spec
        return None

    def validate(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        """Return the spec with the values of a table. Raises what pydantic reports for wrong values."""
        name = value.get("type", self.default) if isinstance(value, dict) else getattr(value, "type", self.default)
        spec = self.find(str(name))
        if spec is None:
            raise PydanticCustomError("union_tag_invalid", "there is no such type")
        # JSON has no tuples: its arrays are as good
        return spec.model_validate_json(to_json(value)) if info.mode == "json" else spec.model_validate(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        choices = {type_of(spec): _build(spec) for spec in self.members()}
        if self._is_described:  # inside one of its own members: an optimizer has groups with optimizers
            choices = {
                name: core_schema.definition_reference_schema(_reference(spec)) for name, spec in choices.items()
            }
        outer, self._is_described = self._is_described, True
        try:
            return handler(core_schema.tagged_union_schema(choices, discriminator=lambda value: None))
        finally:
            self._is_described = outer


def members_of(union: Any) -> list[Any]:
    """Return the specs of a union: of an annotation that ends with `OneOf`."""
    return _one_of(union).members()


def members_at(spec: type[Spec], key: str) -> list[Any]:
    """Return the specs that a key of a spec may hold, those that plugins add included; the key holds a union."""
    (one_of,) = (mark for mark in spec.model_fields[key].metadata if isinstance(mark, OneOf))
    return one_of.members()


def widen(spec: type[S], added: Iterable[tuple[Any, Sequence[type[Spec]]]]) -> type[S]:
    """Return a subclass of a spec in which unions have more members, however deep in it they stand.

    The subclass has the name of the spec; it is the spec itself where it holds no union.

    Args:
        added: unions, each with the specs that join it.
    """
    wider: type[S] = _Widener({_one_of(union): specs for union, specs in added}).spec(spec)
    return wider


def _one_of(union: Any) -> OneOf:
    one_of = get_args(union)[1]
    assert isinstance(one_of, OneOf), union
    return one_of


def _specs_of(part: type[Spec] | str) -> tuple[type[Spec], ...]:
    found = import_named(part) if isinstance(part, str) else part
    return found if isinstance(found, tuple) else (found,)


def _reference(schema: Any) -> str:
    """Return the name of a spec's schema. One with others that it contains twice stands among them."""
    own = schema["schema"] if schema["type"] == "definitions" else schema
    return str(own["ref"])


def _build(spec: type[Spec]) -> CoreSchema:
    spec.model_rebuild()
    return spec.__pydantic_core_schema__


class _Widener:
    """Makes the subclasses for `widen`, each once."""

    def __init__(self, added: dict[OneOf, Sequence[type[Spec]]]) -> None:
        self.added = added
        self._made: dict[type[Spec], type[Spec]] = {}

    def spec(self, spec: Any) -> Any:
        """Return the subclass of a spec, with its name; the spec itself where nothing in it changes."""
        if spec not in self._made:
            hints = get_type_hints(spec, include_extras=True)
            wider = {name: (hints[name], self._annotation(hints[name])) for name in spec.model_fields}
            fields = {
                name: (new, field.default if not (field := spec.model_fields[name]).is_required() else ...)
                for name, (old, new) in wider.items()
                if new is not old
            }
            self._made[spec] = _subclass(spec, fields) if fields else spec
        return self._made[spec]

    def _annotation(self, annotation: Any) -> Any:
        if isinstance(annotation, type) and issubclass(annotation, Spec):
            return self.spec(annotation)
        if get_origin(annotation) is Annotated:
            inside, *marks = get_args(annotation)
            if isinstance(marks[0], OneOf):
                return Annotated[inside, _WiderOneOf(marks[0], self)]
            wider = self._annotation(inside)
            return annotation if wider is inside else Annotated[wider, *marks]
        if get_origin(annotation) is Literal or not get_args(annotation):
            return annotation
        arguments = get_args(annotation)
        wider = tuple(map(self._annotation, arguments))
        if all(new is old for new, old in zip(wider, arguments, strict=True)):
            return annotation
        if get_origin(annotation) in (Union, UnionType):
            return reduce(or_, wider)
        return get_origin(annotation)[wider]


class _WiderOneOf(OneOf):
    """A union with more members, in which each member is widened too."""

    def __init__(self, union: OneOf, widener: _Widener) -> None:
        super().__init__(union.default, *union.parts, *widener.added.get(union, ()))
        self._widener = widener

    def members(self) -> list[type[Spec]]:
        return [self._widener.spec(spec) for spec in super().members()]

    def find(self, name: str) -> type[Spec] | None:
        found = super().find(name)
        return None if found is None else self._widener.spec(found)


def _subclass(spec: type[Spec], fields: dict[str, Any]) -> type[Spec]:
    made = create_model(
        spec.__name__,
        __base__=spec,
        __module__=spec.__module__,
        __doc__=spec.__doc__,
        **fields,
    )
    # another process has no such class: there it is one of the class that this widens, which differs in types alone
    made.__reduce__ = lambda self: (_restore, (spec, self.__dict__))  # type: ignore[method-assign]
    return made


def _restore(spec: type[Spec], values: dict[str, Any]) -> Spec:
    return spec.model_construct(**values)
