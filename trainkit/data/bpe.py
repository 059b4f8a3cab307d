"""Training a byte-level BPE on the training documents (Sennrich et al. 2016; bytes as in Radford et al. 2019).

It can write every text, and gives it back exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainkit.data import jobs
from trainkit.data.digests import Contents, of_value
from trainkit.data.documents import read_all
from trainkit.data.jobs import Stop
from trainkit.data.progress import Reporter
from trainkit.data.sources import SourceFile
from trainkit.data.special_tokens import END_OF_TEXT
from trainkit.data.splits import divide, treatment
from trainkit.data.storage import writing
from trainkit.errors import TrainkitError
from trainkit.recipe.data import Data
from trainkit.recipe.tokenizer import TrainTokenizer

#: Raise it when the same text would give another tokenizer than before.
_FORMAT = 1


def path_of(data: Data, spec: TrainTokenizer, files: Sequence[SourceFile], contents: Contents) -> Path:
    """Where the tokenizer that is trained on these files is kept: named by all that it depends on."""
    first = [
        (file.name, contents[file.path].digest, treatment(file, data.held_out), file.reading.signature)
        for file in _first(files, spec.max_bytes)
    ]
    key = of_value([_FORMAT, spec.vocab_size, spec.max_bytes, data.held_out, first])
    return Path(data.cache) / "tokenizers" / key / "tokenizer.json"


def train(path: Path, data: Data, spec: TrainTokenizer, files: Sequence[SourceFile], reporter: Reporter) -> None:
    """Train a tokenizer and keep it at `path`.

    It sees the training text, without what is held out, of the first files that have `max_bytes` on disk, and of
    their text the first `max_bytes`. Pairs that occur once are not merged, so that little text gives a vocabulary
    smaller than asked for.

    Raises:
        TrainkitError: there is no text, or a document cannot be read and `on_error` is "stop".
    """

    def job(stop: Stop) -> str:
        return _train(data, spec, files, reporter, stop)

    # in a thread of its own, because Rust does not look for Ctrl-C while it trains
    (content,) = jobs.run([job], workers=1, tick=reporter.tick)
    with writing(path) as out:
        out.write(content.encode())


def _train(data: Data, spec: TrainTokenizer, files: Sequence[SourceFile], reporter: Reporter, stop: Stop) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _Texts(data, spec.max_bytes, files, reporter, stop)
    tokenizer.train_from_iterator(iter(texts), trainer)
    if not texts.bytes:
        raise TrainkitError(
            "the training documents hold no text to train a tokenizer on",
            where="data.train",
            hint="give files that are not empty" + (", or a smaller data.held_out" if data.held_out else ""),
        )
    return tokenizer.to_str()


class _Texts:
    def __init__(self, data: Data, most: int, files: Sequence[SourceFile], reporter: Reporter, stop: Stop) -> None:
        self._data, self._most, self._files, self._reporter, self._stop = data, most, files, reporter, stop
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        files = [(file, None) for file in _first(self._files, self._most)]
        pieces = read_all(files, on_error=self._data.on_error, refused=[])
        for split, _, piece in divide(pieces, self._data.held_out):
            self._stop.check()
            if split == "held-out" or piece.ids is not None:
                continue
            if self.bytes >= self._most:
                return
            self.bytes += piece.bytes
            self._reporter.add(documents=piece.first, bytes=piece.bytes)
            yield piece.text


def _first(files: Sequence[SourceFile], most: int) -> Sequence[SourceFile]:
    size = 0
    for i, file in enumerate(files):
        size += file.size
        if size >= most:
            return files[: i + 1]
    return files
