"""The tokens of a recipe in the cache, once `build.py` has found or begun to make them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from trainkit.data import storage
from trainkit.data.cache import shards
from trainkit.data.cache.left_out import LeftOut, group_reasons
from trainkit.data.cache.sets import Set
from trainkit.data.cache.stream import Stream
from trainkit.data.jobs import Stop
from trainkit.data.sources.digests import of_value
from trainkit.data.sources.splits import Split
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe import Recipe


class Cache:
    """The tokens of a recipe. Those of the training set, and of its held-out part, may still be growing.

    Attributes:
        directory: of the cache.
        in_use: keeps what the cache holds in place, for as long as this object exists.
        tokenizer: None if documents are not text.
        train: all training sources, one after the other.
        sources: each training source, in the recipe's order.
        validation: by name, in the recipe's order, `held-out` last.
        fingerprint: of the training documents and what makes them tokens. A resumed run must find the same. It is
            known before they are tokenised.
        ledgers: the names of the training sources' ledgers.
        other_ledgers: the names of all others: of held-out documents and of validation sets.
        trained: the training sources, as they are tokenised.
        units: of each source, by the name of the set.
        stop: ends the tokenising of the training set.
    """

    def __init__(self, recipe: Recipe, codec: LoadedTokenizer | None, sets: Sequence[Set], in_use: storage.Use) -> None:
        self.directory, self.tokenizer = Path(recipe.data.cache), codec
        self.in_use = in_use
        self._sets = sets
        self.trained, *own = sets
        trained = self.trained
        first: Split = "train" if recipe.data.held_out else "all"
        self.train, self.sources = trained.streams[first].all, tuple(trained.streams[first].each)
        self.validation: dict[str, Stream] = {group.name: group.streams["all"].all for group in own}
        if trained.apart is not None:
            self.validation["held-out"] = trained.apart
        self.fingerprint = of_value([codec and codec.fingerprint, [source.names[first] for source in trained.sources]])
        self.units = {group.name: [source.units for source in group.sources] for group in sets}
        if recipe.data.held_out:
            self.units["held-out"] = self.units["train"]
        self.ledgers = tuple(source.names[first] for source in trained.sources)
        every = {name for group in sets for source in group.sources for name in source.names.values()}
        self.other_ledgers = tuple(sorted(every - {*self.ledgers}))
        self.stop = Stop()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def text_tokenizer(self) -> LoadedTokenizer:
        """Return the tokenizer of documents that are text."""
        assert self.tokenizer is not None
        return self.tokenizer

    @property
    def vocab_size(self) -> int:
        """Return the number of entries of the tokenizer; 0 if documents are not text."""
        return self.tokenizer.vocab_size if self.tokenizer else 0

    def make_in_background(self, make: Callable[[], None]) -> None:
        """Call `make`, which makes the training set, in a thread.

        Its error is raised to those who wait for tokens, and by `check`.
        """

        def work() -> None:
            try:
                make()
            except BaseException as error:  # whoever waits for a stream would wait for ever
                self._error = error
                for streams in self.trained.streams.values():
                    streams.fail(error)
                if self.trained.apart is not None and not self.trained.apart.complete:
                    self.trained.apart.finish(error)

        self._thread = threading.Thread(target=work, name="cache", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is tokenised. Raises TrainkitError if that is impossible, or a set is empty."""
        for stream in (self.train, *self.validation.values()):
            stream.wait(None)
        if self._thread:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error of tokenising in the background, if there is one."""
        if self._error:
            raise self._error

    def close(self) -> None:
        """Stop tokenising; threads that wait for tokens get `Stopped`."""
        self.stop.set()
        if self._thread:
            self._thread.join(timeout=5)

    @property
    def shards(self) -> list[shards.Shard]:
        """Return every shard once."""
        shards_of = (shard for group in self._sets for source in group.sources for shard in source.shards)
        return list({shard.key: shard for shard in shards_of}.values())

    def list_rejected(self) -> Path:
        """Write the list of all documents that could not be used, a JSON object a line, and return its path.

        Raises TrainkitError.
        """
        path = self.directory / "rejected" / self.fingerprint / "rejected.jsonl"
        with storage.write_file(path) as out:
            for shard in self.shards:
                if shard.refused:
                    out.write(shards.rejected_path(self.directory, shard.key).read_bytes())
        return path

    @property
    def copies(self) -> int:
        """Return how many documents are no longer held out, because the training data has exact copies; 0 until that is
        known."""
        trained, *_ = self._sets
        if trained.apart is None or not trained.apart.complete:
            return 0
        every = trained.streams["held-out"].all.sections
        return sum(section.entries for section in every) - sum(section.entries for section in trained.apart.sections)

    @property
    def left_out(self) -> LeftOut:
        """Return the documents left out so far."""
        every = self.shards
        return LeftOut(
            refused=sum(shard.refused for shard in every),
            examples=tuple(example for shard in every for example in shard.examples),
            reasons=group_reasons(reason for shard in every for reason in shard.reasons),
            filtered=sum(shard.filtered for shard in every),
            empty=sum(shard.empty for shard in every),
        )
