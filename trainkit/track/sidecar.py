"""The trainer's end of the Aim sidecar: start it, hear of its failure, wait for it a little. Imports no aim."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from trainkit.recipe.upkeep import Track
from trainkit.track import progress

#: In the run directory: what the process printed.
LOG = "aim.log"


class Sidecar:
    """A process that copies the run's events into Aim. Whatever happens to it, it raises nothing."""

    def __init__(self, run_directory: Path, process: subprocess.Popen[bytes] | None, problem: str | None) -> None:
        self._run = run_directory
        self._process = process
        self._problem = problem

    @classmethod
    def start(cls, run_directory: Path, spec: Track) -> Sidecar:
        """Start it. Call this once `run_started` has been written: an ended attempt is all that it would see before."""
        if importlib.util.find_spec("aim") is None:
            return cls(
                run_directory, None, "aim is not installed here: the run is not tracked; its event log has it all"
            )
        command = [sys.executable, "-m", "trainkit.track", str(run_directory.resolve())]
        command += ["--repository", str(Path(spec.repository).resolve()), "--experiment", spec.experiment]
        try:
            with (run_directory / LOG).open("wb") as log:
                # a session of its own: what interrupts the trainer must not cut off the copying of its last events
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            return cls(run_directory, None, f"the Aim sidecar could not be started: {error}")
        return cls(run_directory, process, None)

    def poll(self) -> str | None:
        """What went wrong, once; None while it runs and after it ended well. Does not wait."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            if code != 0:
                self._problem = f"the Aim sidecar failed (exit {code}): {self._last_line()}"
        problem, self._problem = self._problem, None
        return problem

    def run_hash(self, *, patience: float = 0.0) -> str | None:
        """Hash of the Aim run; None where the sidecar has not opened it within `patience` seconds, or died before."""
        deadline = time.monotonic() + patience
        while (found := progress.read(self._run)) is None and time.monotonic() < deadline:
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
                return f"Aim is still being brought up to date, by process {self._process.pid}; it ends by itself"
        return self.poll()

    def _last_line(self) -> str:
        lines = (self._run / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else "it said nothing"
