"""Training a byte-level BPE on the training documents (Sennrich et al. 2016; bytes as in Radford et al. 2019).

It can write every text, and gives it back exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainkit.data import jobs
from trainkit.data.jobs import Stop
from trainkit.data.progress import Reporter
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import writing
from trainkit.data.tokenizer import sample
from trainkit.data.tokenizer.sample import Drawn
from trainkit.data.tokenizer.special_tokens import END_OF_TEXT
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.tokenizer import TrainTokenizer

#: Raise it when the same text would give another tokenizer than before.
_FORMAT = 2


def path_of(data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn]) -> Path:
    """Where the tokenizer that is trained on these parts of sources is kept: named by all that it depends on."""
    parts = [each.signature(data.held_out) for each in drawn]
    key = of_value([_FORMAT, spec.vocab_size, spec.max_bytes, spec.seed, data.held_out, parts])
    return Path(data.cache) / "tokenizers" / key / "tokenizer.json"


def train(path: Path, data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn], reporter: Reporter) -> None:
    """Train a tokenizer and keep it at `path`.

    It sees a sample of the training text, without what is held out, of `max_bytes`. Pairs that occur once are not
    merged, so that little text gives a vocabulary smaller than asked for.

    Raises:
        TrainkitError: there is no text, or a document cannot be read and `on_error` is "stop".
    """

    def job(stop: Stop) -> str:
        return _train(data, spec, drawn, reporter, stop)

    # in a thread of its own, because Rust does not look for Ctrl-C while it trains
    (content,) = jobs.run([job], workers=1, tick=reporter.tick)
    with writing(path) as out:
        out.write(content.encode())


def _train(data: Data, spec: TrainTokenizer, drawn: Sequence[Drawn], reporter: Reporter, stop: Stop) -> str:
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
    texts = sample.texts(data, spec, drawn, reporter, stop)
    first = next(texts, None)
    if first is None:
        raise TrainkitError(
            "the training documents hold no text to train a tokenizer on",
            where="data.train",
            hint="give files that are not empty" + (", or a smaller data.held_out" if data.held_out else ""),
        )
    tokenizer.train_from_iterator(chain([first], texts), trainer)
    return tokenizer.to_str()
