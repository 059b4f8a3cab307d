"""The tables of `docs/reliability.md`: what became of faults of each kind, and of flips in each kind of file."""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fault_kinds.workplace import OUTCOMES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
HEAD = """\
# Faults that were tried

`scripts/faults.py --write` caused these faults in real runs and wrote this page. `scripts/faults.py --short` tries
some of each kind in at most four minutes, and the test suite (`tests/test_faults.py`) some power cuts, kills and flips.

Each fault has one outcome. *Exact*: the run ended with the same bits as an undisturbed run. *Fell back*: the same,
but after it continued from an older checkpoint. *Refused*: the run ended with a message that names the damaged file.
*Reported*: the run continued and said what differs. *Lost*: committed work was gone, or there was a traceback. *Wrong*:
the result differs, and nothing said so. *Resumed* counts the outcomes for which a process resumed the run to its end.

- **kills**: a trainer gets SIGKILL at a random moment of its start, its steps, its saves and its evaluations. The run
  is resumed and killed again, and at last resumed to its end. The arrays of the last checkpoint and the loss of every
  step are compared with those of an undisturbed run.
- **power-cuts**: a run trains on an ext4 file system in a file. The file is copied while the trainer is stopped and
  mounted elsewhere; the run in it is resumed to its end and compared in the same way. Data that the trainer wrote but
  did not flush is missing from the copy. Not tried: disks that lose or reorder what the file system has flushed.
- **bit-flips**: one bit of one file of a killed run, its checkpoints or its cache is flipped, each kind of file
  equally often. About one run in 100 is resumed to its end and compared in the same way. To try so many of the others,
  one process reads them all, through trainkit's own functions: everything that a resume reads, which is the recipe, the
  tokenizer, every training and validation batch, the arrays of the newest whole checkpoint, and the log. Every later
  step is a function of these, so each is compared with what it was before the flip.
- **soak**: a run of many thousand steps is saved, evaluated, sampled, paused and watched. A part of 1,000 steps is
  exact if the trainer's memory is at most 5 % more than after 10,000 steps, with at most 2 more descriptors and 2 more
  threads.
- **long-logs**: a log of many gigabytes is written and followed, 100 MB at a time, in the same way.
- **recipes**: a recipe of the repository gets up to three mistakes in keys, values, types, structure or bytes, and is
  checked. *Exact*: the recipe is still valid. *Refused*: the error names the file, the line and the key. *Lost*: a
  traceback, an error without one of these, or an answer that takes longer than 5 seconds.

"""
COLUMNS = ("tried", "resumed", *OUTCOMES)


class Row(NamedTuple):
    """What became of the faults of one kind, or of those in one kind of file."""

    name: str
    counts: Counter[str]
    resumed: int
    note: str
    """How long it took, when and on which machine; nothing in a row of a kind of file."""

    @staticmethod
    def of(kind: str, tally: Counter[tuple[str, bool, str]], *, seconds: float, last: str = "") -> Iterator[Row]:
        """Yield the row of a kind, and one for each kind of file that its faults were in.

        Args:
            last: what the last outcome says, for kinds that measure something.
        """
        machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
        note = f"{seconds / 60:.0f} min, {datetime.date.today():%Y-%m-%d}, {machine}"
        yield _row(kind, tally, f"{note}; {last}" if last else note)
        for where in sorted({where for where, _, _ in tally if where}):
            part = Counter({key: count for key, count in tally.items() if key[0] == where})
            yield _row(f"`{where}`", part, "")

    @property
    def is_bad(self) -> bool:
        """Return whether anything was lost, or wrong without a word."""
        return bool(self.counts["lost"] or self.counts["wrong"])

    def __str__(self) -> str:
        numbers = (self.counts.total(), self.resumed, *(self.counts[outcome] for outcome in OUTCOMES))
        cells = [self.name, *(f"{number:,}" for number in numbers), *([self.note] if self.note else [])]
        return f"| {' | '.join(cells)} |"


def _row(name: str, tally: Counter[tuple[str, bool, str]], note: str) -> Row:
    counts: Counter[str] = Counter()
    for (_, _, result), count in tally.items():
        counts[result] += count
    return Row(name, counts, sum(count for (_, resumed, _), count in tally.items() if resumed), note)


def written(document: str, rows: Sequence[Row]) -> str:
    """Return the document with these rows. Rows of other kinds stay as they were."""
    lines = [line for line in document.splitlines() if line.startswith("| ") and not line.startswith("| kind")]
    if any(row.name.startswith("`") for row in rows):  # all kinds of files are tried together
        lines = [line for line in lines if not line.startswith("| `")]
    table = {line.split("|")[1].strip(): line for line in lines} | {row.name: str(row) for row in rows}
    kinds = [line for name, line in sorted(table.items()) if not name.startswith("`")]
    kept_files = [line for name, line in sorted(table.items()) if name.startswith("`")]
    text = HEAD + "\n".join([*_head("kind", "time, date, machine"), *kinds]) + "\n"
    if kept_files:
        text += "\n## Bit flips by kind of file\n\n" + "\n".join([*_head("kind of file"), *kept_files]) + "\n"
    return text


def _head(first: str, *more: str) -> tuple[str, str]:
    columns = (first, *COLUMNS, *more)
    return f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"
