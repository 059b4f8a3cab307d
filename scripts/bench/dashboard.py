"""What a dashboard costs, on a run of a million steps with 50 metrics. This machine is shared: trust the ratios.

uv run python scripts/bench/dashboard.py make      # writes the run through the event log, with its index and without
uv run python scripts/bench/dashboard.py open      # a process from its start to the whole run on the screen
uv run python scripts/bench/dashboard.py refresh   # CPU time to take in a step and draw a page again
uv run python scripts/bench/dashboard.py memory    # the most memory after a look at every page
uv run python scripts/bench/dashboard.py live      # CPU time of `trainkit watch` in a terminal, at five steps a second
uv run python scripts/bench/dashboard.py key       # from a key in that terminal to what it draws
uv run python scripts/bench/dashboard.py latency   # from an event in the log to its text in that terminal
uv run python scripts/bench/dashboard.py ages      # how far header and charts are behind the log beside busy processors
uv run python scripts/bench/dashboard.py viewers   # a trainer with four viewers over the same one without, in turns
uv run python scripts/bench/dashboard.py           # all of it; --keep DIRECTORY to have the run made once only
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import math
import os
import pty
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paired import TRAINKIT, begin

ROWS, COLUMNS = 48, 160
NAMES = ("train/loss", "optimizer/learning_rate", "gradients/norm", "throughput/tokens_per_second", "time/step")
#: Pages by the key that shows them.
KEYS = "12345678"
#: More than the header writes when its clock goes on, less than a page.
PAGE_BYTES = 2000
#: What a terminal is told between two texts.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: The quickstart's model, for ever.
RECIPE = """
schema = 1
[run]
name = "viewed"
directory = {directory}
[model]
type = "gpt2"
layers = 2
hidden = 192
heads = 3
[tokenizer]
train = {{ vocab_size = 4096 }}
[data]
sequence_length = 128
cache = {cache}
[[data.train]]
path = {source}
[train]
steps = 1000000
batch_size = 8
[optimizer]
type = "adamw"
learning_rate = 1e-3
[track]
aim = false
"""


def main() -> None:
    if sys.argv[1:2] == ["headless"]:
        return print(json.dumps(asyncio.run(headless(Path(sys.argv[2])))))
    benchmarks: dict[str, Callable[[Path, argparse.Namespace], None]] = {
        "make": make, "open": open_, "refresh": refresh, "memory": memory,
        "live": live, "key": key, "latency": latency, "ages": ages, "viewers": viewers,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*benchmarks, []], default=[])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--metrics", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a look at a live process; of a turn of viewers")
    parser.add_argument("--keep", type=Path, help="a directory for the run, to be found there again")
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
        run = (arguments.keep or Path(directory)) / f"run-{arguments.steps}-{arguments.metrics}"
        for what in arguments.what or benchmarks:
            if what not in ("make", "viewers") and not run.is_dir():
                make(run, arguments)
            benchmarks[what](run, arguments)


def _say(what: str, found: list[float], unit: str, limit: float, *, digits: int = 0) -> None:
    low, middle, high = (f"{value:.{digits}f}" for value in (min(found), statistics.median(found), max(found)))
    print(f"{what}: {middle} {unit} [{low} to {high}], limit {limit:g}", flush=True)


# ---------------------------------------------------------------------------------------------------------------- make
def make(run: Path, arguments: argparse.Namespace) -> None:
    """Write the run, and some of it without an index beside it, in turns."""
    from trainkit.events.index import NAME as INDEX
    from trainkit.events.tail import NAME

    building = run.with_suffix(".tmp")
    for left in (building, run):
        shutil.rmtree(left, ignore_errors=True)
    building.mkdir(parents=True)
    began = time.perf_counter()
    _write(building, arguments.metrics, 1, arguments.steps)
    seconds = time.perf_counter() - began
    building.rename(run)
    log, index = ((run / name).stat().st_size / 1e6 for name in (NAME, INDEX))
    what = f"{arguments.steps:,} steps x {arguments.metrics} metrics"
    print(f"{what} in {seconds:.0f} s: {log:.0f} MB, index {index:.0f} MB", flush=True)
    with_, without = [], []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            (Path(other) / INDEX).mkdir()  # where no index can be written
            at = arguments.steps // 2
            with_.append(_write(Path(one), arguments.metrics, at, 10_000))
            without.append(_write(Path(other), arguments.metrics, at, 10_000))
    microseconds = [(a - b) * 1e6 for a, b in zip(with_, without, strict=True)]
    _say(f"the index of a step's event of {statistics.median(without) * 1e6:.0f} us", microseconds, "us of CPU", 50)


def _write(run: Path, metrics: int, first: int, steps: int) -> float:
    """A run whose trainer is paused, and not on this host; seconds of CPU time a step that writing it took."""
    from trainkit.events.log import EventLog
    from trainkit.events.schema import SCHEMA

    log = EventLog(run, attempt=1)
    versions = {"trainkit": "bench"}
    log.write(
        "run_started", step=0, schema=SCHEMA, name=run.stem, pid=1, process_started=None, host="bench.invalid",
        recipe="", resumed_from=None, versions=versions, orders=[],
    )  # fmt: skip
    log.write("planned", step=0, total_steps=2 * steps, plan={}, devices=["cpu"])
    spent = 0.0
    for step in range(first, first + steps):
        values = _values(step, metrics)
        began = time.thread_time()
        log.write("step", step=step, metrics=values)
        spent += time.thread_time() - began
        if step % 1000 == 0:
            loss = {"validation/held-out/loss": values["train/loss"]}
            log.write("evaluated", step=step, name="held-out", metrics=loss, seconds=0.1)
            log.write("checkpoint_saved", step=step, kind="rolling", path=f"checkpoints/{step}", bytes=1, seconds=0.1)
    log.write("control", step=first + steps - 1, command="pause", argument=None, detail="", total_steps=None)
    log.close()
    return spent / steps


def _values(step: int, metrics: int) -> dict[str, float]:
    loss = 2 + 6 * math.exp(-step / 1e5) + random.random() / 10
    values = dict(zip(NAMES, (loss, 1e-3, random.random(), 4096 + random.random(), 0.4), strict=True))
    return values | {f"layers/{i:02d}/norm": random.random() for i in range(metrics - len(NAMES))}


# ------------------------------------------------------------------------------------------------------------ headless
async def headless(run: Path) -> dict[str, Any]:
    """Open a run on a screen in memory, in a process of its own; seconds and bytes by name."""
    from trainkit.dashboard.app import Dashboard

    found: dict[str, Any] = {"refresh": []}
    app = Dashboard(run, readonly=True)
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        while app.state != "paused":
            await asyncio.sleep(0.005)
        app.show(everything=True)
        await pilot.pause()
        found["open"] = time.time() - float(os.environ["BENCH_STARTED"])
        found["cpu"] = time.process_time()
        found["opened"] = _status("VmRSS")
        with _Growing(run) as log:
            for page in KEYS:
                await pilot.press(page)
                for place in range(4):
                    log.step()
                    if place % 2:
                        log.tell()
                    began = time.process_time()
                    app.poll()
                    app.show(everything=True)
                    await pilot.pause()
                    found["refresh"].append(time.process_time() - began)
    found["peak"] = _status("VmHWM")
    return found


def _headless(run: Path) -> dict[str, Any]:
    environment = os.environ | {"BENCH_STARTED": repr(time.time())}
    command = [sys.executable, __file__, "headless", str(run)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def open_(run: Path, arguments: argparse.Namespace) -> None:
    found = [_headless(run) for _ in range(arguments.rounds)]
    _say("open", [one["open"] for one in found], "s", 2, digits=2)
    _say("open, of which", [one["cpu"] for one in found], "s of CPU", 2, digits=2)


def refresh(run: Path, arguments: argparse.Namespace) -> None:
    found = _headless(run)["refresh"]
    for page in range(0, len(found), 4):
        _say(f"refresh of page {page // 4 + 1}", [1e3 * one for one in found[page : page + 4]], "ms of CPU", 30)


def memory(run: Path, arguments: argparse.Namespace) -> None:
    found = [_headless(run) for _ in range(3)]
    _say("memory when opened", [one["opened"] / 1e6 for one in found], "MB", 300)
    _say("memory at most", [one["peak"] / 1e6 for one in found], "MB", 300)


def _status(name: str) -> int:
    """Bytes of this process's memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"\n{name}:")[2].split()[0]) * 1024


