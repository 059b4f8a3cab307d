"""The trainer as a process of its own, in a session of its own: the terminal that started it may close."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.run.attempt import attempt
from trainkit.run.start import Start, steps_of

LOG = "trainer.log"


def spawn(directory: Path, start: Start) -> subprocess.Popen[bytes]:
    """Start `attempt(directory, start)` in the background; what it prints goes to the run's `trainer.log`."""
    step = "" if start.step is None else str(start.step)
    profile = ":".join(map(str, start.profile or ()))
    arguments = [str(directory), step, str(int(start.reset_optimizer)), str(int(start.forget_commands)), profile]
    with (directory / LOG).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def main(arguments: list[str]) -> int:
    directory, step, reset_optimizer, forget_commands, profile = arguments
    start = Start(
        step=int(step) if step else None,
        reset_optimizer=reset_optimizer == "1",
        forget_commands=forget_commands == "1",
        profile=steps_of(profile) if profile else None,
    )
    try:
        return attempt(Path(directory), start)
    except TrainkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
