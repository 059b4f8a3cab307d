"""Plugins: Python files that a recipe names and that add types to the recipe language.

A plugin defines spec classes that derive from a class of `EXTENSIBLE`, such as `OptimizerSpec`. They become members
of the unions of a `Recipe` class made for these plugins, so that validation, diagnosis, `explain` and `schema` treat
them as trainkit's own. The code that a spec stands for is in its own module or in the class: see `implementation_of`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_type_hints

from pydantic.errors import PydanticUserError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.optimizers.spec import Optimizer, OptimizerSpec
from trainkit.recipe.optimizers.wrapper_spec import Wrapper, WrapperSpec
from trainkit.recipe.sections.document_spec import Document, DocumentSpec
from trainkit.recipe.sections.metric_spec import Metric, MetricSpec
from trainkit.recipe.sections.model import Model
from trainkit.recipe.sections.schedule_spec import Schedule, ScheduleSpec
from trainkit.recipe.sections.source import Source, SourceSpec
from trainkit.recipe.sections.task import Task
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.spec import PLUGIN_DIGEST, Spec, type_of
from trainkit.recipe.toml.files import as_shown
from trainkit.recipe.union import members_of, widen


class Extensible(NamedTuple):
    """A part of the recipe language that plugins may add types to."""

    kind: str
    """What one of them is called."""
    base: type[Spec]
    """The class that their specs derive from."""
    union: Any
    """An annotation that ends with `OneOf`; the specs join it wherever it stands in a recipe."""
    function: str = "build"
    """What the `implementation` of a spec must have, where its base names one."""


#: Everything that plugins may add to.
EXTENSIBLE = (
    Extensible("optimizer", OptimizerSpec, Optimizer),
    Extensible("schedule", ScheduleSpec, Schedule),
    Extensible("model", ModelSpec, Model),
    Extensible("task", TaskSpec, Task),
    Extensible("source", SourceSpec, Source),
    Extensible("document", DocumentSpec, Document, "make"),
    Extensible("metric", MetricSpec, Metric),
    Extensible("wrapper", WrapperSpec, Wrapper),
)


@dataclass(frozen=True)
class Plugin:
    """An imported plugin."""

    path: Path
    digest: str
    """SHA-256 of the file."""
    specs: tuple[type[Spec], ...]

    def __str__(self) -> str:
        added = ", ".join(f'{_place_of(spec).kind} "{type_of(spec)}"' for spec in self.specs)
        return f"{self.path} adds {added} (SHA-256 {self.digest[:12]})"


def load_plugins(files: Sequence[str], where: Callable[[int], str]) -> tuple[Plugin, ...]:
    """Return the plugins in these files (absolute paths) after importing them.

    Args:
        where: returns the place where the recipe names the n-th file.

    Raises:
        TrainkitError: a plugin does not exist, does not import, defines no complete spec, or uses a type that is taken.
    """
    taken = {(name, type_of(spec)): "trainkit" for name, _, union, _ in EXTENSIBLE for spec in members_of(union)}
    found: list[Plugin] = []
    for number, file in enumerate(files):
        try:
            plugin = _import_plugin(Path(file))
            for spec in plugin.specs:
                _take(taken, spec, plugin)
        except _Wrong as error:
            problem = f"plugins.files.{number} = {as_shown(Path(file))!r}: {error}"
            raise TrainkitError(problem, where=where(number), hint=error.hint) from None
        found.append(plugin)
    return tuple(found)


def imported_plugins() -> tuple[str, ...]:
    """Return the files of the plugins that this process has imported, for other processes to import."""
    return tuple(str(module.__file__) for name, module in sys.modules.items() if name.startswith("trainkit_plugins."))


def recipe_class(plugins: Sequence[Plugin]) -> type[Recipe]:
    """Return the class of recipes whose unions include the specs of these plugins."""
    return _recipe_class(tuple(spec for plugin in plugins for spec in plugin.specs))


def recipe_class_of(values: Mapping[str, Any]) -> type[Recipe]:
    """Return the class of recipes for the values of a resolved recipe. Raises TrainkitError as `load_plugins` does."""
    section = values.get("plugins")
    files = section.get("files", ()) if isinstance(section, dict) else ()
    return recipe_class(load_plugins(files, lambda number: "")) if files else Recipe


class _Wrong(Exception):
    """What is wrong with a plugin, and how to mend it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def _python_files(directory: Path) -> list[str]:
    try:
        return sorted(found.name for found in directory.glob("*.py"))
    except (OSError, ValueError):  # a name that no directory can have
        return []


def _import_plugin(path: Path) -> Plugin:
    try:
        source = path.read_bytes()
    except (OSError, ValueError) as error:  # a name with NUL has no file
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        near = ", ".join(_python_files(path.parent)[:8])
        hint = (
            f"a path is relative to the recipe that names it; Python files in {as_shown(path.parent)}: {near or 'none'}"
        )
        raise _Wrong(f"the plugin cannot be read: {reason.lower()}", hint) from None
    digest = hashlib.sha256(source).hexdigest()
    place = hashlib.sha256(str(path).encode() + source).hexdigest()[:12]
    stem = re.sub(r"\W", "_", path.stem)
    name = f"trainkit_plugins.{stem}_{place}"
    module = sys.modules.get(name) or _execute(name, path, source)
    return Plugin(path, digest, tuple(_specs_in(module, path)))


