"""Exports while training continues, one at a time: a process of its own reads a checkpoint from the disk.

The process runs on the CPU at the lowest priority, so it takes neither time from a step nor memory from the devices.
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

#: The output of the exporting processes, in the run's directory.
OUTPUT = "export.log"
#: Everything else on the machine runs first.
NICENESS = 19
#: Seconds between two messages that the end of a run waits for exports.
MESSAGE_SECONDS = 30.0
#: How many exports may wait. Each keeps its checkpoint on the disk.
MOST_WAITING = 4


@dataclass(frozen=True)
class _Process:
    """A process that exports a step."""

    step: int
    process: subprocess.Popen[bytes]
    started: float
    output: int
    """The byte of the run's `export.log` at which its output begins."""


class Exporting:
    """Exports the model as the recipe's `[export]` asks. A failed export is an alert; training continues."""

    def __init__(self, directory: Path, recipe: Recipe, *, first: int, log: EventLog) -> None:
        """`first` is the step from which the run continues; exports that are missing up to there are queued.

        Create it before this attempt saves anything, so that no checkpoint that it needs is removed.
        """
        assert recipe.export
        self._directory, self._first, self._log = directory, first, log
        self._every, self._format = recipe.export.every, recipe.export_format
        self._dtype, self._keep_last = recipe.export.dtype, recipe.checkpoint.keep_last
        #: The steps to export; the first one may be running. Two threads read it, so it is replaced and never changed.
        self._pending: tuple[int, ...] = ()
        self._seen: set[int] = set()
        self._running: _Process | None = None
        self._here = jax.process_index() == 0
        if self._here:
            self._clean()
        for info in store.checkpoints(directory):
            # a checkpoint beyond is damaged, and will be written again
            if info.step <= first and (info.manifest.kind == "final" or self.wants(info.step)):
                self._queue(info.step)

    def _clean(self) -> None:
        """Remove what earlier attempts have left, and set aside exports of steps after the first."""
        with self._log_errors("exports of earlier attempts"):
            _remove_drafts(self._directory / EXPORTS)
            _start_new_file(self._directory / OUTPUT)
        self._set_aside(self._first)

    def _set_aside(self, beyond: int) -> None:
        aside: list[int] = []
        with self._log_errors("exports of steps that are trained again"):
            aside = store.set_aside(self._directory / EXPORTS, beyond=beyond)
        if aside:
            self._log_message("info", f"set aside: the export of {_steps(aside)}")

    def go_back(self, *, beyond: int) -> None:
        """Forget the exports of steps after `beyond`, because the run goes back: they are ended or set aside."""
        if self._running is not None and self._running.step > beyond:
            ended, self._running = self._running, None
            ended.process.kill()
            ended.process.wait()
        self._pending = tuple(step for step in self._pending if step <= beyond)
        self._seen = {step for step in self._seen if step <= beyond}
        if self._here:
            self._set_aside(beyond)

    def wants(self, step: int, /) -> bool:
        """Return whether the recipe asks for an export of this step, and so for its checkpoint."""
        return self._every is not None and step % self._every == 0 and step not in self._seen

    def take(self, step: int, /, *, last: bool) -> None:
        """Queue the export of this step, whose whole checkpoint is on disk; `last` of the run's last checkpoint."""
        if not (last or self.wants(step)):
            return
        self._queue(step)
        running = self._running and self._running.step
        waiting = [each for each in self._pending if each > self._first and each != running]
        if len(waiting) > MOST_WAITING:
            self._remove(waiting[0])
            message = f"step {waiting[0]} is not exported: {MOST_WAITING} others wait, each with its checkpoint on the"
            message += " disk; exports take longer than export.every allows: make it larger"
            self._log_message("warning", message)

    def needed_steps(self) -> tuple[int, ...]:
        """Return the steps whose checkpoints are still to be exported."""
        return self._pending

    def poll(self) -> None:
        """Log an export that has ended, and start the next one. Does not wait."""
        if self._running is not None and self._running.process.poll() is not None:
            ended, self._running = self._running, None
            self._report(ended)
            self._remove(ended.step)
        while self._running is None and self._pending:
            self._start(self._pending[0])

    def finish(self, *, interrupted: Callable[[], bool]) -> bool:
        """Wait for all exports and return True; or return False once `interrupted`, and leave the running one alone.

        Call it after the last save: checkpoints that were kept only for their export are removed.
        """
        reported = -MESSAGE_SECONDS
        try:
            self.poll()
            while self._pending and not interrupted():
                if time.monotonic() - reported >= MESSAGE_SECONDS:
                    reported = time.monotonic()
                    self._log_message("info", f"waiting for the export of {_steps(self._pending)}")
                time.sleep(0.05)
                self.poll()
        except KeyboardInterrupt:
            pass  # the run is complete: only the wait ends
        if self._pending:
            message = f"the run did not wait for the export of {_steps(self._pending)}; the next attempt exports it"
            by_hand = f"trainkit export {as_typed(self._directory)}/STEP OUT"
            self._log_message("warning", f"{message}; to do it by hand: {by_hand}")
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

    def _remove(self, step: int) -> None:
        self._pending = tuple(each for each in self._pending if each != step)

    def _was_exported_elsewhere(self, step: int) -> bool:
        """Return whether a process that outlived an earlier attempt has exported the step, and log it."""
        exists = self._output_directory(step).exists()
        if exists:
            self._log_message("info", f"step {step} has been exported by a process of an earlier attempt")
        return exists

    def _start(self, step: int) -> None:
        if self._was_exported_elsewhere(step):
            self._remove(step)
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
                    # a signal to the trainer's process group must not end it
                    start_new_session=True,
                )
        except OSError as error:
            self._remove(step)
            self._report_failure(step, f"its process could not be started: {error}")
            return
        _lower_priority(process.pid)
        self._running = _Process(step, process, time.monotonic(), begin)

    def _report(self, ended: _Process) -> None:
        """Log the result of an export."""
        lines, code = self._output_from(ended.output), ended.process.returncode
        result = _result(lines) if code == 0 else None
        if result is None:
            if not self._was_exported_elsewhere(ended.step):
                why = f"{_problem(lines, code)}; its output is in {as_typed(self._directory / OUTPUT)}"
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

    def _output_from(self, begin: int) -> list[str]:
        """Return the lines of `export.log` from this byte on, without empty ones."""
        try:
            output = (self._directory / OUTPUT).read_bytes()[begin:].decode(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in output.split("\n") if line.strip()]

    @contextlib.contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        """Turn errors of the disk into an alert about `what`, which training does not need."""
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


