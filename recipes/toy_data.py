"""A trainkit plugin: rows for the toy recipes, made from the Python that runs trainkit or from a seed.

A recipe beside this file names it in `[plugins]` and has `[[data.train]] type = "toy"`. To train on rows of your own,
write a `path` instead: the comments of `ROWS` say what a row holds.
"""

from __future__ import annotations

import ast
import hashlib
import io
import keyword
import random
import re
import sys
import sysconfig
import textwrap
import tokenize
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from trainkit.recipe.sections.source import CustomRows
from trainkit.recipe.spec import Count

Rows = Iterator[Mapping[str, Any]]

#: Packages of the standard library, the classes of `modules`.
PACKAGES = ("asyncio", "email", "multiprocessing", "unittest", "xml")
#: Statements of several lines.
BLOCKS = (ast.FunctionDef, ast.If, ast.For, ast.While, ast.With, ast.Try)
#: Words of a row with tags.
WORDS = 40
#: About a function.
QUESTIONS = (
    "what is its name", "what is its first parameter", "what is its last parameter", "what does it return",
    "what does it raise",
)  # fmt: skip
DRAWN_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
#: English, German and the gender of nouns.
NOUNS = (
    ("dog", "Hund", "m"), ("man", "Mann", "m"), ("bird", "Vogel", "m"), ("tree", "Baum", "m"),
    ("cat", "Katze", "f"), ("woman", "Frau", "f"), ("cow", "Kuh", "f"),
    ("horse", "Pferd", "n"), ("child", "Kind", "n"), ("house", "Haus", "n"),
)  # fmt: skip
#: English, and German without an ending.
ADJECTIVES = (
    ("small", "klein"), ("big", "groß"), ("old", "alt"), ("young", "jung"),
    ("red", "rot"), ("white", "weiß"), ("quick", "schnell"), ("new", "neu"),
)  # fmt: skip
#: English without an ending, the German present, and the participle.
VERBS = (
    ("paint", "malt", "gemalt"), ("follow", "verfolgt", "verfolgt"), ("visit", "besucht", "besucht"),
    ("greet", "grüßt", "gegrüßt"), ("need", "braucht", "gebraucht"), ("clean", "putzt", "geputzt"),
)  # fmt: skip
#: The German article, and the ending of an adjective after it, by English article, case and gender.
ARTICLES = {
    ("the", "nominative"): {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")},
    ("the", "accusative"): {"m": ("den", "en")},
    ("a", "nominative"): {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    ("a", "accusative"): {"m": ("einen", "en")},
}


class Toy(CustomRows):
    """Rows of one of the toy tasks, divided by file into data to train on, to choose by and to report."""

    type: Literal["toy"]
    rows_of: Literal[
        "modules", "tags", "pairs", "shuffled", "formed", "judged", "neighbours", "calls", "questions", "reversed",
        "copied", "translated", "numbers",
    ]  # fmt: skip
    """What the rows are."""
    split: Literal["train", "dev", "test"] = "train"
    """The training data, or data that is not in it: `dev` to choose settings by, `test` to report."""
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


def formed(split: str) -> Rows:
    """Yield the first line of a function, a loop and so on, with the rest of it and with the rest without two of its
    signs, which Python cannot parse."""
    for path in files(split):
        lines = source(path).splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, BLOCKS) or not 2 <= (node.end_lineno or 0) - node.lineno <= 7:
                continue
            prompt, *rest = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).splitlines()
            chosen = "\n" + "\n".join(rest)
            rejected = without_signs(chosen, 2, random.Random(f"{path.name}:{node.lineno}"))
            if parses(prompt + chosen) and not parses(prompt + rejected):
                yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def without_signs(text: str, count: int, generator: random.Random) -> str:
    """Return a text without `count` of its brackets, colons, quotes and so on."""
    places = [place for place, character in enumerate(text) if character in "()[]{}:,'\"=."]
    gone = generator.sample(places, min(count, len(places)))
    return "".join(character for place, character in enumerate(text) if place not in gone)


