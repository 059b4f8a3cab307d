"""The tables of many runs: the list of all, and the leaderboard, whose columns are what their recipes differ in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import Column, cell, coarse
from trainkit.rundir import recipes
from trainkit.rundir.summary import ENDED, POINTS, RunSummary, SummaryReader
from trainkit.text import format_bytes, format_count, format_duration, format_quantity

#: The columns by which the list can be sorted, in the order of the key.
LISTED = ("age", "run", "state", "step", "best", "loss", "ETA", "size")
BLOCKS = "▁▂▃▄▅▆▇█"
#: Columns of recipe keys that a leaderboard has at most.
MOST_KEYS = 40

#: What a cell says, and in which colour.
Text = tuple[str, str]


class LeaderboardRow(NamedTuple):
    """A row: the run's name and its cells."""

    name: str
    cells: tuple[Text, ...]


class SortOrder(NamedTuple):
    """Sorted by one of `LISTED`: the newest, best or first come first, or last."""

    column: str = LISTED[0]
    reverse: bool = False


@dataclass
class Arrangement:
    """How the list is shown: kept while a run is looked at."""

    order: SortOrder = field(default_factory=SortOrder)
    filter: str = ""
    marked: set[str] = field(default_factory=set)
    leaderboard: bool = False
    #: Of `metrics(…)`, by its name; the first where it is none of them.
    metric: str = ""
    chosen: str | None = None


class LeaderboardMetric(NamedTuple):
    """A number that ranks runs. `of` returns it or None; `better` is 1 if more is better, -1 if less is."""

    name: str
    of: Callable[[RunSummary], float | None]
    better: int = -1


def metrics(summaries: Iterable[SummaryReader]) -> list[LeaderboardMetric]:
    """Return the best loss of each validation set, the most frequent first; then the training loss and the speed."""
    sets = Counter(name for summary in summaries if summary.facts for name in summary.facts.best)
    return [
        *(_best(name) for name, _ in sets.most_common()),
        LeaderboardMetric("train/loss", lambda facts: facts.loss),
        LeaderboardMetric("tokens/s", lambda facts: facts.speed, better=1),
    ]


def table(
    summaries: Sequence[SummaryReader], arranged: Arrangement, *, now: float
) -> tuple[LeaderboardMetric, list[Column], list[LeaderboardRow]]:
    """Return the metric that ranks runs, the columns and the rows, as `arranged`. `now` is in Unix seconds."""
    found = metrics(summaries)
    metric = next((metric for metric in found if metric.name == arranged.metric), found[0])
    fitting = [summary for summary in summaries if fits(summary, arranged.filter)]
    if arranged.leaderboard:
        return metric, *leaderboard_rows(fitting, metric, marked=arranged.marked)
    rows = list_rows(fitting, arranged.order, metric, now=now, marked=arranged.marked)
    return metric, columns_of(arranged.order, metric), rows


def columns_of(order: SortOrder, metric: LeaderboardMetric) -> list[Column]:
    """Return the columns of the list; the one that sorts it has an arrow."""

    def title(name: str, shown: str = "") -> str:
        return f"{shown or name}{' ▴' if order.reverse else ' ▾'}" if name == order.column else shown or name

    return [
        Column(" "),
        Column(title("run"), least=16),
        Column(title("state")),
        Column("training loss", drop=6),
        Column(title("step"), drop=1, right=True),
        Column(title("best", _short(metric)), right=True),
        Column(title("loss"), drop=5, right=True),
        Column(title("ETA"), drop=3, right=True),
        Column(title("age"), drop=2, right=True),
        Column(title("size"), drop=7, right=True),
    ]


def list_rows(
    summaries: Sequence[SummaryReader],
    order: SortOrder,
    metric: LeaderboardMetric,
    *,
    now: float,
    marked: Collection[str],
) -> list[LeaderboardRow]:
    """Return the rows of the list, in order; runs with an unknown value come last. `now` is in Unix seconds."""
    values = {summary.directory.name: metric.of(summary.facts) if summary.facts else None for summary in summaries}
    best = _best_of(values.values(), metric)
    shown = sorted(summaries, key=lambda summary: summary.directory.name)

    def line(summary: SummaryReader) -> LeaderboardRow:
        name, facts = summary.directory.name, summary.facts or RunSummary()
        value = values[name]
        age = None if facts.last_event is None else max(0.0, now - facts.last_event)
        cells = (
            _mark(name in marked),
            (name, theme.BRIGHT if facts.state else theme.DIM),
            _state(summary),
            (spark(facts.curve), theme.TRAIN),
            _step(facts),
            _number(value, best=value is not None and value == best),
            _number(facts.loss),
            ("" if facts.eta is None else format_duration(facts.eta), theme.TEXT),
            ("" if age is None else coarse(age), theme.DIM),
            ("" if summary.size is None else format_bytes(summary.size), theme.DIM),
        )
        return LeaderboardRow(name, cells)

    def key(summary: SummaryReader) -> float | str | None:
        facts = summary.facts or RunSummary()
        match order.column:
            case "run":
                return summary.directory.name.casefold()
            case "state":
                return None if facts.state is None else list(theme.STATES).index(facts.state) + 100 * _over(facts)
            case "step":
                return -facts.step if facts.state else None
            case "best":
                value = values[summary.directory.name]
                return None if value is None or math.isnan(value) else -metric.better * value
            case "loss":
                return None if facts.loss is None or math.isnan(facts.loss) else facts.loss
            case "ETA":
                return facts.eta
            case "size":
                return None if summary.size is None else -summary.size
            case _:
                return None if facts.last_event is None else -facts.last_event

    return [line(summary) for summary in _sort_by(shown, key, reverse=order.reverse)]


