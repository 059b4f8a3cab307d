"""Check wrong recipes by the thousand, and report every answer that helps nobody.

uv run python scripts/fuzz_recipes.py                       # 20,000 cases, at most 15 minutes
uv run python scripts/fuzz_recipes.py --cases 500 --seed 7  # others
uv run python scripts/fuzz_recipes.py --train 200           # also try 200 of the accepted ones with `run --smoke`

Each case is a recipe of the repository with up to three mutations: of keys, values, types, structure or bytes. It is
checked as `trainkit check` does it, in this process. An answer is bad if it is another exception than `TrainkitError`,
if it takes more than 5 seconds of CPU time, or if it does not name the file, the line and (except for a syntax error) a
key. The exit code is 1 if there is a bad answer. The mutants with bad answers are written to `--keep`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from trainkit.cli.check import check
from trainkit.errors import TrainkitError
from trainkit.recipe.toml.schema import keys_of, leaves, root
from trainkit.recipe.toml.suggestions import FOREIGN

ROOT = Path(__file__).resolve().parents[1]
#: Seconds of CPU time after which an answer counts as a hang.
LIMIT = 5.0
#: Seconds for two steps.
SMOKE = 120
#: Bytes of memory of the process. Nothing that is checked needs a hundredth of it.
MEMORY = 8 << 30
NAME = "mutant.toml"
#: What may begin a line of a recipe: a key with its value.
PAIR = re.compile(r"^(\s*)([\w.\"'-]+)(\s*=\s*)(.+)$")

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "7",
        "0.5",
        "-0.0",
        "1e-400",
        "1e-50",
        "1e20",
        "1e300",
        "1e308",
        "-1e308",
        "inf",
        "-inf",
        "nan",
    ),
    *("1000000007", "2147483647", "4294967296", "9223372036854775807", "9223372036854775808", "1_000_000_000_000"),
    *("200000000", "10000000000000", "0x" + "f" * 5000, "9" * 5000, "1" + "0" * 400, "0o777", "0b1", "600.0", "1e10"),
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


class Answer(NamedTuple):
    """What `check` said of a mutant."""

    result: str
    """`accepted`, `refused`, or how the answer is bad: `hang`, `fault`, `no place`, `no key`, `late`."""
    said: str


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


def _foreign(key: str, value: str, chance: random.Random) -> tuple[str, str]:
    return chance.choice(sorted(FOREIGN)), value


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
    "foreign-key": _in_pair(_foreign),
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


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after some seconds of CPU time."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("".join(traceback.format_stack(frame, limit=6)))

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def make_workplace(directory: Path) -> Path:
    """Return the path of mutants in a directory, with what they extend and import beside it."""
    for file in (ROOT / "recipes").glob("*.*"):
        shutil.copy(file, directory)
    return directory / NAME


def answer_to(path: Path) -> Answer:
    """Return what `check` says of a recipe file."""
    try:
        with limited(LIMIT):
            return Answer("accepted", str(check(path)))
    except TimeoutError as error:
        return Answer("hang", str(error))
    except TrainkitError as error:
        return Answer(judge(str(error), path), str(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Answer("fault", "".join(traceback.format_exception(error, limit=-4)))


def try_out(path: Path) -> Answer:
    """Return how two steps with an accepted mutant end: `late` is a failure that `check` had not seen.

    What only the data or the machine can tell is no failure of `check`.
    """
    command = [sys.executable, "-m", "trainkit", "run", str(path), "--smoke"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SMOKE)
    except subprocess.TimeoutExpired:
        return Answer("late", f"no end after {SMOKE} s")
    if done.returncode == 0:
        return Answer("accepted", done.stdout)
    faults = ("this is a bug in trainkit", "Traceback", "AssertionError")
    is_fault = done.returncode not in (1, 2) or any(fault in done.stderr for fault in faults)
    return Answer("fault" if is_fault else "late", done.stderr)


def judge(said: str, path: Path) -> str:
    """Return whether a refusal names the place and the key of each mistake."""
    if re.search(r"toml(:\d+)*: (not TOML|is not UTF-8|nested too|\[.*\] is written twice)", said):
        return "refused"
    blocks = said.split("\n\n")[1:] or [said]
    for block in blocks:
        # what is missing from the whole file has no line
        if not re.search(r"\.(toml|py):\d+|\.toml: (section )?\[*[\w.]+\]* is missing", block.split("\n")[0]):
            return "no place"
        if not names_key(block, path):
            return "no key"
    return "refused"


def names_key(block: str, path: Path) -> bool:
    """Return whether a refusal contains a key of the language or of the file."""
    words = set(re.findall(r"[\w-]+", block.partition(".toml")[2]))
    return bool(words & known_words() | words & set(re.findall(r"[\w-]+", path.read_text("utf-8-sig", "replace"))))


@cache
def known_words() -> set[str]:
    """Return the names of all keys and sections."""
    return {*all_names(), *keys_of(root())}


def inside(text: Any) -> str:
    """Return a bad answer in few words, so that equal ones can be counted."""
    lines = [line for line in str(text).strip().split("\n") if line.strip()]
    return re.sub(r"\d+", "N", lines[-1])[:150] if lines else ""


def main() -> int:
    """Check the mutants that the arguments ask for, print the bad answers, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--train", type=int, default=0, help="how many accepted mutants to try with run --smoke")
    parser.add_argument("--keep", type=Path, help="a directory for the mutants with bad answers")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # a mutant may name a model
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    results: Counter[str] = Counter()
    bad: Counter[tuple[str, str]] = Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        path = make_workplace(Path(place))
        for number, case in zip(range(arguments.cases), mutants(arguments.seed), strict=False):
            path.write_bytes(case.text)
            answer = answer_to(path)
            if answer.result == "accepted" and results["trained"] < arguments.train:
                results["trained"] += 1
                answer = try_out(path)
            results[answer.result] += 1
            if answer.result not in ("accepted", "refused"):
                bad[answer.result, inside(answer.said)] += 1
                print(f"\n--- {number} ({case.made_by}): {answer.result}\n{answer.said[-1500:]}", flush=True)
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / f"{arguments.seed}-{number}.toml").write_bytes(case.text)
            if time.monotonic() - started > arguments.seconds:
                print(f"stopped after {arguments.seconds:g} seconds")
                break
    for (result, said), count in bad.most_common():
        print(f"{count:5} {result}: {said}")
    print(f"seed {arguments.seed}: {number + 1} cases in {time.monotonic() - started:.0f} s: {dict(results)}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
