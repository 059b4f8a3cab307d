"""What trainkit costs over a bare loop, paired in one run. This machine is shared: trust the ratios.

uv run python scripts/bench.py loop          # the loop over the bare jitted step; the dashboard over the loop
uv run python scripts/bench.py start         # --help, check, and the way to the first step
uv run python scripts/bench.py quickstart    # bits per byte after the same time as scripts/bare.py
uv run python scripts/bench.py               # all of it
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import platform
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "quickstart.toml"
BARE = ROOT / "scripts" / "bare.py"
TRAINKIT = [sys.executable, "-m", "trainkit"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["loop", "start", "quickstart", []], default=[])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=180.0, help="for scripts/bare.py in quickstart")
    arguments = parser.parse_args()
    # with it every start would compile trainkit's modules anew, which no user's does
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(
        f"# {time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}"
    )
    for what in arguments.what or ["loop", "start", "quickstart"]:
        with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
            {"loop": loop, "start": start, "quickstart": quickstart}[what](Path(directory), arguments)


# ---------------------------------------------------------------------------------------------------------------- loop
def loop(directory: Path, arguments: argparse.Namespace) -> None:
    """Median step time of the bare compiled step, of trainkit's loop, and of the loop with a dashboard attached."""
    ready = _Prepared(directory)
    samples: dict[str, list[float]] = {"bare step": [], "loop": [], "loop and dashboard": []}
    for round_ in range(arguments.rounds):
        order = list(samples)[round_ % 3 :] + list(samples)[: round_ % 3]
        for name in order:
            if name == "bare step":
                samples[name].append(ready.bare())
            elif name == "loop":
                samples[name].append(ready.looped())
            else:
                with _dashboard(ready.directory):
                    samples[name].append(ready.looped())
    for name, base in (("loop", "bare step"), ("loop and dashboard", "loop")):
        ratios = [a / b for a, b in zip(samples[name], samples[base], strict=True)]
        _print(f"{name} / {base}", ratios, f"{statistics.median(samples[name]) * 1e3:.1f} ms a step")


class _Prepared:
    """The quickstart recipe, compiled, with a state that goes from one measurement to the next."""

    STEPS = 30

    def __init__(self, directory: Path) -> None:
        import jax

        from trainkit.data.batches.dataset import TrainSet
        from trainkit.data.cache import build as caches
        from trainkit.events.log import EventLog
        from trainkit.parallel import mesh
        from trainkit.recipe.toml.load import load
        from trainkit.run.prepare import plan_of
        from trainkit.run.program import build, compile_program
        from trainkit.rundir.directory import create
        from trainkit.train.prefetch import to_device

        overrides = [f"run.directory={directory}", "track.aim=false", "train.steps=1000000"]
        loaded = load(RECIPE, [*overrides, f"data.cache={ROOT / 'cache'}"])
        self.directory, self.recipe = create(loaded), loaded.recipe
        cache = caches.build(self.recipe)
        self.data = TrainSet(cache, self.recipe)
        self.plan = plan_of(self.recipe, cache, self.data)
        self.built = build(self.recipe, self.plan)
        self.log = EventLog(self.directory, attempt=1)
        self.sharding = mesh.batch_sharding(self.built.mesh)
        self.state = jax.jit(self.built.initial, out_shardings=self.built.shardings)(jax.random.key(0))
        self.step = compile_program(self.built, self.plan, self.data.layouts())
        accumulation = self.plan.batch.accumulation
        self.batches = [
            to_device(self.data.batch(i), accumulation=accumulation, sharding=self.sharding) for i in range(8)
        ]

    def bare(self) -> float:
        """Seconds a step: batches on the device beforehand, nothing fetched, one step in flight."""
        import jax

        times, pending = [], None
        for i in range(self.STEPS):
            self.state, metrics = self.step(self.state, self.batches[i % 8])
            if pending is not None:
                jax.block_until_ready(pending)
                times.append(time.perf_counter())
            pending = metrics
        jax.block_until_ready(pending)
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def looped(self) -> float:
        """Seconds a step as the event log tells them: feed, meter, log, control and all."""
        from trainkit.events.control import Server
        from trainkit.events.log import Tail
        from trainkit.train.compilations import Compilations
        from trainkit.train.control import Commands
        from trainkit.train.live_schedule import LiveSchedule
        from trainkit.train.loop import Job, train
        from trainkit.train.metrics import MetricsWriter, StepWork
        from trainkit.train.prefetch import Prefetch
        from trainkit.train.profile import Profile

        first = int(self.state.step)
        tail = Tail(self.directory)
        tail.poll()
        feed = Prefetch(
            self.data.batch,
            count=self.built.task.count,
            first=first,
            last=first + self.STEPS,
            split=self.plan.batch,
            sharding=self.sharding,
        )
        server, compilations = Server(self.directory), Compilations(self.log)
        course = LiveSchedule(self.recipe.schedule, steps=first + self.STEPS, live=self.state.live)
        # measured is the loop between checkpoints, not the last one of each short measurement
        saving = SimpleNamespace(
            is_due=lambda step: False, save=lambda *_, **__: None, report=lambda step: None, finish=lambda: None
        )
        meter = MetricsWriter(self.log, data=self.data.epochs, work=StepWork.of(self.plan, tflops=None))
        job = Job(
            recipe=self.recipe,
            course=course,
            step=self.step,
            feed=feed,
            meter=meter,
            orders=Commands(server=server, signal=SimpleNamespace(received=None), log=self.log, course=course),
            log=self.log,
            saving=saving,
            evaluate=lambda state, step: None,
            sample=lambda state, step, prompts=None: None,
            statistics=lambda state, step: None,
            compilations=compilations,
            profile=Profile(self.directory, None, log=self.log, meter=meter),
            watch_helpers=lambda step: None,
        )
        self.state = train(self.state, job).state
        compilations.close()
        feed.close()
        server.close()
        times = [e["metrics"]["time/step"] for e in tail.poll() if e["type"] == "step" and "time/step" in e["metrics"]]
        return statistics.median(times)


