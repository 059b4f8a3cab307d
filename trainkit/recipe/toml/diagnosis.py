"""Everything that is wrong with a recipe, in one error.

Validators over several keys run only if each key is valid by itself, so one validation does not find everything: each
mistake is repaired in a copy (a misspelt key renamed, a wrong value replaced), and the copy is validated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.mistakes import SHOWN, MistakeFinder
from trainkit.recipe.toml.positions import Key, Origin


def diagnose(
    values: dict[str, Any],
    error: ValidationError,
    *,
    origin: Callable[[Key], Origin],
    name: str,
    language: type[Recipe] = Recipe,
) -> TrainkitError:
    """Return one error with all mistakes, each with file, line, key, value, allowed values and what to write instead.

    Args:
        error: what validating `values` raised.
        origin: returns where a key, or the nearest table around it, was written.
        name: of the file.
        language: the class that validated `values`.
    """
    count = error.error_count()
    mistakes = MistakeFinder(values, origin, language).all(error)
    errors = [TrainkitError(mistake.problem, where=mistake.place, hint=mistake.hint) for mistake in mistakes]
    return _together(errors, count=count, name=name)


def diagnose_others(
    error: TrainkitError,
    values: dict[str, Any],
    section: str,
    *,
    origin: Callable[[Key], Origin],
    name: str,
    language: type[Recipe] = Recipe,
) -> TrainkitError:
    """Return an error about a section, together with the mistakes of the other ones, which it would hide.

    Contradictions between sections are not among them: they may depend on what this one would be.
    """
    others = {key: value for key, value in values.items() if key != section}
    search = MistakeFinder(others, origin, language)
    try:
        language.model_validate(with_tuples(others))
    except ValidationError as found:
        search.all(found)
    certain = [
        TrainkitError(mistake.problem, where=mistake.place, hint=mistake.hint)
        for key, mistake in sorted(search.found.items(), key=lambda item: item[1].where)
        if not isinstance(key, str) and key[:1] != (section,) and ", needed because " not in mistake.problem
    ]
    return _together([error, *certain], count=1 + len(certain), name=name)


def _together(errors: list[TrainkitError], *, count: int, name: str) -> TrainkitError:
    """Return some of `count` errors as one."""
    if len(errors) == 1:
        return errors[0]
    head = f"{len(errors)} mistakes" if count <= SHOWN else f"{count:,} mistakes; {len(errors)} of them:"
    blocks = (str(error).replace("\nhint: ", "\n  hint: ") for error in errors)
    return TrainkitError("\n\n".join([head, *blocks]), where=name)
