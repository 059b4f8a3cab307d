"""Check wrong recipes by the thousand, and report every answer that helps nobody.

uv run python scripts/fuzz_recipes.py                       # 20,000 cases, at most 15 minutes
uv run python scripts/fuzz_recipes.py --cases 500 --seed 7  # others
uv run python scripts/fuzz_recipes.py --train 200           # also try 200 of the accepted ones with `run --smoke`

Each case is a recipe of the repository with up to three mutations: of keys, values, types, structure or bytes. It is
checked as `trainkit check` does it, in this process. An answer is bad if it is another exception than `TrainkitError`,
if it takes more than 5 seconds of CPU time, or if it does not name the file, the line and (except for a syntax error)
the key that stands there. The exit code is 1 if there is a bad answer. The mutants with bad answers are written to
`--keep`.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from trainkit.cli.check import check
from trainkit.errors import TrainkitError
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.schema import keys_of, root

sys.path.insert(0, str(Path(__file__).parent))

from recipe_mutations import NAME, ROOT, Case, all_names, mutants

#: Seconds of CPU time after which an answer counts as a hang.
LIMIT = 5.0
#: A right recipe that only a larger machine can train says so.
TOO_LARGE = re.compile(r"(this machine|it|which) has [\d.]+ [kMGT]B|does not fit in the memory of|has no memory left")
#: Bytes of memory of the process. Nothing that is checked needs a hundredth of it.
MEMORY = 8 << 30


class Answer(NamedTuple):
    """What `check` said of a mutant."""

    result: str
    """`accepted`, `refused`, or how it is bad: `hang`, `fault`, `no place`, `no key`; of two steps `late` or `slow`, or
    `too large` for this machine, which is not bad."""
    said: str


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


@contextmanager
def limited_memory() -> Iterator[None]:
    """Raise MemoryError in the block for a recipe that asks for far too much memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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
    """Return how two steps with an accepted mutant end: `late` is a failure that `check` missed."""
    from recipe_trials import TOO_LONG, trial  # it imports jax

    fewer = list[str]()
    for key in ("train.0.limit", "train.0.count", "validation.0.limit", "validation.0.count"):  # two steps need no more
        with suppress(TrainkitError):
            check(path, [*fewer, f"data.{key}=1000"])
            fewer.append(f"data.{key}=1000")
    code, said = trial(path, path.parent / "output.txt", fewer)
    if code == 0:
        return Answer("accepted", said)
    if code == TOO_LONG:
        return Answer("slow", said)
    if code in (1, 2) and TOO_LARGE.search(said):
        return Answer("too large", said)
    faults = ("this is a bug in trainkit", "Traceback", "AssertionError")
    is_fault = code not in (1, 2) or any(fault in said for fault in faults)
    return Answer("fault" if is_fault else "late", said)


def judge(said: str, path: Path) -> str:
    """Return `refused` if a refusal names the place of each mistake and the key there, else what is missing."""
    if re.search(r"toml(:\d+)*: (not TOML|is not UTF-8|nested too|\[.*\] is written twice)", said):
        return "refused"
    lines = path.read_text("utf-8-sig", "replace").split("\n")
    for block in said.split("\n\n")[1:] or [said]:
        place = re.match(r"[^\n]*?\.(toml|py)(?::(\d+))?(?=[: )])", block)
        if place is None:
            return "no place"
        words = set(re.findall(r"[\w-]+", block[place.end() :].split("\n  hint:")[0]))
        missing = re.match(r": (section )?\[*[\w.]+\]* is missing", block[place.end() :])
        if place[2] is None and not missing:  # what is missing from the whole file has no line
            return "no place"
        is_own = place[0].endswith((NAME, f"{NAME}:{place[2]}"))
        known = known_words() if missing or not is_own or place[2] is None else names_at(int(place[2]), lines)
        if not words & known:
            return "no key"
    return "refused"


def names_at(number: int, lines: list[str]) -> set[str]:
    """Return the names of the keys or of the section in a line, or in the line where its value begins."""
    for line in reversed(lines[:number]):
        before = line.partition("=")[0] if "=" in line else line if line.lstrip().startswith("[") else ""
        if names := set(re.findall(r"[\w-]+", before)) | set(re.findall(r"[\w-]+(?=\s*=)", line)):
            return names
    return set()


@cache
def known_words() -> set[str]:
    """Return the names of all keys and sections."""
    return {*all_names(), *keys_of(root())}


def summary_of(text: Any) -> str:
    """Return the last line of a bad answer without its numbers, so that answers of one kind are counted together."""
    lines = [line for line in str(text).strip().split("\n") if line.strip()]
    return re.sub(r"\d+", "N", lines[-1])[:150] if lines else ""


class Findings:
    """How many answers of each kind there were, and the bad ones."""

    def __init__(self, seed: int, keep: Path | None) -> None:
        self.results: Counter[str] = Counter()
        self.bad: Counter[tuple[str, str]] = Counter()
        self._seed, self._keep = seed, keep

    def add(self, number: int, case: Case, answer: Answer) -> None:
        """Count the answer to a case; print it if it is bad, and keep the mutant where a directory was given for it."""
        self.results[answer.result] += 1
        if answer.result in ("accepted", "refused", "too large"):
            return
        self.bad[answer.result, summary_of(answer.said)] += 1
        print(f"\n--- {number} ({case.made_by}): {answer.result}\n{answer.said[-1500:]}", flush=True)
        if self._keep:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / f"{self._seed}-{number}.toml").write_bytes(case.text)


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
    stops: list[int] = []
    for stop in (signal.SIGINT, signal.SIGTERM):  # finish the current case, then print what was found so far
        signal.signal(stop, lambda received, frame: stops.append(received))
    findings, tried, started = Findings(arguments.seed, arguments.keep), set[str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place, limited_memory():
        path = make_workplace(Path(place))
        for number, case in zip(range(arguments.cases), mutants(arguments.seed), strict=False):
            path.write_bytes(case.text)
            answer = answer_to(path)
            if answer.result == "accepted" and len(tried) < arguments.train:
                recipe = repr(load(path).recipe)
                if recipe not in tried:
                    tried.add(recipe)
                    answer = try_out(path)
                    print(f"{len(tried)} of {arguments.train} tried, the last {answer.result}", flush=True)
            elif len(tried) == arguments.train > 0:
                break
            findings.add(number, case, answer)
            if stops or time.monotonic() - started > arguments.seconds:
                print(f"stopped early, after {time.monotonic() - started:.0f} seconds")
                break
    for (result, said), count in findings.bad.most_common():
        print(f"{count:5} {result}: {said}")
    counts, seconds = findings.results, time.monotonic() - started
    print(f"seed {arguments.seed}: {counts.total()} cases in {seconds:.0f} s: {dict(counts)}; {len(tried)} tried")
    return int(bool(findings.bad))


if __name__ == "__main__":
    sys.exit(main())
