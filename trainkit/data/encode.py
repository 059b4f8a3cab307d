"""One unit of files to its shards."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from trainkit.data import shards
from trainkit.data.documents import Piece, read_all
from trainkit.data.jobs import Stop
from trainkit.data.progress import Reporter
from trainkit.data.shards import Encoding, Shard, Unit
from trainkit.data.splits import Split, divide
from trainkit.data.storage import writing
from trainkit.data.tokenizer import LoadedTokenizer

#: Text that is encoded at once; bounds memory, and how long Ctrl-C waits.
_BATCH_BYTES = 1 << 18


class _Output:
    """A shard as it grows."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        self._file, self._dtype = file, np.dtype(dtype).newbyteorder("<")
        self._texts: list[str] = []
        self._ends: list[bool] = []
        self._begun = self.waiting = 0
        self.tokens = self.documents = self.bytes = self.crc32 = self.empty = 0

    def add(self, piece: Piece) -> None:
        if not piece.text:
            self.empty += 1
            return
        self._texts.append(piece.text)
        self._ends.append(piece.last)
        self.waiting += piece.bytes
        self.bytes += piece.bytes
        self._begun += piece.first

    def flush(self, tokenizer: LoadedTokenizer, reporter: Reporter) -> None:
        ids: list[int] = []
        for encoded, ends in zip(tokenizer.encode_batch(self._texts), self._ends, strict=True):
            ids += encoded
            if ends:
                ids.append(tokenizer.end_of_text)
        data = np.array(ids, self._dtype).tobytes()
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.tokens += len(ids)
        self.documents += self._begun
        reporter.add(documents=self._begun, bytes=self.waiting, tokens=len(ids))
        self._texts, self._ends, self._begun, self.waiting = [], [], 0, 0


def encode(
    unit: Unit,
    encoding: Encoding,
    *,
    cache: Path,
    tokenizer: LoadedTokenizer,
    on_error: str,
    reporter: Reporter,
    stop: Stop,
) -> dict[Split, Shard]:
    """Make the shards of all splits of a unit.

    Every document is followed by the end-of-text token, and so is every part of one that does not go on in its split.

    Raises:
        TrainkitError: a file cannot be read or was changed, a document cannot be read and `on_error` is "stop", or the
            cache cannot be written. Nothing is left behind then.
    """
    first = encoding.splits[0]
    skipped: list[tuple[str, str]] = []
    with contextlib.ExitStack() as files:
        paths = {split: shards.tokens_path(cache, unit.key(split, encoding)) for split in encoding.splits}
        outputs = {s: _Output(files.enter_context(writing(path)), encoding.dtype) for s, path in paths.items()}
        for split, piece in divide(read_all(unit.files, on_error=on_error, skipped=skipped), encoding.held_out):
            stop.check()
            output = outputs[split]
            output.add(piece)
            if output.waiting >= _BATCH_BYTES:
                output.flush(tokenizer, reporter)
        for output in outputs.values():
            output.flush(tokenizer, reporter)
        stop.check()
    made = {}
    for split, output in outputs.items():
        reports = skipped if split == first else []
        made[split] = Shard(
            key=unit.key(split, encoding),
            tokens=output.tokens,
            documents=output.documents,
            bytes=output.bytes,
            crc32=output.crc32,
            empty=output.empty,
            skipped=len(reports),
            examples=tuple(reports[: shards.EXAMPLES]),
        )
        shards.commit(cache, made[split])
    return made
