"""Exports while training continues: each by a process of its own, from a checkpoint that is on disk, one at a time.

So neither a step nor the devices' memory is disturbed. The processes run on the CPU with what of it nobody else wants.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from trainkit.checkpoint import store
from trainkit.events.log import EventLog
from trainkit.recipe import Recipe
from trainkit.rundir.directory import EXPORTS, as_typed

#: In the run's directory: what the processes printed that export.
OUTPUT = "export.log"
#: Seconds between two words about what the end of a run waits for.
WORD = 30.0
#: More than so many that wait are too many: each has its checkpoint on the disk.
BEHIND = 4


@dataclass(frozen=True)
class _Process:
    """One that exports a step."""

    step: int
    process: subprocess.Popen[bytes]
    started: float
    output: int
    """Where in the run's `export.log` begins what it printed."""


class Exporting:
    """Exports the model as the recipe's `[export]` asks. What goes wrong with an export is an alert, and not raised."""

    def __init__(self, directory: Path, recipe: Recipe, *, first: int, log: EventLog) -> None:
        """Of a run that continues from step `first`: what is missing up to there is exported as well.

        Make it before anything is saved in this attempt, so that no checkpoint is removed that it needs.
        """
        assert recipe.export
        self._directory, self._first, self._log = directory, first, log
        self._every, self._format = recipe.export.every, recipe.export_format
        self._dtype, self._keep_last = recipe.export.dtype, recipe.checkpoint.keep_last
        #: Steps to be exported, the one that is being exported first. Replaced, never changed: two threads read it.
        self._pending: tuple[int, ...] = ()
        self._seen: set[int] = set()
        self._running: _Process | None = None
        self._here = jax.process_index() == 0
        if not self._here:
            return
        aside: list[int] = []
        with self._log_errors("exports of earlier attempts"):
            _remove_drafts(directory / EXPORTS)
            _begin_anew(directory / OUTPUT)
            aside = _set_aside(directory / EXPORTS, beyond=first)
        if aside:
            self._log_message("info", f"set aside: the export of {_steps(aside)}")
        for info in store.checkpoints(directory):
            # one beyond is damaged, and is written again
            if info.step <= first and (info.manifest.kind == "final" or self.wants(info.step)):
                self._queue(info.step)

    def wants(self, step: int, /) -> bool:
        """Whether a checkpoint of this step is to be written, because it is to be exported."""
        return self._every is not None and step % self._every == 0 and step not in self._seen

    def take(self, step: int, /, *, last: bool) -> None:
        """The checkpoint of this step is on disk, whole; `last` of those at the end of a run."""
        if not (last or self.wants(step)):
            return
        self._queue(step)
        made = self._running and self._running.step
        waiting = [each for each in self._pending if each > self._first and each != made]
        if len(waiting) > BEHIND:
            self._pending = tuple(each for each in self._pending if each != waiting[0])
            told = f"step {waiting[0]} is not exported: {BEHIND} others wait, each with its checkpoint on the disk"
            self._log_message("warning", f"{told}; exports take longer than export.every allows: make it larger")

    def held(self) -> tuple[int, ...]:
        """Steps whose checkpoints are still to be exported."""
        return self._pending

    def poll(self) -> None:
        """Tell of an export that has ended, and begin the next one. Does not wait."""
        if self._running is not None and self._running.process.poll() is not None:
            ended, self._running = self._running, None
            self._report(ended)
            self._done_with(ended.step)
        while self._running is None and self._pending:
            self._begin(self._pending[0])

    def finish(self, *, interrupted: Callable[[], bool]) -> bool:
        """Return once all is exported (True), or once it is `interrupted`: a running export ends by itself.

        Call it when nothing is saved any more: checkpoints that were only kept for their export are removed.
        """
        told = -WORD
        try:
            self.poll()
            while self._pending and not interrupted():
                if time.monotonic() - told >= WORD:
                    told = time.monotonic()
                    self._log_message("info", f"waiting for the export of {_steps(self._pending)}")
                time.sleep(0.05)
                self.poll()
        except KeyboardInterrupt:
            pass  # training has ended, and ended well
        if self._pending:
            later = f"trainkit export {as_typed(self._directory)}/STEP OUT"
            what = f"the run did not wait for the export of {_steps(self._pending)}"
            self._log_message("warning", f"{what}; the next attempt exports it; to do it by hand: {later}")
        if not self._here:
            return True
        with self._log_errors("checkpoints that were kept for their export"):
            if newest := store.newest(self._directory):
                store.retain(self._directory, saved=newest.step, keep_last=self._keep_last, held=self._pending)
        return not self._pending

    def _output_directory(self, step: int) -> Path:
        return self._directory / EXPORTS / str(step)

    def _queue(self, step: int) -> None:
        self._seen.add(step)
        if self._here and step not in self._pending and not self._output_directory(step).exists():
            self._pending = (*self._pending, step)

    def _done_with(self, step: int) -> None:
        self._pending = tuple(each for each in self._pending if each != step)

    def _was_exported_elsewhere(self, step: int) -> bool:
        """Whether an export that outlived its attempt has been there before."""
        there = self._output_directory(step).exists()
        if there:
            self._log_message("info", f"step {step} has been exported by a process of an earlier attempt")
        return there

    def _begin(self, step: int) -> None:
        if self._was_exported_elsewhere(step):
            self._done_with(step)
            return
        command = [
            sys.executable,
            "-m",
            "trainkit",
            "export",
            str(self._directory / str(step)),
            str(self._output_directory(step)),
        ]
        command += ["--format", self._format, "--json", *(["--dtype", self._dtype] if self._dtype else [])]
        try:
            with (self._directory / OUTPUT).open("ab") as output:
                begin = output.tell()
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=os.environ | {"JAX_PLATFORMS": "cpu"},
                    # what interrupts the trainer must not cut it off
                    start_new_session=True,
                )
        except OSError as error:
            self._done_with(step)
            self._report_failure(step, f"its process could not be started: {error}")
            return
        _put_last(process.pid)
        self._running = _Process(step, process, time.monotonic(), begin)

    def _report(self, ended: _Process) -> None:
        """Write to the log what has come of an export."""
        said, code = self._last_output(ended.output), ended.process.returncode
        result = _result(said) if code == 0 else None
        if result is None:
            if not self._was_exported_elsewhere(ended.step):
                why = f"{_problem(said, code)}; its output is in {as_typed(self._directory / OUTPUT)}"
                self._report_failure(ended.step, why)
            return
        self._log.write(
            "exported",
            step=ended.step,
            path=str(self._output_directory(ended.step).relative_to(self._directory)),
            format=self._format,
            bytes=result[0],
            difference=result[1],
            seconds=round(time.monotonic() - ended.started, 3),
        )

    def _last_output(self, begin: int) -> list[str]:
        """The lines printed from there on by the process that was the last to begin."""
        try:
            printed = (self._directory / OUTPUT).read_bytes()[begin:].decode(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in printed.split("\n") if line.strip()]

    @contextlib.contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        """What a disk refuses to do for `what` is an alert: training has no need of it."""
        try:
            yield
        except (OSError, ValueError) as error:
            self._alert(f"{what}: {error}")

    def _report_failure(self, step: int, why: str) -> None:
        self._alert(f"step {step} was not exported: {why}")

    def _alert(self, message: str) -> None:
        self._log.write("alert", step=self._log.step, kind="export", message=message)

    def _log_message(self, level: str, message: str) -> None:
        self._log.write("log", step=self._log.step, level=level, message=message)