class _Growing:
    """A log that goes on, and that is afterwards what it was."""

    def __init__(self, run: Path) -> None:
        from trainkit.events.tail import NAME

        self._path = run / NAME
        self._size = self._path.stat().st_size
        with self._path.open("rb") as log:
            log.seek(-(1 << 16), os.SEEK_END)
            last = [json.loads(line) for line in log.read().splitlines()[1:]]
        self._step = max(event["step"] for event in last)
        self._metrics = next(len(event["metrics"]) for event in reversed(last) if event["type"] == "step")

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *_: object) -> None:
        os.truncate(self._path, self._size)

    def step(self) -> tuple[int, float]:
        """The number of the step and its loss."""
        self._step += 1
        metrics = _values(self._step, self._metrics)
        self.write("step", metrics=metrics)
        return self._step, metrics["train/loss"]

    def tell(self) -> None:
        """A line of the log, as long as most."""
        self.write("log", level="info", message=f"after {self._step:,} steps, {'all is well; ' * random.randint(1, 9)}")

    def write(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "t": time.time(), "step": self._step, "attempt": 1, **fields}
        with self._path.open("ab", buffering=0) as log:
            log.write(json.dumps(event).encode() + b"\n")


# ------------------------------------------------------------------------------------------------------------ terminal
class _Viewer:
    """`trainkit watch` in a terminal of its own, drawn and read like one."""

    def __init__(self, run: Path) -> None:
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color"}
        command = [*TRAINKIT, "watch", str(run), "--readonly"]
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        )
        os.close(inside)
        #: What was drawn since it was last emptied: (moment, bytes).
        self.drawn: list[tuple[float, bytes]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> _Viewer:
        self.wait(b"step ", seconds=60)
        time.sleep(5)  # opening is not attending
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        os.close(self._terminal)

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def wait(self, text: bytes = b"", *, bytes_: int = 0, seconds: float = 5.0) -> float:
        """The moment at which so much, and this text in it, had been drawn."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            drawn = list(self.drawn)
            whole = b"".join(part for _, part in drawn)
            if len(whole) > bytes_ and text in whole:
                return drawn[-1][0]
            time.sleep(0.002)
        sys.exit(f"the dashboard did not draw it within {seconds:g} s")

    def text(self) -> str:
        """What was drawn last, with the sequences between."""
        return b"".join(part for _, part in self.drawn[-64:]).decode(errors="replace")

    def cpu(self) -> float:
        """Seconds of CPU time so far, by each process's clock of it, which counts nanoseconds, and threads that have
        ended too; the ticks of /proc/PID/stat are longer than what a viewer uses in a second."""
        # a clock's number is made of the process's as in Linux's include/linux/posix-timers.h; 2: time on a processor
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._pids())

    def signal(self, number: int) -> None:
        for pid in self._pids():
            os.kill(pid, number)

    def _pids(self) -> list[int]:
        """The parent that guards the terminal, and the process that draws."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self._terminal, 1 << 16):
                self.drawn.append((time.perf_counter(), part))


def live(run: Path, arguments: argparse.Namespace) -> None:
    """CPU time over time, each page shown for a while; of five steps a second, with and without a line a second."""
    with _Viewer(run) as viewer, _Growing(run) as log:
        for page in KEYS[:3]:
            viewer.press(page)
            for told, every in (("", math.inf), (", with a line a second", 5)):
                time.sleep(1)
                before, began, steps = viewer.cpu(), time.perf_counter(), 0
                while time.perf_counter() - began < arguments.seconds:
                    log.step()
                    steps += 1
                    if steps % every == 0:
                        log.tell()
                    time.sleep(0.2)
                share = (viewer.cpu() - before) / (time.perf_counter() - began)
                _say(f"live, page {page}{told}", [100 * share], "% of a core", 5, digits=2)


def key(run: Path, arguments: argparse.Namespace) -> None:
    """A page is many bytes, the clock in the header few."""
    found = []
    with _Viewer(run) as viewer:
        for page in "2131" * arguments.rounds:
            time.sleep(0.5 + random.random() / 4)
            viewer.drawn.clear()
            began = time.perf_counter()
            viewer.press(page)
            found.append(1e3 * (viewer.wait(bytes_=PAGE_BYTES) - began))
    _say("key to paint", found, "ms", 50)


def latency(run: Path, arguments: argparse.Namespace) -> None:
    """Beside the five steps a second that go on."""
    found = []
    with _Viewer(run) as viewer, _Growing(run) as log:
        for i in range(4 * arguments.rounds):
            log.step()
            time.sleep(0.5 + random.random() / 2)
            token = b"token%04dend" % i
            began = time.perf_counter()
            log.write("log", level="info", message=token.decode())
            found.append(1e3 * (viewer.wait(token) - began))
    _say("event to screen", found, "ms", 300)


def ages(run: Path, arguments: argparse.Namespace) -> None:
    """Seconds since the first step that is not shown, and CPU time, at five steps a second, every processor taken."""
    from trainkit.dashboard.charts.titles import format_value

    taken = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        with _Viewer(run) as viewer, _Growing(run) as log:
            steps: list[tuple[float, str, str]] = []  # when each was written, and what header and chart show of it
            shown, found = [0, 0], ([], [])
            before, began = viewer.cpu(), time.perf_counter()
            while (now := time.perf_counter()) - began < arguments.seconds:
                step, loss = log.step()
                steps.append((now, f"{step:,}", format_value("train/loss", loss)))
                time.sleep(0.2)
                text, now = ESCAPES.sub("", viewer.text()), time.perf_counter()
                for which, pattern in enumerate((r"step ([\d,]+) /", r"loss +(?:━ train )?([\d.]+)")):
                    last = re.findall(pattern, text)[-1:]
                    shown[which] = max(
                        (n for n, told in enumerate(steps, 1) if told[which + 1] in last), default=shown[which]
                    )
                    missed = steps[shown[which] :]
                    found[which].append(now - missed[0][0] if missed else 0.0)
            share = (viewer.cpu() - before) / (time.perf_counter() - began)
    finally:
        for process in taken:
            process.kill()
            process.wait()
    for what, seconds, limit in zip(("header", "charts"), found, (1, 2), strict=True):
        _say(f"age of the {what}", seconds, "s", limit, digits=2)
    _say("processor time of the viewer", [100 * share / (os.cpu_count() or 1)], "% of the machine", 3, digits=1)


# ------------------------------------------------------------------------------------------------------------- viewers
def viewers(run: Path, arguments: argparse.Namespace) -> None:
    """Steps a second of a trainer while four viewers follow it, over that while they are halted, in turns."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as attached:
        trained = Path(directory) / "viewed"
        trainer = attached.enter_context(_trainer(Path(directory)))
        _until_step(trained, 50)
        views = [attached.enter_context(_Viewer(trained)) for _ in range(4)]
        ratios, rates, shares = [], [], []
        for turn in range(2 * arguments.rounds):
            rate = {}
            for watched in (turn % 2 == 0, turn % 2 == 1):
                for view in views:
                    view.signal(signal.SIGCONT if watched else signal.SIGSTOP)
                time.sleep(6)  # who was halted reads first what it has missed
                before, began = sum(view.cpu() for view in views), time.perf_counter()
                rate[watched] = _rate(trained, arguments.seconds)
                if watched:
                    used = sum(view.cpu() for view in views) - before
                    shares.append(100 * used / (time.perf_counter() - began) / (os.cpu_count() or 1))
                assert trainer.poll() is None, "the trainer has ended"
            ratios.append(100 * (1 - rate[True] / rate[False]))
            rates.append(rate[False])
    told = f"loss of throughput with 4 viewers, of {statistics.median(rates):.1f} steps/s"
    _say(told, ratios, "%", 1, digits=1)
    _say("processor time of the 4 viewers", shares, "% of the machine", 1, digits=1)


@contextlib.contextmanager
def _trainer(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    source, recipe = directory / "text.jsonl", directory / "recipe.toml"
    text = Path(asyncio.__file__).parent.glob("*.py")
    source.write_text("".join(json.dumps({"text": path.read_text()}) + "\n" for path in text))
    values = {"directory": directory, "cache": directory / "cache", "source": source}
    recipe.write_text(RECIPE.format(**{name: json.dumps(str(value)) for name, value in values.items()}))
    with (directory / "printed").open("wb") as printed:
        process = subprocess.Popen([*TRAINKIT, "run", str(recipe), "--plain"], stdout=printed, stderr=printed)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _until_step(run: Path, step: int) -> None:
    from trainkit.events.tail import Tail

    tail, until = Tail(run), time.monotonic() + 300
    while time.monotonic() < until:
        if any(event["step"] >= step for event in tail.poll()):
            return
        time.sleep(0.2)
    sys.exit(f"no step {step}: {(run.parent / 'printed').read_text()[-2000:]}")


def _rate(run: Path, seconds: float) -> float:
    """Steps a second, from the first to the last that is told within so many seconds."""
    from trainkit.events.tail import NAME, Tail

    tail = Tail(run, offset=(run / NAME).stat().st_size)
    time.sleep(seconds)
    steps = [event for event in tail.poll(limit_bytes=1 << 28) if event["type"] == "step"]
    return (steps[-1]["step"] - steps[0]["step"]) / (steps[-1]["t"] - steps[0]["t"])


if __name__ == "__main__":
    main()
