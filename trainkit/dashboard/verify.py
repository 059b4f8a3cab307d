"""Whether a checkpoint is whole, as `trainkit verify` says in a process of its own: no jax in this one."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import cell
from trainkit.text import format_duration, format_time


async def verified(directory: Path) -> list[Content]:
    """What `trainkit verify` says of a checkpoint, array by array, as lines to show. It ends with whoever waits."""
    pipe, started = asyncio.subprocess.PIPE, time.monotonic()
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trainkit", "verify", str(directory), stdin=asyncio.subprocess.DEVNULL, stdout=pipe,
            stderr=pipe,
        )  # fmt: skip
    except OSError as error:
        return [cell(f"   it could not be verified: {error.strerror}", theme.WARN)]
    try:
        told, problem = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    seconds = format_duration(time.monotonic() - started)
    if child.returncode == 0:
        return [cell(f"   whole: every checksum is right ({format_time(time.time())}, in {seconds})", theme.GOOD)]
    found = [line.strip() for line in told.decode(errors="replace").split("\n")[1:] if line.strip()]
    if not found:
        wrong = problem.decode(errors="replace").strip() or f"trainkit verify ended with {child.returncode}"
        return [cell(f"   it could not be verified: {line}", theme.WARN) for line in wrong.split("\n")[:3]]
    return [
        cell(f"   damaged ({format_time(time.time())}, in {seconds}):", theme.BAD),
        *(cell(f"     {x}") for x in found),
    ]
