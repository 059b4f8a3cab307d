"""`trainkit resume`: continue a run after showing what differs and refusing what would be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from trainkit.cli.arguments import EXCLUSIVE_OUTPUTS, Detach, Json, Overrides, Plain, Profile, RunOrStep
from trainkit.errors import DONE, TrainkitError
from trainkit.printer import complain

if TYPE_CHECKING:
    from trainkit.run.resume import Resumption
    from trainkit.run.start import Start

EXCLUSIVE = EXCLUSIVE_OUTPUTS


def resume(
    run: RunOrStep,
    overrides: Overrides = None,
    reset_optimizer: Annotated[
        bool, typer.Option("--reset-optimizer", help="Start with a fresh optimizer state.")
    ] = False,
    forget_commands: Annotated[
        bool,
        typer.Option(
            "--forget-commands", help="Do not repeat the rate and decay commands that were sent after the checkpoint."
        ),
    ] = False,
    raise_rate: Annotated[
        bool, typer.Option("--raise-rate", help="Allow a changed schedule to raise the learning rate.")
    ] = False,
    plain: Plain = False,
    json: Json = False,
    detach: Detach = False,
    profile: Profile = None,
) -> int:
    """Continue a run from its newest checkpoint, or from STEP."""
    from trainkit.cli.arguments import steps_of
    from trainkit.cli.run import follow
    from trainkit.parallel import hosts
    from trainkit.run.resume import prepare
    from trainkit.rundir.directory import recipe_of
    from trainkit.rundir.find import find_run

    hosts.join()
    steps = steps_of(profile) if profile is not None else None
    directory, step = find_run(run)
    prepared: list[Resumption] = []

    def start_of() -> Start:
        resumption = prepare(
            directory,
            step=step,
            overrides=overrides or [],
            reset_optimizer=reset_optimizer,
            forget_commands=forget_commands,
            raise_rate=raise_rate,
        )
        for note in resumption.notes:
            complain(note)
        prepared.append(resumption)
        return resumption.start

    try:
        start = replace(hosts.from_first(start_of), profile=steps)
    except TrainkitError as finished:
        if finished.exit_code != DONE:
            raise
        complain(str(finished))  # so that a loop of retries ends
        return DONE
    loaded = prepared[0].loaded if prepared else recipe_of(directory)
    return follow(directory, start, loaded, plain=plain, json=json, detach=detach)
