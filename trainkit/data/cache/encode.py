"""Tokenising units of work into shards, by the threads of this process or another engine.

The work of an engine is plain data, so that it can be sent to other processes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from trainkit.data import jobs, storage
from trainkit.data.cache import shards
from trainkit.data.cache.left_out import Reason, group_reasons
from trainkit.data.cache.shard_writer import ShardWriter
from trainkit.data.cache.shards import Encoding, Parts, Shard
from trainkit.data.documents.pieces import Piece, Refused
from trainkit.data.jobs import Later, Reporter, Stop
from trainkit.data.sources.source_file import SourceFile, read_all
from trainkit.data.sources.splits import Split, divide
from trainkit.data.sources.units import Unit
from trainkit.data.storage import write_file
from trainkit.data.tokenizer.long_text import LongText
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.redaction import redact

#: Text that is encoded at once; bounds memory, and how long Ctrl-C waits.
_BATCH_BYTES = 1 << 20
#: Tokens with which a shard ends and the unit continues in another: what a killed process has to do again.
SHARD_TOKENS = 1 << 22


def encode(
    unit: Unit,
    encoding: Encoding,
    *,
    cache: Path,
    tokenizer: LoadedTokenizer | None,
    on_error: str,
    reporter: Reporter,
    stop: Stop,
) -> list[Mapping[Split, Shard]]:
    """Return the shards of all splits of a unit, by part, after making those that do not exist yet.

    Raises:
        TrainkitError: a file cannot be read or was changed, a document cannot be used and `on_error` is "stop", or the
            cache cannot be written. Finished parts stay.
    """
    first = encoding.splits[0]
    parts = shards.of_unit(cache, unit, encoding, on_error)
    reporter.add_shards(shards.all_shards(parts))
    if parts and parts[-1][first].last:
        return parts
    refused: list[tuple[str, Refused]] = []
    read = read_all([(file, unit.span) for file in unit.files], on_error=on_error, refused=refused)
    pieces = divide(read, encoding.held_out)
    done = parts[-1][first].pieces if parts else 0
    special = unit.files[0].reading.has_special_tokens
    texts = {split: LongText(tokenizer, special_tokens=special) for split in encoding.splits}
    for split, _, piece in islice(pieces, done):
        stop.check()
        texts[split].pass_over(piece.text, continued=piece.continued)
    for split, text in texts.items():
        text.resume(parts[-1][split].carried if parts else 0)
    refused.clear()
    while not parts or not parts[-1][first].last:
        part = _Part(unit, encoding, len(parts), texts, cache=cache, tokenizer=tokenizer, reporter=reporter)
        with part:
            consumed, last = part.take(pieces, stop)
            done += consumed
        parts.append(part.commit(refused, pieces=done, last=last))
        refused.clear()
    return parts


class _Part:
    """The shards of one part of a unit, one for each split, as they grow."""

    def __init__(
        self,
        unit: Unit,
        encoding: Encoding,
        number: int,
        texts: Mapping[Split, LongText],
        *,
        cache: Path,
        tokenizer: LoadedTokenizer | None,
        reporter: Reporter,
    ) -> None:
        self._encoding, self._cache, self._reporter = encoding, cache, reporter
        self._keys = {split: shards.key_of(unit, split, encoding, number) for split in encoding.splits}
        self._unit, self._tokenizer, self._texts = unit, tokenizer, texts
        self._files = contextlib.ExitStack()
        self._outputs: dict[Split, ShardWriter] = {}

    def __enter__(self) -> None:
        for split, key in self._keys.items():
            file = self._files.enter_context(write_file(shards.path_of(self._cache, key)))
            self._outputs[split] = ShardWriter(
                file, self._unit, self._encoding, self._tokenizer, self._texts[split], self._reporter
            )

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)  # type: ignore[arg-type]

    def take(self, pieces: Iterator[tuple[Split, SourceFile, Piece]], stop: Stop) -> tuple[int, bool]:
        """Encode pieces until the shards are full or no piece is left; return how many, and whether none is left."""
        consumed = 0
        for split, file, piece in pieces:
            stop.check()
            consumed += 1
            output = self._outputs[split]
            output.add(file, piece)
            if output.waiting >= _BATCH_BYTES:
                output.flush()
                # what is learned of a document, and its label, depend on all of its pieces
                may_end = piece.last or (not self._unit.marked and self._texts[split].can_resume)
                if may_end and sum(o.tokens for o in self._outputs.values()) >= SHARD_TOKENS:
                    break
        else:
            self._finish()
            return consumed, True
        self._finish()
        stop.check()
        return consumed, False

    def _finish(self) -> None:
        for output in self._outputs.values():
            output.finish()

    def commit(self, refused: list[tuple[str, Refused]], *, pieces: int, last: bool) -> Mapping[Split, Shard]:
        """Commit and return the shards. What was refused is counted with the first of the splits."""
        unusable = [(place, refusal.problem) for place, refusal in refused if not refusal.filtered]
        reasons = group_reasons(
            Reason(refusal.reason, 1, min(refusal.bytes, self._unit.size), where)
            for where, refusal in refused
            if not refusal.filtered
        )
        done: dict[Split, Shard] = {}
        for split, output in self._outputs.items():
            reports = unusable if not done else []
            if reports:
                with write_file(shards.rejected_path(self._cache, self._keys[split])) as out:
                    for where, why in reports:
                        out.write(redact(json.dumps({"where": where, "why": why}, ensure_ascii=False)).encode() + b"\n")
            done[split] = shards.shard_of(
                self._unit.labels,
                key=self._keys[split],
                dtype=self._encoding.dtype,
                tokens=output.tokens,
                documents=output.distinct,
                entries=len(output.ends),
                bytes=output.bytes,
                crc32=output.crc32,
                marked=self._unit.marked,
                learned=output.learned,
                unknown=output.unknown,
                highest=output.highest,
                empty=output.empty,
                refused=len(reports),
                filtered=len(refused) - len(unusable) if not done else 0,
                examples=tuple(reports[: shards.EXAMPLES]),
                reasons=reasons if not done else (),
                pieces=pieces,
                last=last,
                carried=self._texts[split].carried,
                measured=True,
            )
        for shard in done.values():
            shards.commit(self._cache, shard)
        return done


@dataclass(frozen=True)
class CacheWork:
    """A unit to tokenise."""

    unit: Unit
    encoding: Encoding
    cache: Path
    tokenizer: LoadedTokenizer | None
    on_error: str

    def do(self, reporter: Reporter, stop: Stop) -> Parts:
        """Return the shards of the unit, after making those that do not exist yet.

        Raises:
            Later: another process is making them.
            TrainkitError: as `encode`.
        """
        first = self.encoding.splits[0]
        parts: Parts = shards.of_unit(self.cache, self.unit, self.encoding, self.on_error)
        if parts and parts[-1][first].last:
            reporter.add_shards(shards.all_shards(parts))
        else:
            with storage.claim(self.cache / "locks" / shards.key_of(self.unit, first, self.encoding)) as mine:
                if not mine:
                    raise Later
                parts = encode(
                    self.unit,
                    self.encoding,
                    cache=self.cache,
                    tokenizer=self.tokenizer,
                    on_error=self.on_error,
                    reporter=reporter,
                    stop=stop,
                )
        reporter.add_done(shards.all_shards(parts), source=self.unit.size)
        return parts


class Engine(Protocol):
    """Tokenises units."""

    def __call__(
        self,
        work: Sequence[CacheWork],
        *,
        wanted: Callable[[int], bool],
        on_result: Callable[[int, Parts | None], None],
        reporter: Reporter,
        stop: Stop,
    ) -> None:
        """Do all of the work in about this order, calling `on_result` with the number and result of each, in this
        thread.

        Work that is no longer `wanted` when its turn comes has the result None. Calls `reporter.tick` now and then. The
        first error ends the rest and is raised; `stop` raises `Stopped`.
        """


def threads(workers: int | None = None) -> Engine:
    """Return an engine of threads of this process; by default as many as there are cores, but at most 4."""

    def run(
        work: Sequence[CacheWork],
        *,
        wanted: Callable[[int], bool],
        on_result: Callable[[int, Parts | None], None],
        reporter: Reporter,
        stop: Stop,
    ) -> None:
        def job(index: int, stop: Stop) -> Parts | None:
            return work[index].do(reporter, stop) if wanted(index) else None

        jobs.run(
            [partial(job, index) for index in range(len(work))],
            workers=workers or jobs.WORKERS,
            tick=reporter.tick,
            on_result=on_result,
            stop=stop,
        )

    return run
