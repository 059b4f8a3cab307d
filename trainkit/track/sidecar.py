"""Sidecars: processes beside the trainer that copy its log, one for each tracker.

The trainer starts them, reports their failure and waits for them briefly. `python -m trainkit.track.sidecar` is one of
them. Importing this loads no tracker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.printer import complain
from trainkit.recipe.sections.outputs import Track
from trainkit.track.projections import ABOUT, NAMES, Name, enabled_trackers, is_installed, read_progress

#: Training comes first.
NICENESS = 10


class Sidecar:
    """A process that copies the run's events to one tracker. Its failure raises nothing here."""

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
        """Return the sidecar, started. Write `run_started` first: otherwise it sees only an attempt that has ended."""
        title, package = ABOUT[name]
        if not is_installed(name):
            problem = f"{package} is not installed here: the run is not tracked; its event log has it all"
            return cls(run_directory, name, None, problem)
        command = [sys.executable, "-m", "trainkit.track.sidecar", str(run_directory.resolve())]
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
        """Return what went wrong, once; None while it runs and after a good end. Does not wait."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            if code != 0:
                self._problem = f"the {self._title} sidecar failed (exit {code}): {self._last_line()}"
        problem, self._problem = self._problem, None
        return problem

    def run_id(self, *, patience: float = 0.0) -> str | None:
        """Return the tracker's name for the run; None if the sidecar has not opened it within `patience` seconds."""
        deadline = time.monotonic() + patience
        while (progress := read_progress(self._run, self.name)) is None and time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.05)
        return progress.run if progress else None

    def finish(self, *, timeout: float) -> str | None:
        """Wait up to `timeout` seconds after `run_finished` for the rest to be copied; return what went wrong, or None.

        A sidecar that needs longer keeps running, and ends by itself.
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
        printed = [line.strip() for line in lines if line.strip()]
        return printed[-1] if printed else "it printed nothing"


class Sidecars:
    """The sidecars of all trackers that a recipe turns on."""

    def __init__(self, sidecars: list[Sidecar]) -> None:
        self._sidecars = sidecars

    @classmethod
    def start(cls, run_directory: Path, spec: Track) -> Sidecars:
        """Return the sidecars, started."""
        return cls([Sidecar.start(run_directory, name, spec) for name in enabled_trackers(spec)])

    def poll(self) -> list[tuple[str, str]]:
        """Return (tracker, what went wrong there), each once. Does not wait."""
        return [(sidecar.name, problem) for sidecar in self._sidecars if (problem := sidecar.poll())]

    def finish(self, *, timeout: float) -> list[tuple[str, str]]:
        """Wait up to `timeout` seconds for all of them together; return (tracker, what went wrong there)."""
        deadline = time.monotonic() + timeout
        ends = [
            (sidecar.name, sidecar.finish(timeout=max(0.0, deadline - time.monotonic()))) for sidecar in self._sidecars
        ]
        return [(name, problem) for name, problem in ends if problem]

    def aim_run(self, *, patience: float) -> str | None:
        """Return the hash of the Aim run; None if the recipe has none, or it is unknown within `patience` seconds."""
        aim = [sidecar for sidecar in self._sidecars if sidecar.name == "aim"]
        return aim[0].run_id(patience=patience) if aim else None


def main() -> int:
    """Copy a run to a tracker as the arguments say, and return the exit code."""
    from trainkit.track.tail import follow

    parser = argparse.ArgumentParser(
        prog="python -m trainkit.track.sidecar", description="Copy a run's events into a tracker."
    )
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", choices=NAMES, required=True)
    parser.add_argument("--spec", required=True, help="the section [track] of the recipe, as JSON")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    try:
        follow(arguments.run_directory, arguments.to, Track.model_validate_json(arguments.spec))
    except TrainkitError as error:
        # one line: whoever started this shows the last one
        complain(" ".join(str(error).split("\n")))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
