"""`python -m trainkit.track RUN --repository DIRECTORY --experiment NAME`: the sidecar's own process."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.track.tail import follow

#: Training comes first.
NICENESS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainkit.track", description="Copy a run's events into Aim.")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--repository", type=Path, required=True, help="directory that holds .aim, or will")
    parser.add_argument("--experiment", required=True)
    arguments = parser.parse_args()
    os.nice(NICENESS)
    try:
        follow(arguments.run_directory, repository=arguments.repository.resolve(), experiment=arguments.experiment)
    except TrainkitError as error:
        # one line: whoever started this shows the last one
        print(" ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
