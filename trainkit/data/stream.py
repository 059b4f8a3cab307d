"""A long row of tokens that lies in several shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from trainkit.data import shards
from trainkit.data.ledger import Ledger
from trainkit.errors import FAILED, TrainkitError


class Stream:
    """The tokens of one or several ledgers, one after the other.

    Attributes:
        tokens, documents, bytes: totals; end-of-text tokens count, bytes are those of the text in UTF-8.
    """

    def __init__(self, cache: Path, ledgers: Sequence[Ledger]) -> None:
        self._cache = cache
        self._dtype = np.dtype(ledgers[0].dtype).newbyteorder("<")
        self._shards = [shard for ledger in ledgers for shard in ledger.shards if shard.tokens]
        self.tokens = sum(ledger.tokens for ledger in ledgers)
        self.documents = sum(ledger.documents for ledger in ledgers)
        self.bytes = sum(ledger.bytes for ledger in ledgers)

    @property
    def dtype(self) -> np.dtype:
        """uint16 or uint32, little-endian."""
        return self._dtype

    def examples(self, length: int) -> int:
        """Examples of `length` targets: every token but the very first is a target of exactly one."""
        return max(0, -(-(self.tokens - 1) // length))

    def read_into(self, rows: Sequence[np.ndarray], starts: np.ndarray) -> None:
        """Fill each row, all of one length, with the tokens from its start on, as far as there are any."""
        views, firsts = self._views, self._firsts
        width = len(rows[0])
        for row, start, shard in zip(rows, starts.tolist(), self._shards_of(starts), strict=True):
            offset = start - firsts[shard]
            piece = views[shard][offset : offset + width]
            filled = len(piece)
            row[:filled] = piece
            while filled < width and shard + 1 < len(views):
                shard += 1
                piece = views[shard][: width - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)

    def _shards_of(self, starts: np.ndarray) -> list[int]:
        return (np.searchsorted(self._first_array, starts, side="right") - 1).tolist()

    @cached_property
    def _first_array(self) -> np.ndarray:
        sizes = np.array([0, *(shard.tokens for shard in self._shards)], np.int64)
        return np.cumsum(sizes)[:-1]

    @cached_property
    def _firsts(self) -> list[int]:
        return self._first_array.tolist()

    @cached_property
    def _views(self) -> list[np.ndarray]:
        # a plain view of a memory map is read several times faster than the map itself
        return [np.asarray(self._map(shard)) for shard in self._shards]

    def _map(self, shard: shards.Shard) -> np.ndarray:
        path = shards.tokens_path(self._cache, shard.key)
        try:
            return np.memmap(path, self._dtype, "r", shape=(shard.tokens,))
        except (OSError, ValueError) as error:
            raise TrainkitError(
                f"cannot read a shard of the cache: {error}",
                where=str(path),
                hint="trainkit cache-data RECIPE makes it again",
                exit_code=FAILED,
            ) from error
