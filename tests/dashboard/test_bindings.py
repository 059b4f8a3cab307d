"""Every key of the dashboard does what its binding says, where it says so: none is dead, none hidden by another."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fake_run
import pytest
from pages import settle
from places import ROOT
from textual.actions import parse
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from viewer import write_run

import trainkit.dashboard
from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.runs.app import RunsApp, RunSelection
from trainkit.dashboard.runs.browse import Opened
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.rundir.follow import Replay
from trainkit.rundir.listing import RunList

PICTURES = ROOT / "scripts" / "pictures.py"


class Bound(NamedTuple):
    """A key of a class, and what it does: the method's name and its arguments, on the node or on the application."""

    of: type[DOMNode]
    key: str
    action: str


class Context(NamedTuple):
    """Where keys are pressed: an application on a run, and the keys that lead there."""

    app: Callable[[Path], App[Any]]
    keys: tuple[str, ...] = ()


#: Pages with a line to type in, which escape leaves.
FILTERED = ("metrics", "logs", "recipe", "compare")
#: One for each place where other keys are in force.
CONTEXTS = {
    **{name: Context(Dashboard, (str(number),)) for number, name in enumerate(NAMES, 1)},
    "the crosshair": Context(Dashboard, ("x",)),
    "a chart of the metrics": Context(Dashboard, (str(NAMES.index("metrics") + 1), "x")),
    **{f"the filter of {name}": Context(Dashboard, (str(NAMES.index(name) + 1), "slash")) for name in FILTERED},
    "the question for a step": Context(Dashboard, (str(NAMES.index("data") + 1), "g")),
    "the question for a run": Context(Dashboard, (str(NAMES.index("recipe") + 1), "u")),
    "yes or no": Context(Dashboard, ("S",)),
    "a line to type": Context(Dashboard, ("R",)),
    "the help": Context(Dashboard, ("question_mark",)),
    "a replay": Context(lambda run: Dashboard(run, replay=Replay(run))),
    "a run of many": Context(lambda run: Opened(RunSelection(run), readonly=False, ascii_only=False, remembered=None)),
    "many runs": Context(lambda run: RunsApp(RunList(run.parent), Arrangement())),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    fake_run.write(tmp_path / "runs" / "other", fake_run.events(40, total=40))
    return write_run(tmp_path / "runs" / "quickstart", steps=40)  # one at work: others take no commands


def declared() -> set[Bound]:
    """What every class of the dashboard says of its keys."""
    for module in pkgutil.walk_packages(trainkit.dashboard.__path__, f"{trainkit.dashboard.__name__}."):
        importlib.import_module(module.name)
    return {
        Bound(cls, key, found.action)
        for cls in subclasses(DOMNode)
        if cls.__module__.startswith(trainkit.dashboard.__name__)
        for binding in cls.__dict__.get("BINDINGS", ())
        for found in Binding.make_bindings([binding])
        for key in [found.key]
    }


def subclasses(cls: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


async def reached(context: Context, run: Path, wanted: set[Bound]) -> set[Bound]:
    """Which of those that are `wanted` a key leads to there; none is carried out, so that the next finds the same
    place."""
    app = context.app(run)
    found: set[Bound] = set()
    async with app.run_test(size=(80, 24)) as pilot:
        if isinstance(app, Dashboard):
            app.load()
        await pilot.press(*context.keys)
        await settle(pilot)
        there = [node for node, _ in app.screen._binding_chain]
        here = {bound for bound in wanted if any(isinstance(node, bound.of) for node in there)}
        pressing = ""

        async def note(node: DOMNode, name: str, parameters: tuple[Any, ...]) -> bool:
            assert callable(getattr(node, f"action_{name}", None)), f"{pressing}: {node} has no action {name}"
            found.update(bound for bound in here if bound.key == pressing and does(bound, node, name, parameters))
            return True

        carry_out, app._dispatch_action = app._dispatch_action, note  # type: ignore[method-assign]
        for pressing in sorted({bound.key for bound in here}):
            await pilot.press(pressing)
        app._dispatch_action = carry_out  # type: ignore[method-assign]
    return found


def does(bound: Bound, node: DOMNode, name: str, parameters: tuple[Any, ...]) -> bool:
    """Whether this is what the binding says."""
    target, named, given = parse(bound.action)
    return isinstance(node, App if target == "app" else bound.of) and (named, given) == (name, parameters)


def test_every_binding_of_every_screen_can_be_reached_by_its_key(run: Path) -> None:
    bindings = declared()
    assert len({bound.of for bound in bindings}) > 15, "they have been found"
    unreached = set(bindings)
    for context in CONTEXTS.values():
        unreached -= asyncio.run(reached(context, run, unreached))
    told = sorted(f"{bound.of.__name__}: {bound.key} does not {bound.action}" for bound in unreached)
    assert not told, "\n".join(told)


def test_the_guide_has_the_keys_that_there_are(tmp_path: Path) -> None:
    guide, pictures = tmp_path / "dashboard.md", runpy.run_path(str(PICTURES))
    guide.write_bytes(pictures["GUIDE"].read_bytes())
    pictures["write_keys"](guide)
    kept, now = (path.read_text(encoding="utf-8") for path in (pictures["GUIDE"], guide))
    assert kept == now, "write them: python scripts/pictures.py"
    assert all(f"`{number}` | page {name}" in now for number, name in enumerate(NAMES, 1))
