"""`trainkit send`: a command to a running trainer."""

from __future__ import annotations

from typing import Annotated

import typer

from trainkit.cli.arguments import RunName
from trainkit.errors import FAILED, TrainkitError
from trainkit.printer import quote

# a prompt may begin with a dash, and a negative factor gets its own error message
CONTEXT = {"ignore_unknown_options": True}


def send(
    run: RunName,
    command: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND",
            help="save, pause, continue, evaluate, stop; sample PROMPT: continue a text; rate FACTOR: multiply the"
            " scheduled learning rate, by 0.000001 to 1000 (1 restores it); decay: start the decay of a wsd schedule"
            " and end with it",
        ),
    ],
    argument: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT|FACTOR]", help="The argument of sample or rate.", show_default=False),
    ] = None,
) -> str:
    """Send a command to a running trainer.

    A resumed run repeats rate and decay at the same steps.
    """
    from trainkit.cli.arguments import run_directory
    from trainkit.events import commands
    from trainkit.text import neutralise

    reply = commands.send(run_directory(run), command, argument)
    if not reply.ok:
        hint = f"to see the run's state: trainkit watch {quote(run)} --once"
        raise TrainkitError(reply.detail, hint=hint, exit_code=FAILED)
    return neutralise(reply.detail)
