"""`trainkit resume`: says what differs, refuses what would be wrong, and goes on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from trainkit.cli.run import Output, follow
from trainkit.cli.where import find_run
from trainkit.run.resume import prepare
from trainkit.run.start import steps_of


def resume(
    run: str,
    overrides: Sequence[str],
    reset_optimizer: bool,
    forget_orders: bool,
    raise_rate: bool,
    output: Output | None,
    detach: bool,
    profile: str | None,
) -> int:
    """Go on with a run; the exit code."""
    steps = steps_of(profile) if profile is not None else None
    directory, step = find_run(run)
    resumption = prepare(
        directory,
        step=step,
        overrides=overrides,
        reset_optimizer=reset_optimizer,
        forget_orders=forget_orders,
        raise_rate=raise_rate,
    )
    for note in resumption.notes:
        print(note, file=sys.stderr)
    return follow(directory, replace(resumption.start, profile=steps), resumption.loaded, output, detach)
