"""Do to real runs what disks, power and people do, and count what is lost.

uv run python scripts/faults.py --write                  # all kinds in full: hours; writes docs/reliability.md
uv run python scripts/faults.py kills --write            # one kind in full; writes its row
uv run python scripts/faults.py bit-flips --times 500    # one kind, so many faults
uv run python scripts/faults.py --short                  # every kind, in at most four minutes together

A kind is a function `(workplace, times, chance) -> Iterator[Outcome]` in a file of `scripts/fault_kinds/`, listed in
`KINDS`. An outcome is `exact` (what an uninterrupted run has, bit for bit), `fell back` (the same, from an older
checkpoint), `refused` (with a message that names the file), `reported` (the run goes on and says what differs), `lost`
(committed work is gone) or `wrong` (another result without a word). The exit code is 1 if anything is lost or wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fault_kinds.bit_flips import flip_bits
from fault_kinds.kills import kill_trainers
from fault_kinds.long_logs import grow_logs
from fault_kinds.power_cuts import cut_power
from fault_kinds.recipes import check_recipes
from fault_kinds.soak import soak
from fault_kinds.table import DOCUMENT, Row, written
from fault_kinds.workplace import Outcome, Workplace


class Kind(NamedTuple):
    """A kind of fault: how it is tried, and how often in the short and in the long form."""

    attempt: Callable[[Workplace, int, random.Random], Iterator[Outcome]]
    short: int
    long: int
    parallel: bool = True
    """Whether several processes may share the work. If not, the row says what the last outcome measured."""


KINDS = {
    "power-cuts": Kind(cut_power, short=2, long=200),
    "bit-flips": Kind(flip_bits, short=200, long=20_000),
    "kills": Kind(kill_trainers, short=4, long=1000),
    "soak": Kind(soak, short=1, long=90, parallel=False),  # thousands of steps, after the first ten thousand
    "long-logs": Kind(grow_logs, short=2, long=100, parallel=False),  # times 100 MB
    "recipes": Kind(check_recipes, short=200, long=20_000),
}


def main() -> int:
    """Try the kinds that the arguments name, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="by default all")
    parser.add_argument("--short", action="store_true", help="few of each kind")
    parser.add_argument("--times", type=int, help="so many of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="by default one for each core")
    parser.add_argument("--write", action="store_true", help=f"write the rows of these kinds to {DOCUMENT.name}")
    arguments = parser.parse_args()
    # thousands of trainers are started; without cached bytecode each would compile every module it imports
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows = []
    for name in arguments.kinds or KINDS:
        kind = KINDS[name]
        times = arguments.times or (kind.short if arguments.short else kind.long)
        rows += try_kind(name, times, seed=arguments.seed, processes=arguments.processes)
        print(*rows[-1:], flush=True)
        if arguments.write:  # after each kind, which may have taken hours
            DOCUMENT.write_text(written(DOCUMENT.read_text() if DOCUMENT.exists() else "", rows))
    print(f"\n{written('', rows)}")
    return int(any(row.is_bad for row in rows))


def try_kind(name: str, times: int, *, seed: int, processes: int) -> list[Row]:
    """Try a kind of fault so many times, and return its row of the table, followed by one for each kind of file."""
    processes = min(processes, times) if KINDS[name].parallel else 1
    shares = [times // processes + (number < times % processes) for number in range(processes)]
    seeds = [f"{seed} {name} {number}" for number in range(processes)]
    started = time.monotonic()
    if processes == 1:
        tried = [try_share(name, times, seeds[0])]
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            tried = list(pool.map(try_share, [name] * processes, shares, seeds))
    tally = sum((share.tally for share in tried), Counter[tuple[str, bool, str]]())
    last = "" if KINDS[name].parallel else tried[0].last
    return [*Row.of(name, tally, seconds=time.monotonic() - started, last=last)]


class Share(NamedTuple):
    """What became of the faults that one process tried."""

    tally: Counter[tuple[str, bool, str]]
    """How often there was each outcome: (kind of file, whether a process resumed the run, result)."""
    last: str
    """What the last outcome says."""


def try_share(name: str, times: int, seed: str) -> Share:
    """Try a kind of fault `times` times in this process."""
    tally, last = Counter[tuple[str, bool, str]](), ""
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        workplace = Workplace.make(Path(place) / "work")
        for outcome in KINDS[name].attempt(workplace, times, random.Random(seed)):
            tally[outcome.where, outcome.resumed, outcome.result] += 1
            last = outcome.what
            if tally.total() % 100 == 0:
                print(f"{seed}: {tally.total()} of {times}", file=sys.stderr, flush=True)
            if outcome.result in ("lost", "wrong"):
                print(f"{name}: {outcome.result}: {outcome.what}", file=sys.stderr, flush=True)
    return Share(tally, last)


if __name__ == "__main__":
    sys.exit(main())
