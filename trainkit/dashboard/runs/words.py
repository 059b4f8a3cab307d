"""What is told around the list of many runs: above it, below it, in its place, and before one is deleted."""

from __future__ import annotations

from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import cell
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.dashboard.screens import Confirm
from trainkit.rundir.listing import RunList
from trainkit.rundir.summary import ENDED, SummaryReader
from trainkit.text import format_bytes


def heading(shelf: RunList, arranged: Arrangement) -> Content:
    """How many runs there are, are at work, are yet to be read, and are marked."""
    glances = shelf.glances.values()
    unread = sum(glance.facts is None for glance in glances)
    at_work = sum(glance.facts is not None and glance.facts.state not in (None, *ENDED) for glance in glances)
    parts = [(f"{cell(str(shelf.directory)).plain}  ", f"bold {theme.BRIGHT}")]
    parts += [(f"{len(glances):,} runs", theme.TEXT), (f"  {at_work:,} at work", theme.DIM)]
    parts += [(f"  reading {unread:,} logs …", theme.DIM)] if unread else []
    parts += [(f"  {len(arranged.marked):,} marked", theme.WARN)] if arranged.marked else []
    return Content.assemble(*parts)


def nothing(shelf: RunList, arranged: Arrangement) -> str:
    """Why there is no row."""
    if arranged.filter:
        return f"no run has “{arranged.filter}” in it; escape shows all"
    if not shelf.passes:
        return "looking for runs …"
    return f"no runs in {shelf.directory} yet; begin one: trainkit run RECIPE"


def about(glance: SummaryReader) -> Content:
    """Two lines on a run: where it is, and what is wrong with it or how it ended."""
    facts, style = glance.facts, theme.DIM
    second = "its log is being read …"
    if facts is not None:
        attempts = f"attempt {facts.attempt}  " if facts.attempt > 1 else ""
        kept = f"kept: {', '.join(f'{step:,}' for step in glance.kept)}  " if glance.kept else ""
        second = facts.problem or f"{attempts}{kept}{facts.message}"
        style = theme.WARN if facts.problem else theme.BAD if facts.state == "failed" else theme.DIM
    return Content("\n").join([cell(str(glance.directory), theme.TEXT), cell(second, style)])


def unopenable(glance: SummaryReader) -> str:
    """Why a run cannot be opened; empty where it can."""
    if glance.facts is None:
        return "its log is still being read"
    return glance.facts.problem if glance.facts.broken else ""


def deletion(glance: SummaryReader) -> Confirm | str:
    """The question whether a run is to be deleted, or why it may not be."""
    name, facts = cell(glance.directory.name).plain, glance.facts
    if facts is not None and facts.state is not None and facts.state not in ENDED:
        return f"{name} is {facts.state}: stop it first"
    size = "" if glance.size is None else f", {format_bytes(glance.size)}"
    told = "It is a link: what it leads to stays."
    if not glance.directory.is_symlink():
        steps = facts.step if facts else 0
        told = f"Its {steps:,} steps, its checkpoints and its log go{size}.\nNothing brings them back."
    return Confirm(f"Delete the run {name}?", told, yes="delete for good")
