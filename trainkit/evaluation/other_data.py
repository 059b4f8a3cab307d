"""What `trainkit eval` evaluates on instead of the validation sets: other files, data sets and splits."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Files, HuggingFace, RowSource, Source
from trainkit.recipe.toml.files import absolute

#: Patterns of files, and URLs.
_PATTERN = re.compile(r"[*?{\[]|://")


def sources_to_evaluate(recipe: Recipe, data: Sequence[str], split: str | None) -> list[Source]:
    """Return the sources to evaluate on instead of the validation sets; an empty list for the validation sets.

    They are read like the first training source, without its `limit`.

    Args:
        data: paths of files, or ids of Hugging Face data sets.
        split: of the data set that the run was trained on, or of `data`.

    Raises:
        TrainkitError: the run's rows are not in such files or data sets.
    """
    if not data and split is None:
        return []
    source = recipe.data.train[0]
    if split is not None and not data and hasattr(source, "split"):
        return [_split_of(source, split)]
    if split is not None and not isinstance(source, HuggingFace):
        raise _refused(source, f"--split {split}", "a data set with splits")
    if not isinstance(source, RowSource):
        raise _refused(source, f"--data {data[0]}", "rows, of files or of a data set")
    taken = () if isinstance(source, HuggingFace) else recipe.data.validation_names
    return [_other(source, one, name, split) for one, name in set_names(data, split, taken=taken).items()]


def _refused(source: Source, option: str, kind: str) -> TrainkitError:
    return TrainkitError(
        f"{option} is for a run whose data is {kind}, and data.train.0.type is '{source.type}'",
        hint="name files with --data" if isinstance(source, RowSource) else "",
    )


def _other(source: RowSource, data: str, name: str, split: str | None) -> Source:
    """Return files, or a data set, whose rows are read like those of a source."""
    if isinstance(source, Files):
        return source.model_copy(update={"path": absolute(data), "name": name, "limit": None})
    is_file = _PATTERN.search(data) or Path(os.path.expanduser(data)).is_file()
    if isinstance(source, HuggingFace) and not is_file:
        own = {} if data == source.id else {"config": None, "revision": None}
        return source.model_copy(
            update={"id": data, "split": split or source.split, "name": name, "limit": None, **own}
        )
    if split is not None:
        raise TrainkitError(f"--split {split} is for data sets, and --data {data} is a file", hint="leave --split out")
    alike = {key: getattr(source, key) for key in RowSource.model_fields if key not in ("type", "limit", "name")}
    return Files(path=absolute(data), name=name, **alike)


def _split_of(source: Source, split: str) -> Source:
    """Return the same source with another split, which is its name too, and all of its rows."""
    try:
        return type(source).model_validate({**dict(source), "split": split, "name": split, "limit": None})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise TrainkitError(
            f"--split {split}: {wrong['msg']}",
            where="data.train.0.split",
            hint=f"the run was trained on {dict(source)['split']}",
        ) from None


def set_names(data: Sequence[str], split: str | None, *, taken: Collection[str]) -> dict[str, str]:
    """Return the set's name for each path or id: short, or the whole of it where the short one is `taken` or not the
    only one, so that no result hides another."""
    short = {one: split or Path(one).name.partition(".")[0] or one for one in data}
    names = list(short.values())
    return {one: one if names.count(name) > 1 or name in taken else name for one, name in short.items()}
