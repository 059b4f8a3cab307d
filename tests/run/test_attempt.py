"""An attempt at a run leaves its process as it was."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trainer
from places import LIMIT

from trainkit.checkpoint import store
from trainkit.errors import DONE, INTERRUPTED, STOPPED_EARLY
from trainkit.events.schema import Event
from trainkit.events.tail import read
from trainkit.recipe.toml.load import load
from trainkit.run import attempt as attempts
from trainkit.run import prepare, setup
from trainkit.run.attempt import _imports_that_stay
from trainkit.run.start import Start
from trainkit.rundir.directory import create
from trainkit.train.signals import ENDING, Signals, StopBeforeTraining, repeat_ignored


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
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> Iterator[Path]:
    trainer.workplace(tmp_path, trainer.BARE.replace("steps = 24", "steps = 4"), documents=5)
    monkeypatch.chdir(tmp_path)
    compiled.clear()
    yield create(load(Path("tiny.toml"), []))
    compiled.set()


#: Ends the compilations that a test leaves behind.
compiled = threading.Event()


def signal_in(phase: str, number: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[Event], None]:
    """Let a signal come in a phase of an attempt that is yet to be started; return the `echo` to start it with."""

    def then(module: Any, name: str) -> None:
        real = getattr(module, name)

        def signalled(*given: Any, **named: Any) -> Any:
            result = real(*given, **named)
            signal.raise_signal(number)
            return result

        monkeypatch.setattr(module, name, signalled)

    if phase == "starting":
        then(attempts, "last_end")
    elif phase == "importing":
        monkeypatch.setattr(attempts, "_imports_that_stay", interrupted_imports(number))
    elif phase == "compiling":  # which does not end before the attempt
        monkeypatch.setattr(prepare, "fit_program", lambda *given, **named: compiled.wait())
        then(prepare, "initial_state")
    at = {"announced": "run_started", "caching": "cache_progress", "training": "step", "saving": "checkpoint_started"}

    def echo(event: Event) -> None:
        if event["type"] == at.get(phase) and (event["type"] != "step" or event["step"] == 2):
            signal.raise_signal(number)

    return echo


def interrupted_imports(number: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what stands for `_imports_that_stay`, with a signal in the middle of an import."""

    @contextlib.contextmanager
    def imports() -> Iterator[None]:
        signal.raise_signal(number)
        yield

    return imports


NOTHING, ENDED = [], ["run_started", "run_finished"]
#: For each phase of an attempt: the exit code after a signal, 0 for that of the signal, and the beginning and the end
#: of the attempt in its log. The table in docs/architecture.md says the same.
PHASES: dict[str, tuple[int | None, list[str]]] = {
    "starting": (None, NOTHING),
    "announced": (None, ENDED),
    "importing": (None, ENDED),
    "caching": (None, ENDED),
    "compiling": (None, ENDED),
    "training": (None, ENDED),
    "saving": (DONE, ENDED),
}
CODES = {signal.SIGTERM: STOPPED_EARLY, signal.SIGHUP: STOPPED_EARLY, signal.SIGINT: INTERRUPTED}


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_ends_an_attempt_in_each_phase_as_documented(
    run: Path, monkeypatch: pytest.MonkeyPatch, phase: str, number: int
) -> None:
    code, logged = PHASES[phase]
    expected = CODES[signal.Signals(number)] if code is None else code
    assert attempts.attempt(run, Start(), echo=signal_in(phase, number, monkeypatch)) == expected
    events = read(run)
    assert [event["type"] for event in (events[0], events[-1]) if events] == logged if logged else not events
    assert not events or events[-1]["exit_code"] == expected
    newest = store.newest(run)
    steps = [event["step"] for event in events if event["type"] == "step"]
    assert steps == list(range(1, len(steps) + 1)) and (newest.step if newest else 0) == len(steps)
    assert bool(steps) == (phase in ("training", "saving"))


@pytest.mark.parametrize("phase", ["compiling", "training"])
def test_a_second_ctrl_c_ends_an_attempt_at_once(run: Path, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    echo = signal_in(phase, signal.SIGINT, monkeypatch)

    def again(event: Event) -> None:
        echo(event)
        if event["type"] == ("run_finished" if phase == "compiling" else "step"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        attempts.attempt(run, Start(), echo=again)
    assert read(run)[-1]["exit_code"] == INTERRUPTED and store.newest(run) is None


def test_an_error_that_a_signal_caused_before_training_is_its_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_in_c(*given: Any, **named: Any) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except StopBeforeTraining as stop:
            raise ImportError("numpy._core.multiarray failed to import") from stop

    monkeypatch.setattr(setup, "check_before_data", interrupted_in_c)
    assert attempts.attempt(run, Start()) == STOPPED_EARLY
    assert read(run)[-1]["message"] == "stopped before training began"


def test_a_signal_that_is_ignored_as_under_nohup_stays_ignored(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Signals()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(("signals", "code"), [([signal.SIGTERM], 75), ([signal.SIGINT, signal.SIGINT], 130)])
def test_a_process_ends_while_it_compiles_with_the_code_of_the_signal(
    tmp_path: Path, signals: list[int], code: int
) -> None:
    trainer.workplace(tmp_path, trainer.BARE, documents=5)
    with trainer.Trainer(tmp_path, "run", "tiny.toml", "--plain", held_at="planned 0") as held:
        assert held.until(lambda event: event["type"] == "planned")
        for number in signals[1:]:
            held.process.send_signal(number)
        held.release(signals[0])
        assert held.end() == code, (tmp_path / "output.txt").read_text()
    assert "rror" not in (tmp_path / "output.txt").read_text()


@pytest.mark.parametrize(("handled", "exception"), [(False, KeyboardInterrupt), (True, StopBeforeTraining)])
def test_a_signal_whose_exception_python_ignores_comes_again(
    monkeypatch: pytest.MonkeyPatch, handlers: None, handled: bool, exception: type[BaseException]
) -> None:
    class Destroyed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM if handled else signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if handled:
        Signals()
    monkeypatch.setattr(sys, "unraisablehook", repeat_ignored)
    with pytest.raises(exception):
        Destroyed()
        threading.Event().wait(LIMIT)
