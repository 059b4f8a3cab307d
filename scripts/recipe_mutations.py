"""Mistakes that a recipe may have: mutations of keys, values, types, structure and bytes, for `fuzz_recipes.py`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainkit.recipe.toml.aliases import ALIASES
from trainkit.recipe.toml.schema import leaves

ROOT = Path(__file__).resolve().parents[1]
NAME = "mutant.toml"
#: What may begin a line of a recipe: a key with its value.
PAIR = re.compile(r"^(\s*)([\w.\"'-]+)(\s*=\s*)(.+)$")


NUMBERS = (
    *re.findall(r"\S+", "0 -1 1 2 7 0.5 -0.0 1e-400 1e-50 1e20 1e300 1e308 -1e308 inf -inf nan 600.0 1e10 0o777 0b1"),
    *re.findall(r"\d\S*", "1000000007 2147483647 4294967296 9223372036854775807 9223372036854775808 200000000"),
    *("1_000_000_000_000", "10000000000000", "0x" + "f" * 5000, "9" * 5000, "1" + "0" * 400),
)
WORDS = (
    *(
        '""',
        '" "',
        '"10%"',
        '"1B"',
        '"4k"',
        '"8GB"',
        '"10m"',
        '"1e-4"',
        '"true"',
        '"None"',
        '"auto"',
        '"AdamW"',
        '"gpt2"',
    ),
    *('"fp32"', '"bf16"', '"cuda"', '"qlora"', '"wandb"', '"s3://user:secret@bucket/x?token=abc"', '"../../x"', '"~"'),
    *('"a\\u0000b"', '"\\u001b[31m"', f'"{"x" * 300}"', f'"{"x/" * 3000}"', '"{a,b}{c"', '"**/*"', '"{0..9}"', '"[a-"'),
    *(
        '"{000..999999999}.txt"',
        '"{{ unclosed"',
        "'''\nmany\nlines\n'''",
        '"日本語"',
        '"a;rm -rf x"',
        '"x.jsonl"',
        '"/"',
    ),
)
OTHERS = (
    *("true", "false", "[]", "{}", "[[]]", "[{}]", "[1]", '["a"]', "[true, 1, 'a', {}]", "{ type = 'x' }", "{ a = 1 }"),
    *("1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[1, 2, 3, 4, 5]", "[0.9, 0.95]", "[[0, 3.0]]", "[0, 3.0]"),
    *("{ type = 1 }", "{ type = [] }", "[" * 40 + "]" * 40, "{ train = {} }", '"adamw"', '{ type = "adamw" }'),
)


class Case(NamedTuple):
    """A mutant, and which mutations made it."""

    text: bytes
    made_by: str


def mutants(seed: int) -> Iterator[Case]:
    """Yield mutants without end, the same for the same seed."""
    chance = random.Random(seed)
    recipes = recipes_to_mutate()
    while True:
        text = chance.choice(recipes)
        names = chance.choices(list(MUTATIONS), k=chance.choice((1, 1, 1, 2, 3)))
        for name in names:
            text = MUTATIONS[name](text, chance)
        data = text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.05:
            data, names = mutate_bytes(data, chance), [*names, "bytes"]
        yield Case(data, " ".join(names))


def recipes_to_mutate() -> list[str]:
    """Return the texts of the repository's recipes that need nothing from a hub and no other file."""
    found = [path.read_text() for path in sorted((ROOT / "recipes").glob("*.toml"))]
    return [text for text in found if "pretrained" not in text and "../" not in text]


def _pair(text: str, chance: random.Random) -> tuple[list[str], int, re.Match[str]] | None:
    lines = text.split("\n")
    pairs = [(number, match) for number, line in enumerate(lines) if (match := PAIR.match(line))]
    if not pairs:
        return None
    number, match = chance.choice(pairs)
    return lines, number, match


def _in_pair(change: Callable[[str, str, random.Random], tuple[str, str]]) -> Callable[[str, random.Random], str]:
    """Return a mutation of one key and its value."""

    def mutate(text: str, chance: random.Random) -> str:
        if (found := _pair(text, chance)) is None:
            return text
        lines, number, match = found
        key, value = change(match[2], match[4], chance)
        lines[number] = f"{match[1]}{key}{match[3]}{value}"
        return "\n".join(lines)

    return mutate


def _misspell(key: str, value: str, chance: random.Random) -> tuple[str, str]:
    at = chance.randrange(len(key))
    ways = (
        key.upper(),
        key.title(),
        key.replace("_", "-"),
        key.replace("_", ""),
        key[:at] + key[at + 1 :] or "x",
        key[:at] + chance.choice("abcxyz_-") + key[at:],
        f"{key}s",
        f'"{key}"',
        f"{key}.{key}",
        f'"{key} "',
    )
    return chance.choice(ways), value


def _alias(key: str, value: str, chance: random.Random) -> tuple[str, str]:
    return chance.choice(sorted(ALIASES)), value


