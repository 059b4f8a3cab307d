"""A valid recipe for tests, and mistakes put into it line by line."""

from __future__ import annotations

from pathlib import Path

TEXT = """\
schema = 1

[run]
name = "sample"
seed = 3

[model]
type = "gpt2"
layers = 2
hidden = 32
heads = 4

[tokenizer]
train = { vocab_size = 300 }

[data]
sequence_length = 64
held_out = 0.1

[[data.train]]
type = "python-stdlib"

[train]
steps = 20
batch_size = 8

[optimizer]
learning_rate = 1e-3

[schedule]
type = "cosine"
warmup = 0.02
min_ratio = 0.1

[evaluate]
every = 10

[sample]
every = 10
prompts = ["def main("]

[track]
aim = false
"""


def write(directory: Path, text: str = TEXT, name: str = "sample.toml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def changed(*changes: tuple[str, str]) -> str:
    """The sample recipe with whole lines replaced."""
    text = TEXT
    for old, new in changes:
        assert f"\n{old}\n" in f"\n{text}", old
        text = f"\n{text}".replace(f"\n{old}\n", f"\n{new}\n", 1)[1:]
    return text


def line_of(text: str, part: str) -> int:
    """The number of the first line that contains `part`."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)
