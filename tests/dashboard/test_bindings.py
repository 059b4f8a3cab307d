"""Every key of the dashboard does what its binding says, where it says so: none is dead, none hidden by another."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import fake_run
import pytest
from pages import settle
from places import ROOT
from textual.actions import parse
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.events import Key
from textual.keys import key_to_character
from textual.pilot import Pilot
from viewer import running, write_run

import trainkit.dashboard
from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.pages import KEYS
from trainkit.dashboard.runs.app import RunsApp, RunSelection
from trainkit.dashboard.runs.browse import Opened
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.rundir.follow import Replay
from trainkit.rundir.listing import RunList

#: How often a key is handed on at most: to the application, to what has the focus, and what that leaves back to the
#: application. A pilot would wait after each key until the processor is idle.
HOPS = 3
PICTURES = ROOT / "scripts" / "pictures.py"


class Bound(NamedTuple):
    """A key of a class, and what it does: the method's name and its arguments, on the node or on the application."""

    of: type[DOMNode]
    key: str
    action: str


class Context(NamedTuple):
    """Where keys are pressed: an application on a run, and for each place the keys that lead there from the last."""

    app: Callable[[Path], App[Any]]
    places: tuple[tuple[str, ...], ...] = ((),)


def page(name: str) -> str:
    """Return the key of a page."""
    return KEYS[name]


#: Pages with a line to type in, which escape leaves.
FILTERED = ("metrics", "logs", "recipe", "compare")
#: What opens over a page and is left by escape: the filters, the questions for a step, a run, yes or no, a line to
#: type, the help.
OVER = (*((page(name), "slash") for name in FILTERED), (page("data"), "g"), (page("recipe"), "u"), ("S",), ("R",))
#: Together one for each place where other keys are in force.
CONTEXTS = (
    Context(
        Dashboard, (*((page(name),) for name in NAMES), *(("escape", *keys) for keys in (*OVER, ("question_mark",))))
    ),
    Context(Dashboard, (("x",), ("escape", page("metrics"), "x"))),  # the crosshair, of a chart of the metrics too
    Context(lambda run: Dashboard(run, replay=Replay(run))),
    Context(lambda run: Opened(RunSelection(run), readonly=False, ascii_only=False, remembered=None)),
    Context(lambda run: RunsApp(RunList(run.parent), Arrangement())),
)


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
    """Return those that are `wanted` and that a key leads to there. None is carried out, so that the next key finds
    the same place."""
    app = context.app(run)
    found: set[Bound] = set()
    async with running(app, (80, 24)) as pilot:
        if isinstance(app, Dashboard):
            app.load()
        for keys in context.places:
            await pilot.press(*keys)
            await settle(pilot)
            found |= await pressed(pilot, wanted - found)
    return found


async def pressed(pilot: Pilot[Any], wanted: set[Bound]) -> set[Bound]:
    """Return those that are `wanted` and that a key leads to where the application stands."""
    app, found = pilot.app, set[Bound]()
    there = [node for node, _ in app.screen._binding_chain]
    here = {bound for bound in wanted if any(isinstance(node, bound.of) for node in there)}
    pressing = ""

    async def note(node: DOMNode, name: str, parameters: tuple[Any, ...]) -> bool:
        assert callable(getattr(node, f"action_{name}", None)), f"{pressing}: {node} has no action {name}"
        found.update(bound for bound in here if bound.key == pressing and does(bound, node, name, parameters))
        return True

    with patch.object(app, "_dispatch_action", note):
        for pressing in sorted({bound.key for bound in here}):
            app.post_message(Key(pressing, key_to_character(pressing)))
            for _ in range(HOPS):
                await pilot._wait_for_screen()
    return found


def does(bound: Bound, node: DOMNode, name: str, parameters: tuple[Any, ...]) -> bool:
    """Whether this is what the binding says."""
    target, named, given = parse(bound.action)
    return isinstance(node, App if target == "app" else bound.of) and (named, given) == (name, parameters)


def test_every_binding_of_every_screen_can_be_reached_by_its_key(run: Path) -> None:
    bindings = declared()
    assert len({bound.of for bound in bindings}) > 15, "they have been found"
    unreached = set(bindings)
    for context in CONTEXTS:
        unreached -= asyncio.run(reached(context, run, unreached))
    told = sorted(f"{bound.of.__name__}: {bound.key} does not {bound.action}" for bound in unreached)
    assert not told, "\n".join(told)


def test_the_guide_has_the_keys_that_there_are(tmp_path: Path) -> None:
    guide, pictures = tmp_path / "dashboard.md", runpy.run_path(str(PICTURES))
    guide.write_bytes(pictures["GUIDE"].read_bytes())
    pictures["write_keys"](guide)
    kept, now = (path.read_text(encoding="utf-8") for path in (pictures["GUIDE"], guide))
    assert kept == now, "write them: python scripts/pictures.py"
    assert all(f"`{key}` | page {name}" in now for name, key in KEYS.items())
