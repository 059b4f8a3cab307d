"""JSON objects in files of others: configs of models and tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainkit.data.problems import kind_of
from trainkit.errors import TrainkitError


def read_object(path: Path, *, missing_ok: bool = False, hint: str = "") -> dict[str, Any]:
    """The object in a file; with `missing_ok`, an empty one where there is no such file.

    `hint` says what the file is that is missing. Raises TrainkitError where it is missing, cannot be read, or holds no
    object.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if missing_ok:
            return {}
        raise TrainkitError(f"there is no {path.name}", where=str(path.parent), hint=hint) from error
    except OSError as error:
        raise TrainkitError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    # how deep JSON may be nested is Python's own limit
    except (ValueError, RecursionError) as error:
        raise TrainkitError(f"is not JSON: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise TrainkitError(f"is {kind_of(found)}, not an object", where=str(path))
    return found