def _replace_by(choices: tuple[str, ...]) -> Callable[[str, str, random.Random], tuple[str, str]]:
    return lambda key, value, chance: (key, chance.choice(choices))


def _scale(key: str, value: str, chance: random.Random) -> tuple[str, str]:
    """Change the numbers inside a value, whatever is around them."""
    return key, re.sub(r"(?<![\w.])\d[\d_.]*(e-?\d+)?", lambda found: chance.choice(NUMBERS), value, count=1)


def _add_key(text: str, chance: random.Random) -> str:
    """Add a key that some section has, with a value of any kind, to any section."""
    lines = text.split("\n")
    lines.insert(chance.randrange(len(lines) + 1), f"{chance.choice(all_names())} = {any_value(chance)}")
    return "\n".join(lines)


def _add_section(text: str, chance: random.Random) -> str:
    """Add one to three keys of the language by their full names, each with a value of any kind."""
    added = []
    for key in chance.sample(all_keys(), chance.randint(1, 3)):
        brackets = ("[[", "]]") if chance.random() < 0.2 else ("[", "]")
        added.append(f"{brackets[0]}{'.'.join(key[:-1]) or 'run'}{brackets[1]}\n{key[-1]} = {any_value(chance)}")
    return "\n".join([text, *added])


def _drop_line(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    del lines[chance.randrange(len(lines))]
    return "\n".join(lines) or "schema = 1"


def _swap_lines(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _repeat_line(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return "\n".join(lines)


def _change_header(text: str, chance: random.Random) -> str:
    headers = re.findall(r"^\[.*\]$", text, re.MULTILINE)
    if not headers:
        return text
    old = chance.choice(headers)
    name = old.strip("[]")
    parts = name.split(".")
    new = chance.choice(
        (
            f"[{name}]",
            f"[[{name}]]",
            f"[{name.upper()}]",
            f"[{parts[-1]}]",
            f"[x.{name}]",
            f"[{name}s]",
            f"[{name}.{name}]",
            "",
        )
    )
    return text.replace(old, new, 1)


def _as_yaml(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    first = chance.randrange(len(lines))
    for number in range(first, min(len(lines), first + chance.choice((1, 3, 100)))):
        lines[number] = re.sub(r"^\[+([\w.]+)\]+$", r"\1:", PAIR.sub(r"\1\2: \4", lines[number]))
    return "\n".join(lines)


def _add_top(text: str, chance: random.Random) -> str:
    lines = (
        'extends = "missing.toml"',
        f'extends = ["{NAME}"]',
        'extends = "."',
        "extends = 3",
        'extends = ""',
        'extends = "a\\u0000b"',
        f'extends = "{"x" * 300}"',
        'plugins.files = ["missing.py"]',
        'plugins.files = "toy_data.py"',
        "mode.toy.train.steps = -1",
        "mode.x.model.layers = 1e10",
        "mode = 3",
        "mode.x = 3",
        "x" + ".x" * 2000 + " = 1",
        "x = " + "[" * 3000 + "]" * 3000,
        "sweep.parameters.'train.steps' = [1, 1e300]",
        "sweep.parameters.'optimizer.learning_rate' = { low = 1e-300, high = 1e300, scale = 'log' }",
        "schema = 2",
        "schema = '1'",
    )
    return f"{chance.choice(lines)}\n{text}"


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return a file with some bytes changed, removed or inserted, or cut short."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 10))):
        at = chance.randrange(len(changed) or 1)
        match chance.randrange(5):
            case 0 if changed:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at:at] = chance.choice(
                    (b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\x1b[2J", b"\xe2\x80\xae")
                )
            case 2:
                del changed[at : at + chance.choice((1, 5, 100))]
            case 3:
                changed[at:at] = chance.randbytes(3)
            case _:
                del changed[at:]
    return bytes(changed)


MUTATIONS: dict[str, Callable[[str, random.Random], str]] = {
    "misspelt-key": _in_pair(_misspell),
    "alias": _in_pair(_alias),
    "number": _in_pair(_replace_by(NUMBERS)),
    "scaled": _in_pair(_scale),
    "word": _in_pair(_replace_by(WORDS)),
    "other-type": _in_pair(_replace_by(OTHERS)),
    "added-key": _add_key,
    "added-section": _add_section,
    "dropped-line": _drop_line,
    "swapped-lines": _swap_lines,
    "repeated-line": _repeat_line,
    "changed-header": _change_header,
    "yaml": _as_yaml,
    "top": _add_top,
}


def any_value(chance: random.Random) -> str:
    """Return a value of any kind, as TOML."""
    return chance.choice(chance.choice((NUMBERS, WORDS, OTHERS)))


@cache
def all_keys() -> list[tuple[str, ...]]:
    """Return every key of the recipe language outside lists."""
    return [tuple(map(str, key)) for key in leaves()]


@cache
def all_names() -> list[str]:
    """Return the name of every key, each once."""
    return sorted({key[-1] for key in all_keys()})
