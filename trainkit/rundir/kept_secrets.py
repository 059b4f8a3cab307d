"""The secrets of a run's recipe, such as the password in a URL: apart from the recipe, readable by their owner alone.

Everything else that a run writes has `***` in their place (`redaction.py`). A run needs them again when it resumes and
reads its sources. Who only looks at it, or gets a copy of it without this file, does not.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from trainkit import files
from trainkit.recipe import Recipe
from trainkit.recipe.toml.positions import Key
from trainkit.recipe.toml.values import Secrets, secrets_of

FILE = "secrets.json"


def keep(directory: Path, recipe: Recipe, *, attempt: int | None = None) -> None:
    """Write the recipe's secrets, if it has some, and keep those so far as of `attempt`. Raises OSError."""
    if attempt is not None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(directory / FILE, directory / _before(attempt))
    if secrets := secrets_of(recipe):
        values = [[list(key), value] for key, value in secrets.items()]
        files.write(directory / FILE, files.seal(json.dumps({"values": values})), mode=0o600)


def restore(directory: Path, *, attempt: int) -> None:
    """Undo what `keep` did for `attempt`. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(directory / _before(attempt), directory / FILE)


def read(directory: Path) -> Secrets:
    """Return the secrets of a run's recipe by their keys; none if it has none, or they cannot be read."""
    try:
        found = files.read_json(directory / FILE)["values"]
        return {_key(key): value for key, value in found}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _key(parts: list[str | int]) -> Key:
    return tuple(parts)


def _before(attempt: int) -> str:
    return f"secrets.before-{attempt}.json"
