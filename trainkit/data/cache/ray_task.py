"""What a worker of a Ray cluster does: the tokens of one unit. Needs no Ray."""

from __future__ import annotations

import os
import pickle
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import trainkit
from trainkit.data.cache import shards
from trainkit.data.cache.encode import CacheWork
from trainkit.data.cache.shards import Encoding, Parts
from trainkit.data.jobs import LATER, Later, Reporter, Stop
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.recipe.toml.plugins import load_plugins

#: Seconds between two looks of a task at its mark.
_LOOK_AT_MARK = 0.5


@dataclass(frozen=True)
class UnitTask:
    """The argument of a task. The tokenizer, which is large, goes to each host once."""

    unit: bytes
    """Pickled: it may hold specs of plugins, which must be imported first."""
    plugins: tuple[str, ...]
    encoding: Encoding
    cache: Path
    on_error: str
    mark: str
    """A file of the cache that this process wrote: a host that does not see it sees another directory. Once it has
    gone, tasks end."""
    version: str


class _WhileMarked(Stop):
    """Asks a task to end once its mark has gone."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark, self._next = mark, 0.0

    def check(self) -> None:
        """Raise `Stopped` once the task is to end."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_AT_MARK
            if not self._mark.exists():
                self.set()
        super().check()


def version() -> str:
    """Return what must be the same on all hosts."""
    return f"{trainkit.__version__} (format {shards.FORMAT})"


def tokenise(tokenizer: bytes, task: UnitTask) -> Parts | None:
    """Do a task and return its shards; None if another process is making the unit."""
    # a task has one CPU; Rust reads this with each batch
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if task.version != version():
        raise TrainkitError(
            f"the host {socket.gethostname()} of the Ray cluster has trainkit {version()}, this one {task.version}",
            hint="install the same on all hosts",
        )
    mark = task.cache / "locks" / task.mark
    if not mark.exists():
        raise TrainkitError(
            f"the host {socket.gethostname()} of the Ray cluster does not see the token cache",
            where=str(task.cache),
            hint="data.cache must be a directory that all hosts see under the same path",
        )
    if task.plugins:
        load_plugins(task.plugins, lambda number: "")
    work = CacheWork(pickle.loads(task.unit), task.encoding, task.cache, _load_tokenizer(tokenizer), task.on_error)
    try:
        return work.do(Reporter("", 0, None), _WhileMarked(mark))
    except Later:
        time.sleep(LATER)
        return None


@lru_cache(maxsize=1)
def _load_tokenizer(tokenizer: bytes) -> LoadedTokenizer | None:
    return pickle.loads(tokenizer)
