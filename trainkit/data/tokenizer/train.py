"""Training a byte-level BPE on a sample of the training text (Sennrich et al. 2016; bytes as in Radford et al. 2019).

The tokenizer can write every text, and gives it back exactly.

Parts of sources are drawn by a keyed hash of where they are, so the sample is the same in every process and in
whatever order files are listed: the parts of each source with the lowest numbers are used (Vitter 1985, Random
Sampling with a Reservoir, has the idea; numbers that follow from places need no generator). Where not all text fits,
each source has its share.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainkit.data import jobs
from trainkit.data.documents.pieces import Refused
from trainkit.data.jobs import Reporter, Stop
from trainkit.data.sources.digests import Contents, of_value
from trainkit.data.sources.source_file import SourceFile, read_all
from trainkit.data.sources.splits import divide, treatment
from trainkit.data.sources.units import Unit, units_of
from trainkit.data.storage import write_file
from trainkit.data.tokenizer.special_tokens import END_OF_TEXT, MASK
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import Source
from trainkit.recipe.sections.tokenizer import TrainTokenizer
from trainkit.text import plural

#: Raise it when the same text would give another tokenizer than before.
_FORMAT = 2
#: At most this many times `max_bytes` is read of a source, up to the end of a file or of a part that can be read by
#: itself.
READ = 4
#: Characters of the parts in which longer texts are drawn.
PART = 1 << 15


def path_of(data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn]) -> Path:
    """Return where the tokenizer trained on these parts of sources is kept, named by everything that it depends on."""
    parts = [each.signature(data.held_out) for each in drawn]
    key = of_value([_FORMAT, spec.vocab_size, spec.max_bytes, spec.seed, data.held_out, parts, *_special(spec)[1:]])
    return Path(data.cache) / "tokenizers" / key / "tokenizer.json"


def train(path: Path, data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn], reporter: Reporter) -> None:
    """Train a tokenizer and keep it at `path`.

    It sees a sample of `max_bytes` of the training text, without held-out documents. Pairs that occur once are not
    merged, so little text gives a smaller vocabulary than `vocab_size`.

    Raises:
        TrainkitError: there is no text, or a document cannot be read and `on_error` is "stop".
    """

    def job(stop: Stop) -> str:
        return _train(data, spec, drawn, reporter, stop)

    # in a thread of its own, because Rust does not look for Ctrl-C while it trains
    (content,) = jobs.run([job], workers=1, tick=reporter.tick)
    with write_file(path) as out:
        out.write(content.encode())


def _train(data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn], reporter: Reporter, stop: Stop) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,
        special_tokens=_special(spec),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    refused: list[tuple[str, Refused]] = []
    texts = sample_texts(data, spec, drawn, reporter, stop, refused)
    first = next(texts, None)
    if first is None:
        raise _no_text(data, [(place, why) for place, why in refused if not why.filtered])
    tokenizer.train_from_iterator(chain([first], texts), trainer)
    return tokenizer.to_str()


def _no_text(data: Data, unreadable: Sequence[tuple[str, Refused]]) -> TrainkitError:
    problem = "the training documents hold no text to train a tokenizer on"
    if unreadable:
        place, why = unreadable[0]
        documents = plural(len(unreadable), "document")
        return TrainkitError(
            f"{problem}: {documents} cannot be read, such as {place}: {why.problem}",
            where="data.train",
            hint='data.on_error = "skip" leaves out documents, not a whole source: fix or remove the source',
        )
    hint = "give files that are not empty" + (", or a smaller data.held_out" if data.held_out else "")
    return TrainkitError(problem, where="data.train", hint=hint)


def _special(spec: TrainTokenizer) -> list[str]:
    """Return the special tokens of a tokenizer, beginning with the one that every tokenizer has."""
    return [END_OF_TEXT, *([MASK] if spec.mask else [])]


@dataclass(frozen=True)
class Drawn:
    """The parts of a source that are read."""

    units: tuple[Unit, ...]
    share: float
    limit: int | None

    def signature(self, held_out: float) -> list[object]:
        """Return everything that the sample of the source depends on, except the seed and `max_bytes`."""
        read = [[self._of(unit, place, held_out) for place in range(len(unit.files))] for unit in self.units]
        return [self.share, self.limit, read]

    @staticmethod
    def _of(unit: Unit, place: int, held_out: float) -> list[object]:
        file, content = unit.files[place], unit.contents[place]
        span = unit.span and astuple(unit.span)
        return [file.name, content.digest, treatment(file, held_out), file.reading.signature, span]


def draw(data: Data, spec: TrainTokenizer, groups: Sequence[Sequence[SourceFile]], contents: Contents) -> list[Drawn]:
    """Return the parts that are read of each source, whose files are a group: all of it unless it is much larger than
    `max_bytes`, nothing if it is never trained on. A source with a `limit` is read from its beginning."""
    parts = []
    for number, (source, files, share) in enumerate(zip(data.train, groups, _shares(data.train, groups), strict=True)):
        units = list(units_of(files, contents)) if share else []
        if source.limit is None:
            units.sort(key=lambda unit: _number(spec.seed, number, unit.files[0].name, unit.span and unit.span.first))
        parts.append(Drawn(tuple(_first(units, READ * spec.max_bytes)), share, source.limit))
    return parts


def sample_texts(
    data: Data,
    spec: TrainTokenizer,
    drawn: Sequence[Drawn],
    reporter: Reporter,
    stop: Stop,
    refused: list[tuple[str, Refused]],
) -> Iterator[str]:
    """Yield the sample: about `max_bytes` of text, or all text, without held-out documents. No more is held in memory.
    Documents that cannot be read are added to `refused`.

    Raises TrainkitError if a document cannot be read and `on_error` is "stop".
    """
    kept = _Kept(spec.max_bytes, [source.share for source in drawn])
    for source, each in enumerate(drawn):
        read = documents = place = 0
        for file, index, first, text, held_out in _documents(data, each, refused):
            stop.check()
            documents += first
            # a remote source of unknown size may not end in reasonable time
            endless = not file.size and read >= READ * spec.max_bytes
            if endless or (each.limit is not None and documents > each.limit):
                break
            if held_out:  # it counts towards the limit, as in the cache
                continue
            place = 0 if first else place
            reporter.add(documents=first)
            for begin in range(0, len(text), PART):
                content = text[begin : begin + PART].encode()
                kept.add(source, _number(spec.seed, source, file.name, index, place), content)
                reporter.add(bytes=len(content))
                read, place = read + len(content), place + 1
    yield from kept.texts()


def _documents(
    data: Data, drawn: Drawn, refused: list[tuple[str, Refused]]
) -> Iterator[tuple[SourceFile, int, bool, str, bool]]:
    """Yield (file, which document of it, whether it begins here, text, whether it is held out) of a source."""
    files = ((file, unit.span) for unit in drawn.units for file in unit.files)
    for split, file, piece in divide(read_all(files, on_error=data.on_error, refused=refused), data.held_out):
        if piece.ids is None:
            yield file, piece.index, piece.first, piece.text, split == "held-out"


class _Kept:
    """The parts of each source with the lowest numbers; together `most` bytes, and at most one part more."""

    def __init__(self, most: int, shares: Sequence[float]) -> None:
        self._most, self._shares = most, shares
        self._heaps: list[list[tuple[int, bytes]]] = [[] for _ in shares]
        self._sizes = [0] * len(shares)
        self._total = 0

    def add(self, source: int, number: int, content: bytes) -> None:
        heapq.heappush(self._heaps[source], (-number, content))
        self._count(source, len(content))
        while self._total > self._most:
            # the source that exceeds its share the most loses its highest number
            filled = (source for source, size in enumerate(self._sizes) if size)
            largest = max(filled, key=lambda source: self._sizes[source] / self._shares[source])
            gone = len(self._heaps[largest][0][1])
            if self._total - gone < self._most:
                return
            heapq.heappop(self._heaps[largest])
            self._count(largest, -gone)

    def _count(self, source: int, size: int) -> None:
        self._sizes[source] += size
        self._total += size

    def texts(self) -> Iterator[str]:
        for heap in self._heaps:
            yield from (content.decode() for _, content in sorted(heap, reverse=True))


def _shares(sources: Sequence[Source], groups: Sequence[Sequence[SourceFile]]) -> list[float]:
    """Return the share of each source in the sample: its weight, or the largest of its stages; without weights its
    size, or equal shares if the size of one is unknown."""
    if any(source.weight is not None for source in sources):
        weights = [source.weight if source.weight is not None else 0.0 for source in sources]
        return [max(w for _, w in weight) if isinstance(weight, tuple) else weight for weight in weights]
    sizes = [sum(file.size for file in files) for files in groups]
    return [float(size) for size in sizes] if all(sizes) else [1.0] * len(sizes)


def _first(units: Iterable[Unit], most: int) -> Iterator[Unit]:
    size = 0
    for unit in units:
        if size >= most:
            return
        yield unit
        size += unit.size


def _number(*place: object) -> int:
    """Return a pseudorandom number of 64 bits that is always the same for the same place."""
    name = "\0".join(map(str, place)).encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=b"trainkit sample").digest(), "little")