def _result(lines: Sequence[str]) -> tuple[int, float] | None:
    """Return (bytes, difference) from the line of JSON that a successful export prints last; None without one."""
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            result = json.loads(line)
            return int(result["bytes"]), float(result["difference"])
    return None


def _problem(lines: Sequence[str], code: int) -> str:
    """Return why an export that ended with this exit code failed, and what to do."""
    if code == -signal.SIGKILL:
        error = ["it was killed, as systems do that run out of memory", "it holds the model once or twice"]
        error += ["hint: run trainkit export where there is more memory"]
    else:
        starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
        error = list(lines[starts[-1] :] if starts else lines[-1:]) or ["it printed nothing"]
    first, *rest = error
    return "; ".join([f"{first.removeprefix('error: ')} (exit {code})", *rest])


def _lower_priority(process: int) -> None:
    """Let everything else on this machine run first, and the kernel end this process first where memory runs out."""
    with contextlib.suppress(OSError):  # it may have ended already
        os.setpriority(os.PRIO_PROCESS, process, NICENESS)
    with contextlib.suppress(OSError):  # only Linux has this file
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")


def _remove_drafts(exports: Path) -> None:
    """Remove the drafts of attempts that were killed."""
    for draft in exports.glob(".*"):
        # renamed first: an export that outlived its attempt then cannot move a half-removed draft into place
        shutil.rmtree(draft.rename(draft.with_name(f".removed{draft.name}")), ignore_errors=True)


def _start_new_file(output: Path) -> None:
    """Replace the file by a copy: a process that outlived its attempt keeps writing to the old one, unread."""
    if output.exists():
        copy = output.with_name(f".{output.name}")
        shutil.copyfile(output, copy)
        copy.replace(output)


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