@contextlib.contextmanager
def _dashboard(run: Path) -> Iterator[None]:
    """`trainkit watch` in a terminal of its own, drawn and read like one."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
    child = subprocess.Popen(
        [*TRAINKIT, "watch", str(run)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=os.environ | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(inside)
    drawn = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(terminal, 1 << 16):
                drawn.set()

    threading.Thread(target=read, daemon=True).start()
    drawn.wait(30)
    time.sleep(3)  # starting up is not attending
    try:
        yield
    finally:
        child.terminate()
        child.wait()
        os.close(terminal)


# --------------------------------------------------------------------------------------------------------------- start
def start(directory: Path, arguments: argparse.Namespace) -> None:
    typer = (
        "import typer; app = typer.Typer(rich_markup_mode=None, add_completion=False);"
        " app.command()(lambda: None); app()"
    )
    _pair("trainkit --help", [*TRAINKIT, "--help"], "bare typer --help", [sys.executable, "-c", typer, "--help"], 15)
    # both packages import lazily: the second line is what a program that uses pydantic cannot do without
    for imports in ("import pydantic, typer", "import typer; from pydantic import BaseModel"):
        _pair("trainkit check", [*TRAINKIT, "check", str(RECIPE)], imports, [sys.executable, "-c", imports], 15)
    caches = {"warm": directory / "compiled-trainkit", "bare": directory / "compiled-bare"}
    _first_step(directory, caches["warm"])
    _bare_first_step(caches["bare"])
    for name, trainkit_cache, bare_cache in (
        ("first step, compile cache filled", caches["warm"], caches["bare"]),
        ("first step, compile cache empty", None, None),
    ):
        ours, bare = [], []
        for i in range(arguments.rounds):
            ours.append(_first_step(directory, trainkit_cache or directory / f"a{i}"))
            bare.append(_bare_first_step(bare_cache))
        ratios = [a / b for a, b in zip(ours, bare, strict=True)]
        _print(f"{name}: trainkit / bare script", ratios, f"{statistics.median(ours):.2f} s")


def _first_step(directory: Path, compiled: Path) -> float:
    """Seconds from the start of `trainkit run` to the event of step 1, the cache of tokens being there."""
    from trainkit.events.log import read

    name = f"start-{time.monotonic_ns()}"
    command = [*TRAINKIT, "run", str(RECIPE), "--plain", "--name", name]
    for override in (
        f"run.directory={directory}",
        f"data.cache={ROOT / 'cache'}",
        "train.steps=2",
        "track.aim=false",
        "data.held_out=0.03",
        "evaluate.max_batches=1",
        "sample.max_tokens=1",
    ):
        command += ["--set", override]
    began = time.time()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return next(e["t"] for e in read(directory / name) if e["type"] == "step") - began


def _bare_first_step(compiled: Path | None) -> float:
    command = [sys.executable, str(BARE), "--first-step", *(["--compile-cache", str(compiled)] if compiled else [])]
    environment = os.environ | {"BENCH_STARTED": repr(time.time())}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)["first_step_seconds"]


def _pair(name: str, command: list[str], other: str, base: list[str], rounds: int) -> None:
    def seconds(command: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    seconds(command), seconds(base)
    pairs = [(seconds(command), seconds(base)) for _ in range(rounds)]
    _print(f"{name} / {other}", [a / b for a, b in pairs], f"{statistics.median(a for a, _ in pairs):.3f} s")


# ---------------------------------------------------------------------------------------------------------- quickstart
def quickstart(directory: Path, arguments: argparse.Namespace) -> None:
    """The bare script for `--seconds`, then the recipe from an empty cache to its end; both from process start."""
    from trainkit.events.log import read

    environment = os.environ | {"BENCH_STARTED": repr(time.time())}
    command = [sys.executable, str(BARE), "--seconds", str(arguments.seconds)]
    bare = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    print(f"bare script: {arguments.seconds:.0f} s, {json.dumps(bare)}", flush=True)

    began = time.time()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(directory / "compiled")}
    command = [*TRAINKIT, "run", str(RECIPE), "--plain", "--set", f"run.directory={directory}"]
    command += ["--set", f"data.cache={directory / 'cache'}", "--set", f"track.repository={directory}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    whole = time.time() - began
    events = read(directory / "quickstart")
    steps = [e for e in events if e["type"] == "step"]
    final = [e for e in events if e["type"] == "evaluated"][-1]
    rates = [e["metrics"]["throughput/tokens_per_second"] for e in steps[1:]]
    report = {
        "bits_per_byte": final["metrics"]["validation/held-out/bits_per_byte"],
        "loss": final["metrics"]["validation/held-out/loss"],
        "steps": len(steps),
        "tokens_per_second": statistics.median(rates),
        "first_step_seconds": steps[0]["t"] - began,
        "last_step_seconds": steps[-1]["t"] - began,
        "process_seconds": whole,
    }
    print(f"trainkit run recipes/quickstart.toml: {whole:.0f} s, {json.dumps(report)}", flush=True)


def _print(name: str, ratios: list[float], absolute: str) -> None:
    low, high = min(ratios), max(ratios)
    print(f"{name}: x{statistics.median(ratios):.3f}  [{low:.3f} to {high:.3f}]  ({absolute})", flush=True)


if __name__ == "__main__":
    main()
