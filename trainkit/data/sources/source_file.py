"""One file of a source: where it is, and how it is read.

A document is known by its file's name below the source's root and its place in that file. Both stay what they are when
files are added, so that what is held out once stays held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainkit.data.documents.templates import RowReading
from trainkit.data.sources.files import is_remote, suffixes
from trainkit.data.sources.patterns import Stat

Kind = Literal["text", "python", "jsonl", "json", "csv", "parquet", "arrow", "array", "huggingface", "custom"]


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, or a dataset of the Hugging Face hub."""

    path: str
    """Absolute, or a URL; of a dataset of the hub, what it is called."""
    name: str
    """Below the source's root, with slashes."""
    kind: Kind
    reading: RowReading
    stat: Stat
    identity: str | None = None
    """What changes with its content; None where it has to be read to know."""

    @property
    def key(self) -> str:
        """Tells readings apart: where a file can be divided depends on its format, and the same file may be read in
        two formats."""
        return f"{self.kind}:{self.path}"

    @property
    def size(self) -> int:
        """Bytes as stored; 0 where it is unknown."""
        return self.stat[0]

    @property
    def local(self) -> bool:
        """Whether it is a file of this machine."""
        return self.kind not in ("huggingface", "custom") and not is_remote(self.path)

    @property
    def compressed(self) -> bool:
        """Whether its bytes have to be decompressed from the first on."""
        return self.kind not in ("huggingface", "custom") and bool(suffixes(self.path)[1])
