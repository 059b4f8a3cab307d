"""Files of Hugging Face repositories, on this machine and on the hub: configs of models and tokenizers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trainkit.data.problems import kind_of
from trainkit.errors import TrainkitError

#: What the name of a repository looks like.
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
#: Files beside a tokenizer.json that say how it is used.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")


def read_object(path: Path, *, missing_ok: bool = False, hint: str = "") -> dict[str, Any]:
    """Return the JSON object in a file; an empty object if the file is missing and `missing_ok`.

    `hint` says which file is missing. Raises TrainkitError if the file is missing, cannot be read, or holds no object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if missing_ok:
            return {}
        raise TrainkitError(f"there is no {path.name}", where=str(path.parent), hint=hint) from error
    except OSError as error:
        raise TrainkitError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    # how deep JSON may be nested is Python's own limit
    except (ValueError, RecursionError) as error:
        raise TrainkitError(f"is not JSON: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise TrainkitError(f"is {kind_of(value)}, not an object", where=str(path))
    return value


class NotAskedError(Exception):
    """The client works offline, and its cache does not know whether a repository has a file."""


def file_of(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file of a repository, from the client's cache or the hub; None if the repository does not have it.

    Raises:
        NotAskedError: the client works offline, and its cache does not know.
        Exception: whatever the client and its HTTP library raise.
    """
    from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except LocalEntryNotFoundError:
        cached = try_to_load_from_cache(name, file, revision=revision)
        if cached is _CACHED_NO_EXIST:
            return None
        if constants.HF_HUB_OFFLINE:
            raise NotAskedError(f"{file} is not in its client's cache, and HF_HUB_OFFLINE is set") from None
        raise  # the hub cannot be reached
    except EntryNotFoundError:
        return None


def commit_of(name: str, file: str, revision: str | None) -> str | None:
    """Return the commit of a revision when the client fetched a file; None if the file is not in the client's cache."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, file, revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else None
