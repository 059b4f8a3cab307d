"""An attempt at a run leaves its process as it was."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trainer

from trainkit.errors import INTERRUPTED, STOPPED_EARLY
from trainkit.events.log import read
from trainkit.recipe.toml.load import load
from trainkit.run import attempt as attempts
from trainkit.run.attempt import _imports_that_stay
from trainkit.run.start import Start
from trainkit.rundir.directory import create


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_an_attempt_does_not_stay_because_another_one_begins() -> None:
    garbage = weakref.ref(Node())
    with _imports_that_stay():
        import trainkit.run.attempt  # noqa: F401
    gc.collect()
    assert garbage() is None


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, STOPPED_EARLY), (signal.SIGINT, INTERRUPTED)])
@pytest.mark.parametrize(("after", "events"), [("last_end", []), ("announce", ["run_started", "run_finished"])])
def test_a_signal_ends_an_attempt_from_its_first_moment_on(
    tmp_path: Path, monkeypatch: Any, handlers: None, number: int, code: int, after: str, events: list[str]
) -> None:
    trainer.workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    directory, real = create(load(Path("tiny.toml"), [])), getattr(attempts, after)

    def signalled(*given: Any, **named: Any) -> None:
        real(*given, **named)
        signal.raise_signal(number)

    monkeypatch.setattr(attempts, after, signalled)
    assert attempts.attempt(directory, Start()) == code
    assert [event["type"] for event in read(directory)] == events
