"""The paths of a recipe, made absolute, so that a run can be resumed from anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from trainkit.recipe.sections.document import Chat

#: What a URL begins with.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def as_shown(path: Path) -> str:
    """Return a path as text: relative where it is below the working directory, which is shorter to read."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return os.path.normpath(path)


def make_absolute(values: dict[str, Any]) -> None:
    """Relative paths in a recipe's values become absolute, against the working directory.

    URLs stay as they are, and so do names that may be those of the hub, where nothing here is called so.
    """
    data, tokenizer = values["data"], values["tokenizer"]
    _absolute(values["run"], "directory")
    _absolute(data, "cache")
    _absolute(values["track"], "repository")
    given = tokenizer and tokenizer["path"]
    if given is not None and os.path.exists(os.path.expanduser(given)):
        _absolute(tokenizer, "path")
    for source in (*data["train"], *data["validation"]):
        if "path" in source:
            _absolute(source, "path")
        if "id" in source and os.path.isdir(os.path.expanduser(source["id"])):
            _absolute(source, "id")
        document = source.get("document")
        if document and document["type"] == "chat" and Chat.model_validate(document).template_path is not None:
            _absolute(document, "template")


def _absolute(table: dict[str, Any], key: str) -> None:
    def absolute(path: str) -> str:
        return path if SCHEME.match(path) else os.path.abspath(os.path.expanduser(path))

    value = table[key]
    table[key] = absolute(value) if isinstance(value, str) else tuple(map(absolute, value))
