"""`python -m trainkit.track RUN --to NAME --spec JSON`: a sidecar's own process."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.outputs import Track
from trainkit.track.projections import NAMES
from trainkit.track.tail import follow

#: Training comes first.
NICENESS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainkit.track", description="Copy a run's events into a tracker.")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", choices=NAMES, required=True)
    parser.add_argument("--spec", required=True, help="the section [track] of the recipe, as JSON")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    try:
        follow(arguments.run_directory, arguments.to, Track.model_validate_json(arguments.spec))
    except TrainkitError as error:
        # one line: whoever started this shows the last one
        print(" ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
