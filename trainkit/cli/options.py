"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file.", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name in runs/.")]
RunOrStep = Annotated[
    str, typer.Argument(metavar="RUN[/STEP]", help="A run, or one of its checkpoints; RUN/best is the best.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value of the recipe; may be repeated.", show_default=False
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the dashboard; train in this process.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines; train in this process.")]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background; trainkit watch shows the run.")]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST:LAST",
        help="Trace these steps, such as 20:25. Writes a trace for Perfetto and XProf and a summary of the slowest"
        " operations to the run's profile/.",
        show_default=False,
    ),
]

#: Of commands that train.
EXCLUSIVE_OUTPUTS = [
    ("--plain", "--json", "each is an output format"),
    ("--plain", "--detach", "a run in the background prints nothing"),
    ("--json", "--detach", "a run in the background prints nothing"),
]