def _execute(name: str, path: Path, source: bytes) -> ModuleType:
    """Return the module made by running `source`, and not of bytecode that may be older than the file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise _Wrong("a plugin is a Python file", "give it a name that ends with .py")
    module = importlib.util.module_from_spec(spec)
    setattr(module, PLUGIN_DIGEST, hashlib.sha256(source).hexdigest())
    sys.modules.setdefault("trainkit_plugins", ModuleType("trainkit_plugins"))  # pickle imports the package first
    sys.modules[name] = module
    linecache.checkcache(str(path))
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_imported(path, error) from error
    return module


def _not_imported(path: Path, error: BaseException) -> _Wrong:
    """Return what a plugin raised, with the line in the plugin that led there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines = [error.lineno]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    number = lines[-1] if lines else None
    place = f"{as_shown(path)}:{number}" if number else as_shown(path)
    line = linecache.getline(str(path), number).strip() if number else ""
    said = f"{type(error).__name__}: {message}".strip().removesuffix(":")
    return _Wrong(
        f"the plugin cannot be imported\n  {place}: {said}" + f"\n    {line}" * bool(line), f"correct {place}"
    )


def _specs_in(module: ModuleType, path: Path) -> Iterator[type[Spec]]:
    """Yield the specs that a plugin defines, each checked and with its `implementation`."""
    bases = tuple(row.base for row in EXTENSIBLE)
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    own = [found for found in dict.fromkeys(classes) if found.__module__ == module.__name__]
    derived: list[type[Spec]] = [found for found in own if issubclass(found, bases)]
    # a class whose type is still any text is a base of others
    specs = [spec for spec in derived if "Literal" in str(spec.model_fields["type"].annotation)]
    if not specs:
        without = f"; {derived[0].__name__} has no type" if derived else ""
        names = ", ".join(base.__name__ for base in bases)
        hint = f'derive a class from one of {names}, with a key  type: Literal["my-type"]'
        raise _Wrong(f"the plugin defines no spec{without}", hint)
    for spec in specs:
        _check(spec, module, path, alone=len(specs) == 1)
        yield spec


def _check(spec: type[Spec], module: ModuleType, path: Path, *, alone: bool) -> None:
    name = spec.__name__
    try:
        spec.model_rebuild()
    except (PydanticUserError, NameError) as error:
        problem = str(error).partition("\n")[0]
        raise _Wrong(f"the keys of {name} cannot be used: {problem}", f"correct {name} in {as_shown(path)}") from None
    types = get_args(spec.model_fields["type"].annotation)
    if len(types) != 1 or not isinstance(types[0], str):
        found = ", ".join(map(repr, types))
        raise _Wrong(f"{name} must have one type, and has {found}", 'write  type: Literal["my-type"]')
    if missing := sorted(spec.__abstractmethods__):
        raise _Wrong(f"{name} lacks {', '.join(missing)}", f"define {' and '.join(missing)} in {name}")
    _check_class_variables(spec)
    kind, base, _, function = _place_of(spec)
    if "implementation" not in get_type_hints(base) or "implementation" in vars(spec):
        return
    if callable(getattr(spec, function, None)):
        spec.implementation = f"{module.__name__}:{name}"  # type: ignore[attr-defined]
    elif alone and callable(getattr(module, function, None)):
        spec.implementation = module.__name__  # type: ignore[attr-defined]
    elif not hasattr(spec, "implementation"):
        raise _Wrong(
            f'the {kind} "{type_of(spec)}" lacks an implementation:'
            f" neither the file nor {name} has a function {function}",
            f"define {function}(spec, …) in {as_shown(path)}, as the modules of trainkit's own {kind}s do",
        )


def _check_class_variables(spec: type[Spec]) -> None:
    """Raise where the spec lacks a class variable that its base declares, or has a key or another type in its place."""
    hints = get_type_hints(_place_of(spec).base, include_extras=True)
    for name in sorted(spec.__class_vars__ & hints.keys() - {"implementation"}):
        kind = str(hints[name]).removeprefix("typing.ClassVar[").removesuffix("]")
        hint = f"write  {name}: ClassVar[{kind}] = …"
        if name in spec.model_fields:
            raise _Wrong(f"{spec.__name__}.{name} is a key of the recipe, and must be a class variable", hint)
        if not hasattr(spec, name):
            raise _Wrong(f"{spec.__name__} lacks the class variable {name}", hint)
        if kind.startswith("frozenset") and not isinstance(value := getattr(spec, name), frozenset | property):
            raise _Wrong(f"{spec.__name__}.{name} = {value!r} is not a frozenset", hint)


def _place_of(spec: type[Spec]) -> Extensible:
    """Return the row of `EXTENSIBLE` that the spec of a plugin belongs to."""
    return next(row for row in EXTENSIBLE if issubclass(spec, row.base))


def _take(taken: dict[tuple[str, str], str], spec: type[Spec], plugin: Plugin) -> None:
    """Record that a plugin's spec takes its type; `taken` is (kind, type) -> who has it."""
    kind, name = _place_of(spec).kind, type_of(spec)
    if owner := taken.get((kind, name)):
        used = ", ".join(sorted(f'"{other}"' for its, other in taken if its == kind))
        raise _Wrong(
            f'the {kind} type "{name}" of {spec.__name__} is taken by {owner}', f"choose another type; taken are {used}"
        )
    taken[kind, name] = f"{spec.__name__} in {as_shown(plugin.path)}"


@cache
def _recipe_class(specs: tuple[type[Spec], ...]) -> type[Recipe]:
    added = ((row.union, [spec for spec in specs if issubclass(spec, row.base)]) for row in EXTENSIBLE)
    return widen(Recipe, [(union, joining) for union, joining in added if joining])
