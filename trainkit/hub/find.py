"""Where a checkpoint is: in a directory, or in the cache of the hub's client, which fetches it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trainkit.errors import TrainkitError

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: What is fetched. Pickles are not, nor weights for other libraries, nor code.
WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")


def config(pretrained: str, revision: str | None) -> tuple[Path, str | None]:
    """(a directory with the checkpoint's config.json, the commit where it is from the hub). Raises TrainkitError."""
    if (directory := local(pretrained)) is not None:
        return directory, None

    def fetch() -> str:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(pretrained, "config.json", revision=revision)

    directory = Path(_fetched(pretrained, fetch)).parent
    return directory, directory.name if _COMMIT.fullmatch(directory.name) else revision


def weights(pretrained: str, revision: str | None) -> Path:
    """The directory with all of the checkpoint. Raises TrainkitError."""
    if (directory := local(pretrained)) is not None:
        return directory

    def fetch() -> str:
        from huggingface_hub import snapshot_download

        return snapshot_download(pretrained, revision=revision, allow_patterns=list(WANTED))

    return Path(_fetched(pretrained, fetch))


def local(pretrained: str) -> Path | None:
    """The directory that is meant, or None where a hub id is. Raises TrainkitError where it is neither."""
    path = Path(pretrained).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists():
        raise TrainkitError(
            f"{pretrained} is a file", where="model.pretrained", hint=f"name the directory that holds it: {path.parent}"
        )
    if not _HUB_ID.fullmatch(pretrained) or pretrained.startswith("."):
        raise TrainkitError(
            f"there is no directory {path.absolute()}",
            where="model.pretrained",
            hint='pretrained is a directory with config.json and model.safetensors, or a hub id such as "gpt2"',
        )
    return None


def _fetched(pretrained: str, fetch: Callable[[], str]) -> str:
    try:
        return fetch()
    # the hub's client and its HTTP library each raise what they like
    except Exception as error:
        cause = error.__cause__ or error  # the client wraps what happened in words that fit all of it
        said = str(cause).strip().splitlines() or [type(cause).__name__]
        raise TrainkitError(
            f"'{pretrained}' is no directory here, and could not be fetched from the Hugging Face hub: {said[0]}",
            where="model.pretrained",
            hint="give a local directory, or look at the network, the name, and your token (HF_TOKEN) for private ones",
        ) from error
