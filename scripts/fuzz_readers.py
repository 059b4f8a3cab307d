"""Let trainkit read files that were changed at random, and report every reader that does not refuse them in words.

uv run python scripts/fuzz_readers.py --minutes 10                 # all readers, with random changes
uv run --with atheris python scripts/fuzz_readers.py events        # one, guided by coverage

The readers and their valid files are in `tests/support/hostile.py`. The exit code is 1 if one of them failed; the file
that it failed on is kept in the working directory.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

#: Seconds that a reader may take.
MOST_SECONDS = 5.0


def main() -> int:
    """Try the readers that the arguments name, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", help="by default all, with random changes")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        if len(arguments.readers) == 1 and (atheris := _atheris()) is not None:
            return guided(atheris, arguments.readers[0], Path(place), minutes=arguments.minutes)
        return changed_at_random(arguments.readers, Path(place), minutes=arguments.minutes, seed=arguments.seed)


def changed_at_random(names: list[str], place: Path, *, minutes: float, seed: int) -> int:
    """Try changed files of each reader in turn; print the number of files and of distinct failures of each."""
    import hostile

    hostile.prepare(place)
    chance, until = random.Random(seed), time.monotonic() + 60 * minutes
    tried: Counter[str] = Counter()
    failures: dict[str, str] = {}
    while time.monotonic() < until:
        for name in names or hostile.READERS:
            reader = hostile.READERS[name]
            content = hostile.changed_content(reader, chance)
            tried[name] += 1
            started = time.monotonic()
            try:
                hostile.try_reader(place, reader, content)
                problem = "" if time.monotonic() - started < MOST_SECONDS else f"it took over {MOST_SECONDS:g} s"
            except BaseException as error:  # a panic of Rust is no Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                problem = traceback.format_exc().splitlines()[-1][:300] + _place_of(error)
            if problem and f"{name}: {problem}" not in failures:
                kept = Path(f"hostile-{hashlib.sha256(content).hexdigest()[:8]}-{Path(reader.name).name}")
                kept.write_bytes(content)
                failures[f"{name}: {problem}"] = str(kept)
                print(f"{name}: {problem}: {kept}", flush=True)
    print(
        f"{sum(tried.values()):,} files, {len(failures)} failures; " + ", ".join(f"{n} {c}" for n, c in tried.items())
    )
    return int(bool(failures))


def _place_of(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "trainkit" in f.filename]
    return f" at {frames[-1].filename.rpartition('trainkit/')[2]}:{frames[-1].lineno}" if frames else ""


def guided(atheris: object, name: str, place: Path, *, minutes: float) -> int:
    """Try files of one reader that reach new lines of code, until one fails or the time is over. Ends the process."""
    with atheris.instrument_imports(include=["trainkit"]):  # type: ignore[attr-defined]
        import hostile
    reader = hostile.READERS[name]
    hostile.prepare(place)
    corpus = place / "corpus"
    corpus.mkdir()
    (corpus / "valid").write_bytes(reader.valid)
    limits = [f"-timeout={MOST_SECONDS:g}", "-rss_limit_mb=4000", f"-max_total_time={60 * minutes:.0f}"]
    arguments = [sys.argv[0], str(corpus), *limits]
    atheris.Setup(arguments, lambda data: hostile.try_reader(place, reader, data))  # type: ignore[attr-defined]
    atheris.Fuzz()  # type: ignore[attr-defined]
    return 0


def _atheris() -> object | None:
    try:
        import atheris
    except ImportError:
        return None
    return atheris  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
