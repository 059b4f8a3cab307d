"""A log that grows to gigabytes: one process writes it and another follows it, and neither may grow with it; then each
reader reads the whole of it.

The events are made up: steps with as many metrics as those of a real run. The rest is real: each line is written by the
trainer's `EventLog`, with its index, and read by what the list of runs, the dashboard and a resume read it with.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fault_kinds.workplace import Outcome, Workplace
from trainkit.events.damage import damage
from trainkit.events.log import EventLog
from trainkit.events.schema import SCHEMA
from trainkit.events.tail import NAME, Tail, last_step
from trainkit.rundir.follow import LogFollower
from trainkit.rundir.summary import SummaryReader

SCRIPTS = Path(__file__).resolve().parents[1]
#: Bytes of the log that one outcome is about, and metrics of a step beside its loss.
PART, METRICS = 100_000_000, 40
#: How much more memory a process may take for a longer log: a share, and bytes that allocators keep.
GROWTH, SLACK = 1.05, 8 << 20
#: Bytes of the buckets of all metrics in a viewer, which has at most 8192 of each however long the run is.
BUCKETS = (METRICS + 1) * 8192 * 11 * 8


class Read(NamedTuple):
    """What a reader found, and what it took."""

    step: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:.0f} MB, {self.seconds:.1f} s"


def grow_logs(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Write a log of so many parts, and yield for each whether its writer and its tail take more memory than for the
    first; then whether the readers of all of it do."""
    with tempfile.TemporaryDirectory(prefix="long-log-") as directory:
        run = Path(directory) / "run"
        run.mkdir()
        assert shutil.disk_usage(run).free > 1.2 * times * PART, f"no room for {times * PART:,} bytes: set TMPDIR"
        log, first, readings = EventLog(run, attempt=1), (0, 0), dict[str, Read]()
        for part, taken in enumerate(_parts(run, log, times, chance)):
            first = first if part else taken
            grown = any(now > GROWTH * before + SLACK for now, before in zip(taken, first, strict=True))
            what = f"{(part + 1) * PART / 1e9:g} GB: writer {_mb(taken[0])}, tail {_mb(taken[1])}"
            yield Outcome("wrong" if grown else "exact", f"{what}; at first {_mb(first[0])}, {_mb(first[1])}")
            readings = readings or _read_by_all(run)
        log.close()
        for name, read in _read_by_all(run).items():
            print(f"{name} of {times * PART / 1e9:g} GB: {read}; of the first part: {readings[name]}", file=sys.stderr)
            allowed = GROWTH * readings[name].bytes + SLACK + (BUCKETS if name == "follow" else 0)
            found = "lost" if read.step != log.step else "wrong" if read.bytes > allowed else "exact"
            yield Outcome(found, f"{name}: step {read.step} of {log.step}, {read}; of the first part {readings[name]}")


def _parts(run: Path, log: EventLog, times: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Write the log part by part; yield after each the memory of this process and of the tail."""
    log.write("run_started", step=0, **_STARTED)
    step = 0
    with subprocess.Popen(_python("tail", run), cwd=SCRIPTS, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        try:
            for part in range(times):
                while (run / NAME).stat().st_size < (part + 1) * PART:
                    step += 1
                    log.write("step", step=step, metrics=_metrics(step, chance))
                log.write("log", step=step, level="info", message="the end of a part")
                yield _memory(), int(tail.stdout.readline())
        finally:
            tail.kill()


_STARTED = {"schema": SCHEMA, "name": "long", "pid": 1, "process_started": None, "host": "", "recipe": "",
            "resumed_from": None, "versions": {}, "orders": []}  # fmt: skip


def _metrics(step: int, chance: random.Random) -> dict[str, float]:
    return {"train/loss": 1 + 1 / step, **{f"statistics/of/layer/{n}": chance.random() for n in range(METRICS)}}


def _memory(kind: str = "VmRSS") -> int:
    """Return the bytes of this process in memory or, as `VmHWM`, the most that they have been."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[kind].split()[0])


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _python(what: str, run: Path) -> list[str]:
    return [sys.executable, "-m", "fault_kinds.long_logs", what, str(run)]


def _read_by_all(run: Path) -> dict[str, Read]:
    """Return what each reader finds and takes, in a process of its own."""
    readings = {}
    for name in READERS:
        done = subprocess.run(_python(name, run), cwd=SCRIPTS, stdout=subprocess.PIPE, text=True, check=True)
        readings[name] = Read(*json.loads(done.stdout))
    return readings


def _summary(run: Path) -> int:
    reader = SummaryReader(run)
    reader.read()
    assert reader.facts is not None
    return reader.facts.step


def _follow(run: Path) -> int:
    follower = LogFollower(run)
    while follower.advance(seconds=1):
        pass
    return follower.view.step


def _damage(run: Path) -> int:
    """Return the last step if the log has all up to it, which a resume checks where its checksum is another."""
    step = last_step(run)
    found = damage(run, (5, "00000000"), step=step, attempt=1)
    return step if found and "no step is missing" in found else -1


READERS: Mapping[str, Callable[[Path], int]] = {
    "last step": last_step, "summary": _summary, "follow": _follow, "damage": _damage,
}  # fmt: skip


def _tail(run: Path) -> None:
    """Follow a log for ever, and print after each part how much memory that takes."""
    tail = Tail(run)
    while True:
        events = tail.poll(limit_bytes=1 << 18)  # as trackers do
        for event in events:
            if event["type"] == "log":
                print(_memory(), flush=True)
        if not events:
            time.sleep(0.05)


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "tail":
        _tail(place)
    started = time.monotonic()
    found = READERS[what](place)
    print(json.dumps([found, _memory("VmHWM"), time.monotonic() - started]))
