"""Do to real runs what disks, power and people do, and count what is lost.

uv run python scripts/faults.py                          # all kinds in full: many hours; writes docs/reliability.md
uv run python scripts/faults.py bit-flips --times 500    # one kind, so many faults; writes nothing
uv run python scripts/faults.py --short                  # every kind in at most four minutes together; writes nothing

A kind is a function `(workplace, times, chance) -> Iterator[Outcome]` in a file of `scripts/fault_kinds/`, listed in
`KINDS`. An outcome is `exact` (what an uninterrupted run has, bit for bit), `fell back` (the same, from an older
checkpoint), `refused` (with a message that names the file), `reported` (the run goes on and says what differs), `lost`
(committed work is gone) or `wrong` (another result without a word). The exit code is 1 if anything is lost or wrong.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fault_kinds.bit_flips import flip_bits
from fault_kinds.kills import kill_trainers
from fault_kinds.power_cuts import cut_power
from fault_kinds.soak import soak
from fault_kinds.workplace import OUTCOMES, Outcome, Workplace

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reliability.md"
HEAD = """\
# Faults that were tried

`scripts/faults.py` did this to real runs and wrote this table. *Exact*: the run ended with the same bits as one that
nothing happened to. *Fell back*: the same, after it continued from an older checkpoint. *Refused*: it ended with a
message that names the damaged file. *Reported*: it went on and said what differs. *Lost*: committed work was gone.
*Wrong*: another result without a word.

"""


class Kind(NamedTuple):
    """A kind of fault: how it is tried, and how often in the short and in the long form."""

    attempt: Callable[[Workplace, int, random.Random], Iterator[Outcome]]
    short: int
    long: int


KINDS = {
    "power-cuts": Kind(cut_power, short=2, long=200),
    "bit-flips": Kind(flip_bits, short=200, long=20_000),
    "kills": Kind(kill_trainers, short=4, long=1000),
    "soak": Kind(soak, short=1, long=99),  # thousands of steps, after the first thousand
}


def main() -> int:
    """Try the kinds that the arguments name, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="by default all")
    parser.add_argument("--short", action="store_true", help="few of each kind")
    parser.add_argument("--times", type=int, help="so many of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        workplace = Workplace.make(Path(place))
        for name in arguments.kinds or KINDS:
            kind = KINDS[name]
            times = arguments.times or (kind.short if arguments.short else kind.long)
            rows.append(try_kind(name, kind, workplace, times, random.Random(f"{arguments.seed} {name}")))
            print(rows[-1], flush=True)
    table = table_of(rows)
    print(f"\n{table}")
    if not (arguments.short or arguments.times or arguments.kinds):
        DOCUMENT.write_text(HEAD + table)
    return int(any(row.counts["lost"] or row.counts["wrong"] for row in rows))


class Row(NamedTuple):
    """What became of the faults of one kind."""

    kind: str
    tried: int
    counts: Counter[str]
    seconds: float

    def __str__(self) -> str:
        counts = " | ".join(str(self.counts[outcome]) for outcome in OUTCOMES)
        return f"| {self.kind} | {self.tried} | {counts} | {self.seconds / 60:.1f} min |"


def try_kind(name: str, kind: Kind, workplace: Workplace, times: int, chance: random.Random) -> Row:
    """Try a kind of fault so many times, and print what was lost or wrong at once."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for outcome in kind.attempt(workplace, times, chance):
        counts[outcome.result] += 1
        if counts.total() % 10 == 0:
            print(f"{name}: {counts.total()} of {times}: {dict(counts)}", file=sys.stderr, flush=True)
        if outcome.result in ("lost", "wrong"):
            print(f"{name}: {outcome.result}: {outcome.what}", file=sys.stderr, flush=True)
    return Row(name, counts.total(), counts, time.monotonic() - started)


def table_of(rows: list[Row]) -> str:
    """Return the table in Markdown, with the date and the machine below it."""
    head = f"| kind | tried | {' | '.join(OUTCOMES)} | time |\n|---|{'---|' * (len(OUTCOMES) + 2)}\n"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return head + "".join(f"{row}\n" for row in rows) + f"\n{datetime.date.today():%Y-%m-%d}, {machine}.\n"


if __name__ == "__main__":
    sys.exit(main())
