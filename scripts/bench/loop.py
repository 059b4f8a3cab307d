"""What the loop costs over the bare compiled step, and a dashboard over the loop, paired. Trust the ratios.

uv run python scripts/bench/loop.py                           # the recipe of the quickstart
uv run python scripts/bench/loop.py RECIPE --set KEY=VALUE    # another one
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import os
import pty
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from paired import RECIPE, ROOT, TRAINKIT, begin, report


def main() -> None:
    """Print the median step time of the bare compiled step, of the loop, and of the loop with a dashboard attached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", type=Path, default=RECIPE)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30, help="steps of one measurement")
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
        loop(_Prepared(arguments.recipe, arguments.set, Path(directory), arguments.steps), arguments.rounds)


def loop(ready: _Prepared, rounds: int) -> None:
    samples: dict[str, list[float]] = {"bare step": [], "loop": [], "loop and dashboard": []}
    for round_ in range(rounds):
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
        report(f"{name} / {base}", ratios, f"{statistics.median(samples[name]) * 1e3:.1f} ms a step")


class _Prepared:
    """A recipe, compiled, with a state that goes from one measurement to the next."""

    def __init__(self, recipe: Path, given: list[str], directory: Path, steps: int) -> None:
        import jax

        from trainkit.data.batches.dataset import TrainSet
        from trainkit.data.cache import build as caches
        from trainkit.events.log import EventLog
        from trainkit.parallel import mesh
        from trainkit.recipe.toml.load import load
        from trainkit.rundir.directory import create
        from trainkit.train.build import build
        from trainkit.train.planning import plan_of
        from trainkit.train.prefetch import to_device
        from trainkit.train.program import compile_program

        # the rule of bare.py
        rule = 'optimizer={type = "adamw", learning_rate = 2.5e-3}'
        overrides = [f"run.directory={directory}", "track.aim=false", "train.steps=1000000", rule]
        loaded = load(recipe, [*overrides, f"data.cache={ROOT / 'cache'}", *given])
        self.directory, self.recipe, self.steps = create(loaded), loaded.recipe, steps
        cache = caches.build(self.recipe)
        self.data = TrainSet(cache, self.recipe)
        self.plan = plan_of(self.recipe, vocab_size=cache.vocab_size, data=self.data.size())
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
        for i in range(self.steps):
            self.state, metrics = self.step(self.state, self.batches[i % 8])
            if pending is not None:
                jax.block_until_ready(pending)
                times.append(time.perf_counter())
            pending = metrics
        jax.block_until_ready(pending)
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def looped(self) -> float:
        """Return the seconds of a step by the event log, with prefetch, metrics, log and commands."""
        from trainkit.events.control import Server
        from trainkit.events.tail import Tail
        from trainkit.train.best import BestSoFar
        from trainkit.train.compilations import Compilations
        from trainkit.train.control import Commands, LiveSchedule
        from trainkit.train.loop import Job, train
        from trainkit.train.metrics import MetricsWriter, StepWork
        from trainkit.train.prefetch import Prefetch
        from trainkit.train.profile import Profile
        from trainkit.train.watchdog import Watchdog

        first = int(self.state.step)
        tail = Tail(self.directory)
        tail.poll()
        prefetch = Prefetch(
            self.data.batch,
            count=self.built.task.count,
            first=first,
            last=first + self.steps,
            split=self.plan.batch,
            sharding=self.sharding,
        )
        server, compilations = Server(self.directory), Compilations(self.log)
        schedule = LiveSchedule(self.recipe.schedule, steps=first + self.steps, live=self.state.live)
        # measured is the loop between checkpoints, not the last one of each short measurement
        checkpointing = SimpleNamespace(
            is_due=lambda step: False,
            save=lambda *_, **__: False,
            save_and_wait=lambda *_, **__: None,
            report=lambda step: None,
        )
        metrics = MetricsWriter(self.log, data=self.data.epochs, work=StepWork.of(self.plan, tflops=None))
        job = Job(
            recipe=self.recipe,
            schedule=schedule,
            step=self.step,
            prefetch=prefetch,
            metrics=metrics,
            commands=Commands(
                server=server, signal=SimpleNamespace(received=None, count=0), log=self.log, schedule=schedule
            ),
            log=self.log,
            checkpointing=checkpointing,
            best=BestSoFar(self.recipe),
            evaluate=lambda state, step, only=None: None,
            sample=lambda state, step, prompts=None: None,
            statistics=lambda state, step: None,
            compilations=compilations,
            profile=Profile(self.directory, None, log=self.log, metrics=metrics),
            check_health=lambda step: None,
            watchdog=Watchdog(None, lambda waited: None),
        )
        self.state = train(self.state, job).state
        compilations.close()
        prefetch.close()
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


if __name__ == "__main__":
    main()
