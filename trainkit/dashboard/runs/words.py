"""The texts around the list of runs: title, details, the text of an empty list, the question before a deletion."""

from __future__ import annotations

from textual.content import Content

from trainkit.dashboard import theme
from trainkit.dashboard.keys import Confirm
from trainkit.dashboard.panels.rows import cell
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.rundir.listing import RunList
from trainkit.rundir.summary import ENDED, SummaryReader
from trainkit.text import format_bytes


def list_title(runs: RunList, arranged: Arrangement) -> Content:
    """Return the title: how many runs there are, are running, are still unread, and are marked."""
    summaries = runs.summaries.values()
    unread = sum(summary.facts is None for summary in summaries)
    at_work = sum(summary.facts is not None and summary.facts.state not in (None, *ENDED) for summary in summaries)
    parts = [(f"{cell(str(runs.directory)).plain}  ", f"bold {theme.BRIGHT}")]
    parts += [(f"{len(summaries):,} runs", theme.TEXT), (f"  {at_work:,} running", theme.DIM)]
    parts += [(f"  reading {unread:,} logs …", theme.DIM)] if unread else []
    parts += [(f"  {len(arranged.marked):,} marked", theme.WARN)] if arranged.marked else []
    return Content.assemble(*parts)


def why_empty(runs: RunList, arranged: Arrangement) -> str:
    """Return why the list is empty."""
    if arranged.filter:
        return f"no run matches “{arranged.filter}”; escape shows all"
    if not runs.passes:
        return "looking for runs …"
    return f"no runs in {runs.directory} yet; start one: trainkit run RECIPE"


def about(summary: SummaryReader) -> Content:
    """Return two lines on a run: its directory, and its problem or how it ended."""
    facts, style = summary.facts, theme.DIM
    second = "reading its log …"
    if facts is not None:
        attempts = f"attempt {facts.attempt}  " if facts.attempt > 1 else ""
        kept = f"kept: {', '.join(f'{step:,}' for step in summary.kept)}  " if summary.kept else ""
        second = facts.problem or f"{attempts}{kept}{facts.message}"
        style = theme.WARN if facts.problem else theme.BAD if facts.state == "failed" else theme.DIM
    return Content("\n").join([cell(str(summary.directory), theme.TEXT), cell(second, style)])


def unopenable(summary: SummaryReader) -> str:
    """Return why a run cannot be opened; empty if it can."""
    if summary.facts is None:
        return "its log is still being read"
    return summary.facts.problem if summary.facts.broken else ""


def deletion(summary: SummaryReader) -> Confirm | str:
    """Return the question before deleting a run, or why it must not be deleted."""
    name, facts = cell(summary.directory.name).plain, summary.facts
    if facts is not None and facts.state is not None and facts.state not in ENDED:
        return f"{name} is {facts.state}: stop it first"
    size = "" if summary.size is None else f", {format_bytes(summary.size)}"
    warning = "It is a link: the run it points to is kept."
    if not summary.directory.is_symlink():
        steps = facts.step if facts else 0
        warning = f"This deletes its {steps:,} steps, its checkpoints and its log{size}.\nThis cannot be undone."
    return Confirm(f"Delete the run {name}?", warning, yes="delete it")
