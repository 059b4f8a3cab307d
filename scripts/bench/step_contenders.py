"""The contenders of `step.py`: a process each, warm, asked for one sample after the other."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paired import environment_of
from step_work import Shape, Work

DIRECTORY = Path(__file__).resolve().parent
#: Contenders that run where torch is.
OF_TORCH = ("torch", "transformers")


@dataclass(frozen=True)
class Entry:
    """A contender: whose step, and in which precision."""

    kind: str
    compute: Literal["float32", "bfloat16"]

    def __str__(self) -> str:
        return f"{self.kind} {self.compute}"


@dataclass
class Result:
    """What a contender answered. `ready` is empty where it never became so; then `error` says why."""

    ready: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None

    @property
    def seconds(self) -> list[float]:
        return [sample["step"] for sample in self.samples]


class Process:
    """A contender's process, asked through pipes."""

    def __init__(self, entry: Entry, work: Work, directory: Path, *, python: str, environment: dict[str, str]) -> None:
        mine = directory / str(entry).replace(" ", "-")
        mine.mkdir(parents=True)
        # every first step is a cold one: nobody finds what another run has compiled
        caches = {"JAX_COMPILATION_CACHE_DIR": str(mine / "jax"), "TORCHINDUCTOR_CACHE_DIR": str(mine / "inductor")}
        self._output = mine / "output.txt"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [python, str(DIRECTORY / f"step_{entry.kind}.py"), work.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=environment_of(python) | caches | environment | {"BENCH_STARTED": repr(time.time())},
            )

    def answer(self, end: float) -> dict[str, Any]:
        """The next line; an `error` where the process ended, or was ended because the clock showed `end`."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        clock = threading.Timer(max(0.0, end - time.monotonic()), kill)
        clock.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        clock.cancel()
        if line:
            return json.loads(line)
        status = self._process.wait()
        last = [text for text in self._output.read_text(errors="replace").splitlines() if text.strip()][-1:]
        return {"error": " ".join(["not done in time:" if late.is_set() else f"ended with {status}:", *last])}

    def ask(self, steps: int, end: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer then says that it has ended
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        return self.answer(end)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def compare(
    shape: Shape, entries: list[Entry], arguments: argparse.Namespace, *, on_gpu: bool, apart: bool
) -> dict[Entry, Result]:
    """Samples of every contender: in turn, all being warm, or one contender after the other."""
    results: dict[Entry, Result] = {entry: Result() for entry in entries}
    end = time.monotonic() + arguments.limit
    fraction = {"XLA_CLIENT_MEM_FRACTION": "0.92"} if apart else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory(prefix="bench-step-") as name, contextlib.ExitStack() as processes:
        warm: dict[Entry, Process] = {}
        for entry in entries:
            work = work_of(shape, entry.compute, arguments, on_gpu=on_gpu)
            python = arguments.torch if entry.kind in OF_TORCH else sys.executable
            try:
                process = Process(entry, work, Path(name), python=python, environment=fraction if on_gpu else {})
            except OSError as error:
                results[entry].error = f"{python}: {error.strerror}"
                continue
            processes.callback(process.close)
            answer = process.answer(end)
            results[entry].error = answer.get("error")
            if results[entry].error is not None:
                process.close()  # what it holds is not there for the next one until it has ended
                continue
            results[entry].ready = answer
            if apart:
                for _ in range(arguments.rounds):
                    sample(process, results[entry], seconds=arguments.seconds, end=end)
                process.close()
            else:
                warm[entry] = process
        for entry in in_turn(list(warm), arguments.rounds):
            sample(warm[entry], results[entry], seconds=arguments.seconds, end=end)
    return results


def sample(process: Process, result: Result, *, seconds: float, end: float) -> None:
    """One more, unless the contender has failed before or there are some and no time is left."""
    if result.error is not None or (result.samples and time.monotonic() >= end):
        return
    answer = process.ask(max(1, math.ceil(seconds / result.ready["step"])), end)
    result.error = answer.get("error")
    if result.error is None:
        result.samples.append(answer)


def in_turn(entries: list[Entry], rounds: int) -> Iterator[Entry]:
    for i in range(rounds if entries else 0):
        first = i % len(entries)
        yield from entries[first:] + entries[:first]


def work_of(
    shape: Shape, compute: Literal["float32", "bfloat16"], arguments: argparse.Namespace, *, on_gpu: bool
) -> Work:
    return Work(
        shape=shape,
        compute=compute,
        platform="gpu" if on_gpu else "cpu",
        curve=arguments.curve,
        overrides=tuple(arguments.overrides),
        backend=arguments.torch_backend,
    )