def parses(text: str) -> bool:
    """Return whether a text is Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


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


def questions(split: str) -> Rows:
    """Yield functions, each with a question about it and the place of the answer; some return or raise nothing."""
    for path in files(split):
        for node in ast.walk(ast.parse(source(path))):
            if not isinstance(node, ast.FunctionDef) or not 1 <= (node.end_lineno or 0) - node.lineno <= 12:
                continue
            lines = source(path).splitlines()[node.lineno - 1 : node.end_lineno]
            context = textwrap.dedent("\n".join(lines))
            if not context.isascii() or len(context) > 500 or not parses(context):
                continue
            question = random.Random(f"{path.name}:{node.lineno}").choice(QUESTIONS)
            found = answer(question, context)
            if found is not None:
                text, start = ([found[0]], [found[1]]) if found else ([], [])
                yield {"question": question, "context": context, "answers": {"text": text, "answer_start": start}}


def answer(question: str, context: str) -> tuple[str, int] | tuple[()] | None:
    """Return the text that answers a question about a function, and its first character; () where nothing does, None
    where several parts do."""
    (function,) = ast.parse(context).body
    assert isinstance(function, ast.FunctionDef)
    if question == QUESTIONS[0]:
        return function.name, context.index(function.name, len("def "))
    nodes: list[ast.AST | None]
    if question in QUESTIONS[1:3]:
        nodes = [*function.args.args][:1] if question == QUESTIONS[1] else [*function.args.args][-1:]
    else:
        kind = ast.Return if question == QUESTIONS[3] else ast.Raise
        found = [node for node in ast.walk(function) if isinstance(node, kind)]
        nodes = [node.value if isinstance(node, ast.Return) else node.exc for node in found]
    parts = [node for node in nodes if isinstance(node, ast.arg | ast.expr)]
    if len(parts) != 1:
        return None if parts else ()
    start = sum(len(line) + 1 for line in context.split("\n")[: parts[0].lineno - 1]) + parts[0].col_offset
    text = parts[0].arg if isinstance(parts[0], ast.arg) else ast.get_source_segment(context, parts[0])
    return (text, start) if text else None


def reversed_words(split: str) -> Rows:
    """Yield words, drawn from a seed, and the same words backwards; no line is in two splits."""
    for words in drawn_words(split):
        yield {"source": " ".join(words), "target": " ".join(reversed(words))}


def copied_words(split: str) -> Rows:
    """Yield the same words with themselves."""
    for words in drawn_words(split):
        yield {"source": " ".join(words), "target": " ".join(words)}


def drawn_words(split: str) -> Iterator[list[str]]:
    """Yield four to nine words, drawn from a seed; no line is in two splits."""
    generator = random.Random(split)
    while True:
        words = [generator.choice(DRAWN_WORDS) for _ in range(generator.randrange(4, 10))]
        if split_of(zlib.crc32(" ".join(words).encode())) == split:
            yield words


def translated(split: str) -> Rows:
    """Yield English sentences, drawn from a seed, and the same in German; no sentence is in two splits.

    The article and the ending of an adjective depend on the gender of the noun and on its case, and the participle of
    the perfect comes last.
    """
    generator = random.Random(split)
    while True:
        subject, direct = (noun_phrase(generator, case) for case in ("nominative", "accusative"))
        english, present, participle = generator.choice(VERBS)
        if generator.random() < 0.5:
            verb, target = f"{english}s", f"{subject[1]} {present} {direct[1]}"
        else:
            verb, target = f"has {english}ed", f"{subject[1]} hat {direct[1]} {participle}"
        text = f"{subject[0]} {verb} {direct[0]}"
        if split_of(zlib.crc32(text.encode())) == split:
            yield {"source": text, "target": target}


def noun_phrase(generator: random.Random, case: str) -> tuple[str, str]:
    """Return an article, perhaps an adjective, and a noun, in English and in German."""
    article, (noun, german, gender) = generator.choice(("the", "a")), generator.choice(NOUNS)
    theirs, ending = ARTICLES[article, case if gender == "m" else "nominative"][gender]
    if generator.random() < 0.2:
        return f"{article} {noun}", f"{theirs} {german}"
    adjective, stem = generator.choice(ADJECTIVES)
    return f"{article} {adjective} {noun}", f"{theirs} {stem}{ending} {german}"


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
    "formed": formed,  # the same
    "judged": judged,  # prompt, completion, label
    "neighbours": neighbours,  # query, positive
    "calls": calls,  # text, brackets
    "questions": questions,  # question, context, answers
    "reversed": reversed_words,  # source, target
    "copied": copied_words,  # the same
    "translated": translated,  # the same
    "numbers": numbers,  # x1, x2, x3, x4, y
}


def files(split: str, package: str = "") -> list[Path]:
    """Return the Python files of the standard library, or of one package, that a split consists of."""
    found = [path for number, path in enumerate(mixed_files(package)) if split_of(number) == split]
    return [path for path in found if "encodings" not in path.parts]  # these files repeat each other


@cache
def mixed_files(package: str) -> list[Path]:
    """Return the files of all splits in the order of a hash of their names, which mixes packages."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [path for path in (root / package).rglob("*.py") if not {"site-packages", "test", "tests"} & {*path.parts}]
    return sorted(found, key=lambda path: (zlib.crc32(path.relative_to(root).as_posix().encode()), path))


def split_of(number: int) -> str:
    """Return the split of the file, or of the text, with this number."""
    return {0: "dev", 1: "test"}.get(number % 10, "train")


def source(path: Path) -> str:
    """Return the text of a Python file; an empty one if it cannot be decoded."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return ""
