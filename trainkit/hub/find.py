"""The directory of a checkpoint: a local one, or that of the hub client's cache after fetching it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainkit.data.hub_files import BESIDE, HUB_ID, file_of, read_object
from trainkit.errors import TrainkitError

T = TypeVar("T")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Kind:
    """A kind of checkpoint: its config file, its weights, and the key of a recipe that names it."""

    config: str
    weights: str
    """Or its shards, which an index beside it names."""
    key: str
    beside: tuple[str, ...] = ()
    """Further files to fetch."""

    @property
    def index(self) -> str:
        """Return the name of the file that lists the tensors of each file, where there are several."""
        return f"{self.weights}.index.json"


MODEL = Kind("config.json", "model.safetensors", "model.pretrained", ("tokenizer.json", *BESIDE))
ADAPTER = Kind("adapter_config.json", "adapter_model.safetensors", "adapter.pretrained")


def config(pretrained: str, revision: str | None, *, kind: Kind = MODEL) -> tuple[Path, str | None]:
    """Return (a directory with the checkpoint's config, its commit if it is from the hub). Raises TrainkitError."""
    if (directory := local(pretrained, kind=kind)) is not None:
        return directory, None

    def fetch() -> str:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(pretrained, kind.config, revision=revision)

    directory = Path(_fetch(pretrained, fetch, kind)).parent
    return directory, _commit(directory) or revision


def weights(pretrained: str, revision: str | None, *, kind: Kind = MODEL) -> Path:
    """Return the directory with the whole checkpoint. Raises TrainkitError if it is not available.

    From the hub only files of the kind are fetched: no pickles, no code, no weights for other libraries.
    """
    if (directory := local(pretrained, kind=kind)) is not None:
        return directory

    def fetch(*files: str) -> Path:
        def download() -> str:
            from huggingface_hub import snapshot_download

            return snapshot_download(pretrained, revision=revision, allow_patterns=list(files))

        return Path(_fetch(pretrained, download, kind))

    directory = fetch(kind.config, kind.index, *kind.beside)
    revision = _commit(directory) or revision
    files = _files(directory, kind)
    directory = fetch(*files)
    if missing := [file for file in files if not (directory / file).is_file()]:
        # offline the client returns an incomplete snapshot without saying so
        _fetch(pretrained, lambda: [file_of(pretrained, file, revision) for file in (missing[0], kind.index)], kind)
    if not ((directory / kind.weights).is_file() or (directory / kind.index).is_file()):
        raise TrainkitError(
            f"'{pretrained}' has neither {kind.weights} nor {kind.index} on the Hugging Face hub",
            where=kind.key,
            hint="pickled weights (.bin, .pt) are not fetched, since reading them may run any code: convert them where"
            " you trust them, or look for a revision that has been",
        )
    return directory


def _files(directory: Path, kind: Kind) -> list[str]:
    """Return the names of the files with the weights."""
    shards = read_object(directory / kind.index, missing_ok=True).get("weight_map")
    found = {file for file in shards.values() if isinstance(file, str)} if isinstance(shards, dict) else set()
    return sorted(found) or [kind.weights]


def _commit(directory: Path) -> str | None:
    """Return the commit of a directory in the client's cache."""
    return directory.name if _COMMIT.fullmatch(directory.name) else None


def local(pretrained: str, *, kind: Kind = MODEL) -> Path | None:
    """Return the local directory, or None for a hub id. Raises TrainkitError if it is neither."""
    hint = f'pretrained is a directory with {kind.config} and {kind.weights}, or a hub id such as "me/it"'
    if not pretrained:  # as a path, it would be the working directory
        raise TrainkitError("it names nothing", where=kind.key, hint=hint)
    path = Path(os.path.expanduser(pretrained))
    if path.is_dir():
        return Path(os.path.abspath(path))
    if path.exists():
        raise TrainkitError(
            f"{pretrained} is a file", where=kind.key, hint=f"name the directory that holds it: {path.parent}"
        )
    if not HUB_ID.fullmatch(pretrained):
        raise TrainkitError(f"there is no directory {path.absolute()}", where=kind.key, hint=hint)
    return None


def _fetch(pretrained: str, fetch: Callable[[], T], kind: Kind) -> T:
    try:
        return fetch()
    # the hub's client and its HTTP library raise exceptions of their own
    except Exception as error:
        cause = error.__cause__ or error  # the client's own message is too general
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise TrainkitError(
            f"'{pretrained}' is not a directory, and could not be fetched from the Hugging Face hub: {lines[0]}",
            where=kind.key,
            hint="give a local directory, or check the network, the name, and your token (HF_TOKEN) for private ones",
        ) from error