def leaderboard_rows(
    summaries: Sequence[SummaryReader], metric: LeaderboardMetric, *, marked: Collection[str]
) -> tuple[list[Column], list[LeaderboardRow]]:
    """Return columns and rows of the leaderboard: rank, run, the metric, and every key in which recipes differ.

    A run without the metric has no rank.
    """
    known = [summary.recipe for summary in summaries if summary.recipe is not None]
    # a key that all recipes have was perhaps searched over; one that some lack is dropped first
    keys = sorted(recipes.differing_keys(known), key=lambda key: sum(key not in recipe for recipe in known))[:MOST_KEYS]
    columns = [Column(" "), Column("#", right=True), Column("run", least=16), Column(_short(metric), right=True)]
    columns += [Column("state", drop=1), Column("step", drop=len(keys) + 3, right=True)]
    columns += [Column(cell(key).plain, drop=place + 2, least=12) for place, key in enumerate(keys)]

    def value_of(summary: SummaryReader) -> float | None:
        value = metric.of(summary.facts) if summary.facts else None
        return None if value is None or not math.isfinite(value) else -metric.better * value

    found = []
    for rank, summary in enumerate(_sort_by(sorted(summaries, key=lambda g: g.directory.name), value_of), 1):
        name, facts, recipe = summary.directory.name, summary.facts or RunSummary(), summary.recipe or {}
        has_rank = value_of(summary) is not None
        cells = (
            _mark(name in marked),
            (f"{rank}" if has_rank else "–", f"bold {theme.BRIGHT}" if has_rank and rank == 1 else theme.DIM),
            (name, theme.BRIGHT if has_rank else theme.DIM),
            _number(metric.of(facts), best=has_rank and rank == 1),
            _state(summary),
            _step(facts),
            *((recipe.get(key, "–"), theme.TEXT if key in recipe else theme.FAINT) for key in keys),
        )
        found.append(LeaderboardRow(name, cells))
    return columns, found


def fits(summary: SummaryReader, wanted: str) -> bool:
    """Return whether a run's name, state, problem or a value of its recipe contains this text (case-folded)."""
    if not wanted:
        return True
    facts = summary.facts
    texts = [summary.directory.name, (facts.state or facts.problem) if facts else ""]
    texts += [f"{key} = {value}" for key, value in (summary.recipe or {}).items()]
    return any(wanted in text.casefold() for text in texts)


def spark(curve: Sequence[float]) -> str:
    """Return a curve as blocks on one line, between the lowest and the highest value; × is not a number."""
    finite = [value for value in curve if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def block(value: float) -> str:
        if not math.isfinite(value):
            return "×"
        # halves: the difference of two very large numbers may be none
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0
        return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]

    return "".join(map(block, curve)).ljust(POINTS if curve else 0)


def _best(name: str) -> LeaderboardMetric:
    def of(facts: RunSummary) -> float | None:
        return facts.best[name].value if name in facts.best else None

    return LeaderboardMetric(f"validation/{name}/loss", of)


def _short(metric: LeaderboardMetric) -> str:
    """Return the title of the metric's column; for a validation loss it says `best`."""
    parts = metric.name.split("/")
    return cell(f"best {'/'.join(parts[1:-1])}" if parts[0] == "validation" else metric.name).plain


def _best_of(values: Iterable[float | None], metric: LeaderboardMetric) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return max(finite, key=lambda value: metric.better * value, default=None) if len(finite) > 1 else None


def _sort_by(
    summaries: Sequence[SummaryReader], key: Callable[[SummaryReader], float | str | None], *, reverse: bool = False
) -> list[SummaryReader]:
    """Return the runs sorted by a key; those without it come last in either direction."""
    known = [(found, summary) for summary in summaries if (found := key(summary)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=reverse)  # type: ignore[arg-type, return-value]
    return [summary for _, summary in known] + [summary for summary in summaries if key(summary) is None]


def _mark(marked: bool) -> Text:
    return ("◉" if marked else " ", f"bold {theme.WARN}")


def _over(facts: RunSummary) -> bool:
    return facts.state in ENDED


def _state(summary: SummaryReader) -> Text:
    facts = summary.facts
    if facts is None:
        return "…", theme.FAINT
    if facts.state is None:
        return ("? broken", theme.WARN) if facts.broken else ("○ waiting", theme.DIM)
    symbol, color = theme.STATES[facts.state]
    return f"{symbol} {facts.state}", color


def _step(facts: RunSummary) -> Text:
    if facts.state is None:
        return "", theme.DIM
    return f"{facts.step:,}" + (f"/{facts.total:,}" if facts.total is not None else ""), theme.TEXT


def _number(value: float | None, *, best: bool = False) -> Text:
    if value is None:
        return "–", theme.FAINT
    text = format_count(value) if 1e3 <= value < math.inf else format_quantity(value)
    if not math.isfinite(value):
        return text, theme.BAD
    return (f"★ {text}", f"bold {theme.VALIDATION[0]}") if best else (text, theme.TEXT)