def _result(said: Sequence[str]) -> tuple[int, float] | None:
    """(bytes, difference), as an export that has ended well says them in its last line of JSON."""
    for line in reversed(said):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found = json.loads(line)
            return int(found["bytes"]), float(found["difference"])
    return None


def _problem(said: Sequence[str], code: int) -> str:
    """Why an export that ended with this code is none, and what to do."""
    if code == -signal.SIGKILL:
        told = ["it was killed, as systems do that run out of memory", "it holds the model once or twice"]
        told += ["hint: trainkit export makes it by hand where there is more"]
    else:
        begins = [i for i, line in enumerate(said) if line.startswith("error: ")]
        told = list(said[begins[-1] :] if begins else said[-1:]) or ["it printed nothing"]
    first, *rest = told
    return "; ".join([f"{first.removeprefix('error: ')} (exit {code})", *rest])


def _put_last(process: int) -> None:
    """Everything else on this machine goes first; where memory runs out, this process is the one to be ended."""
    with contextlib.suppress(OSError):  # it may have ended already
        os.setpriority(os.PRIO_PROCESS, process, 19)
    with contextlib.suppress(OSError):  # there is no such file but on Linux
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")


def _remove_drafts(exports: Path) -> None:
    """Those of attempts that were killed."""
    for draft in exports.glob(".*"):
        # first out of the way: an export that outlived its attempt then cannot put it in place half removed
        shutil.rmtree(draft.rename(draft.with_name(f".removed{draft.name}")), ignore_errors=True)


def _begin_anew(output: Path) -> None:
    """Go on in a copy: what an export that outlived its attempt says is not taken for that of another."""
    if output.exists():
        copy = output.with_name(f".{output.name}")
        shutil.copyfile(output, copy)
        copy.replace(output)


def _set_aside(exports: Path, *, beyond: int) -> list[int]:
    """Move those after step `beyond` out of the way, and return their steps: they are of a course that was given up."""
    later = sorted(int(path.name) for path in exports.glob("*") if path.name.isdecimal() and int(path.name) > beyond)
    aside = exports / f"{store.ASIDE}{len(list(exports.glob(f'{store.ASIDE}*'))) + 1}"
    for step in later:
        aside.mkdir(exist_ok=True)
        (exports / str(step)).rename(aside / str(step))
    return later


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
