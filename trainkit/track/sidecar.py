"""The trainer's end of the sidecars: start them, hear of their failure, wait for them a little. Imports no tracker."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from trainkit.recipe.sections.outputs import Track
from trainkit.track.projections import ABOUT, Name, enabled, installed, read_progress


class Sidecar:
    """A process that copies the run's events into one tracker. Whatever happens to it, it raises nothing."""

    def __init__(
        self, run_directory: Path, name: Name, process: subprocess.Popen[bytes] | None, problem: str | None
    ) -> None:
        self._run = run_directory
        self.name = name
        self._title = ABOUT[name].title
        self._process = process
        self._problem = problem

    @classmethod
    def start(cls, run_directory: Path, name: Name, spec: Track) -> Sidecar:
        """Start it. Call this once `run_started` has been written: an ended attempt is all that it would see before."""
        title, package = ABOUT[name]
        if not installed(name):
            problem = f"{package} is not installed here: the run is not tracked; its event log has it all"
            return cls(run_directory, name, None, problem)
        command = [sys.executable, "-m", "trainkit.track", str(run_directory.resolve())]
        command += ["--to", name, "--spec", spec.model_dump_json()]
        try:
            with (run_directory / f"{name}.log").open("wb") as log:
                # a session of its own: what interrupts the trainer must not cut off the copying of its last events
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            return cls(run_directory, name, None, f"the {title} sidecar could not be started: {error}")
        return cls(run_directory, name, process, None)

    def poll(self) -> str | None:
        """What went wrong, once; None while it runs and after it ended well. Does not wait."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            if code != 0:
                self._problem = f"the {self._title} sidecar failed (exit {code}): {self._last_line()}"
        problem, self._problem = self._problem, None
        return problem

    def run_id(self, *, patience: float = 0.0) -> str | None:
        """What the tracker calls the run; None where the sidecar has not opened it within `patience` seconds, or died
        before."""
        deadline = time.monotonic() + patience
        while (found := read_progress(self._run, self.name)) is None and time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.05)
        return found.run if found else None

    def finish(self, *, timeout: float) -> str | None:
        """After `run_finished`: wait up to `timeout` seconds for it to copy the rest. What went wrong, or None.

        One that needs longer is left running: it ends by itself.
        """
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pid = self._process.pid
                return f"{self._title} is still being brought up to date, by process {pid}; it ends by itself"
        return self.poll()

    def _last_line(self) -> str:
        try:
            lines = (self._run / f"{self.name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else "it printed nothing"


class Sidecars:
    """All that a recipe asks for."""

    def __init__(self, sidecars: list[Sidecar]) -> None:
        self._sidecars = sidecars

    @classmethod
    def start(cls, run_directory: Path, spec: Track) -> Sidecars:
        return cls([Sidecar.start(run_directory, name, spec) for name in enabled(spec)])

    def poll(self) -> list[tuple[str, str]]:
        """(tracker, what went wrong there), each once. Does not wait."""
        return [(sidecar.name, problem) for sidecar in self._sidecars if (problem := sidecar.poll())]

    def finish(self, *, timeout: float) -> list[tuple[str, str]]:
        """Wait up to `timeout` seconds for all of them together; (tracker, what went wrong there)."""
        deadline = time.monotonic() + timeout
        ends = [
            (sidecar.name, sidecar.finish(timeout=max(0.0, deadline - time.monotonic()))) for sidecar in self._sidecars
        ]
        return [(name, problem) for name, problem in ends if problem]

    def aim_run(self, *, patience: float) -> str | None:
        """Hash of the Aim run; None where there is none, or it is not known within `patience` seconds."""
        aim = [sidecar for sidecar in self._sidecars if sidecar.name == "aim"]
        return aim[0].run_id(patience=patience) if aim else None
