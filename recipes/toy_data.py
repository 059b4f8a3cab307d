"""A trainkit plugin: rows for the toy recipes, made from the Python that runs trainkit or from a seed.

A recipe beside this file names it in `[plugins]` and has `[[data.train]] type = "toy"`. To train on rows of your own,
write a `path` instead: the comments of `ROWS` say what a row holds.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import random
import re
import sys
import sysconfig
import tokenize
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from trainkit.recipe.sections.source import CustomRows
from trainkit.recipe.spec import Count

Rows = Iterator[Mapping[str, Any]]

#: Packages of the standard library, the classes of `modules`.
PACKAGES = ("asyncio", "email", "multiprocessing", "unittest", "xml")
#: Words of a row with tags.
WORDS = 40
WORDS_TO_REVERSE = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Toy(CustomRows):
    """Rows of one of the toy tasks, divided by file into training and test data."""

    type: Literal["toy"]
    rows_of: Literal["modules", "tags", "pairs", "shuffled", "judged", "neighbours", "calls", "reversed", "numbers"]
    """What the rows are."""
    split: Literal["train", "test"] = "train"
    """The training data, or files that are not in it."""
    count: Count = 3000
    """The most rows to make."""

    def identity(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
        return f"{self.count} {self.rows_of} {self.split} of Python {sys.version.split()[0]} {digest}"

    def rows(self) -> Rows:
        return islice(ROWS[self.rows_of](self.split), self.count)


def modules(split: str) -> Rows:
    """Yield pieces of modules, each with the package that it comes from."""
    for package in PACKAGES:
        for path in files(split, package):
            lines = [line for line in source(path).splitlines() if line.strip()]
            for start in range(0, len(lines) - 7, 12):
                yield {"text": "\n".join(lines[start : start + 12]), "package": package}


def tags(split: str) -> Rows:
    """Yield the tokens of Python files with what each of them is."""
    for path in files(split):
        try:
            found = list(tokenize.generate_tokens(io.StringIO(source(path)).readline))
        except (tokenize.TokenError, SyntaxError):
            continue
        tokens = [token for token in found if token.string.strip() and token.type != tokenize.COMMENT]
        tokens = [token for token in tokens if "\n" not in token.string and len(token.string) < 40]
        tagged = [(token.string, tag(tokens, place)) for place, token in enumerate(tokens)]
        for start in range(0, len(tagged), WORDS):
            words, kinds = zip(*tagged[start : start + WORDS], strict=True)
            yield {"words": list(words), "tags": list(kinds)}


def tag(tokens: list[tokenize.TokenInfo], place: int) -> str:
    """Return what a token is, which for a name depends on the tokens around it."""
    token = tokens[place]
    before = tokens[place - 1].string if place else ""
    after = tokens[place + 1].string if place + 1 < len(tokens) else ""
    match token.type:
        case tokenize.NUMBER:
            return "number"
        case tokenize.NAME:
            pass
        case tokenize.OP:
            return "operator"
        case _:
            return "string"
    if keyword.iskeyword(token.string):
        return "keyword"
    if before in ("def", "class"):
        return "definition"
    if after == "(":
        return "call"
    return "attribute" if before == "." else "name"


def pairs(split: str) -> Rows:
    """Yield lines of a file, the lines after them, and these again with two words swapped."""
    return _pairs(split, exchanged=2)


def shuffled(split: str) -> Rows:
    """Yield the same, but with all words in another order."""
    return _pairs(split, exchanged=1000)


def _pairs(split: str, *, exchanged: int) -> Rows:
    for path in files(split):
        lines = [line for line in source(path).splitlines() if line.strip()]
        for start in range(0, len(lines) - 7, 24):
            chosen = "\n" + "\n".join(lines[start + 4 : start + 7])
            rejected = exchange(chosen, exchanged, random.Random(f"{path.name}:{start}"))
            if rejected != chosen:
                yield {"prompt": "\n".join(lines[start : start + 4]), "chosen": chosen, "rejected": rejected}


def exchange(text: str, count: int, generator: random.Random) -> str:
    """Return a text with up to `count` of its words moved; a text of few words does not change."""
    parts = re.split(r"(\s+)", text)
    words = [place for place, part in enumerate(parts) if part.strip()]
    if len(words) > 4:
        places = generator.sample(words, min(count, len(words)))
        for place, word in zip(places, [parts[at] for at in (*places[1:], places[0])], strict=True):
            parts[place] = word
    return "".join(parts)


def judged(split: str) -> Rows:
    """Yield lines of a file, each with a good answer, the lines after them, or a bad one, these in another order."""
    for number, row in enumerate(shuffled(split)):
        good = number % 2 == 0
        yield {"prompt": row["prompt"], "completion": row["chosen" if good else "rejected"], "label": good}


def neighbours(split: str) -> Rows:
    """Yield lines of a file and the lines after them."""
    for path in files(split):
        lines = [line for line in source(path).splitlines() if line.strip()]
        for start in range(0, len(lines) - 11, 24):
            query, positive = ("\n".join(lines[at : at + 6]) for at in (start, start + 6))
            if query != positive:
                yield {"query": query, "positive": positive}


def calls(split: str) -> Rows:
    """Yield lines of a file with how many brackets they open, divided by ten."""
    for path in files(split):
        lines = [line for line in source(path).splitlines() if line.strip()]
        for start in range(0, len(lines) - 7, 16):
            text = "\n".join(lines[start : start + 8])
            yield {"text": text, "brackets": text.count("(") / 10}


def reversed_words(split: str) -> Rows:
    """Yield words, drawn from a seed, and the same words backwards."""
    generator = random.Random(split)
    while True:
        words = [generator.choice(WORDS_TO_REVERSE) for _ in range(generator.randrange(4, 10))]
        yield {"source": " ".join(words), "target": " ".join(reversed(words))}


def numbers(split: str) -> Rows:
    """Yield four numbers, drawn from a seed, and a function of them."""
    generator = random.Random(split)
    while True:
        x1, x2, x3, x4 = (generator.gauss(0, 1) for _ in range(4))
        yield {"x1": x1, "x2": x2, "x3": x3, "x4": x4, "y": x1 - 2 * x2 + x3 * x4 + generator.gauss(0, 0.1)}


#: The function that yields the rows, by name. A row has the keys
ROWS: dict[str, Callable[[str], Rows]] = {
    "modules": modules,  # text, package
    "tags": tags,  # words, tags
    "pairs": pairs,  # prompt, chosen, rejected
    "shuffled": shuffled,  # the same
    "judged": judged,  # prompt, completion, label
    "neighbours": neighbours,  # query, positive
    "calls": calls,  # text, brackets
    "reversed": reversed_words,  # source, target
    "numbers": numbers,  # x1, x2, x3, x4, y
}


def files(split: str, package: str = "") -> list[Path]:
    """Return the Python files of the standard library, or of one package, in an order that mixes packages.

    Every tenth file in the order of a hash of their names is a test file.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = [path for path in (root / package).rglob("*.py") if not {"site-packages", "test", "tests"} & {*path.parts}]
    drawn = sorted((zlib.crc32(path.relative_to(root).as_posix().encode()), path) for path in found)
    return [path for number, path in drawn if (number % 10 == 0) == (split == "test")]


def source(path: Path) -> str:
    """Return the text of a Python file; an empty one if it cannot be decoded."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return ""
