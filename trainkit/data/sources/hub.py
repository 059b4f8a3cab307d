"""What a name on the Hugging Face hub looks like, and single files of a repository there."""

from __future__ import annotations

import re
from pathlib import Path

HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
#: Files beside a tokenizer.json that say how it is used.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")


class NotAskedError(Exception):
    """The client works offline, and its cache does not know whether a repository has a file."""


def file_of(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a repository, from the client's cache or the hub; None where the repository does not have it.

    Raises:
        NotAskedError: nobody was asked.
        Exception: whatever the client and its HTTP library raise.
    """
    from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except LocalEntryNotFoundError:
        known = try_to_load_from_cache(name, file, revision=revision)
        if known is _CACHED_NO_EXIST:
            return None
        if constants.HF_HUB_OFFLINE:
            raise NotAskedError(f"{file} is not in its client's cache, and HF_HUB_OFFLINE is set") from None
        raise  # nobody could be asked
    except EntryNotFoundError:
        return None


def commit_of(name: str, file: str, revision: str | None) -> str | None:
    """The commit that a revision was when the client fetched a file; None where it is not in the client's cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file, revision=revision)
    return Path(found).parent.name if isinstance(found, str) else None
