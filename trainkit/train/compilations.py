"""Logs what is compiled during a run, and why it is compiled again: changing shapes or types cost seconds each time.

A compilation cannot be ended. Those that a signal may interrupt run in threads for which nobody waits then.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.monitoring
import numpy as np

from trainkit.events.log import EventLog
from trainkit.train.signals import COMPILING

T = TypeVar("T")

#: JAX's event (0.10) after each compilation, also of a program from the cache on disk. If a version of JAX has another
#: name for it, nothing is logged.
COMPILED = "/jax/core/compile/backend_compile_duration"
#: A kind of work must have compiled all it needs after being done so often.
SETTLED = 2
#: After an alert, the same kind of work must be done so often without compiling before there is another alert.
CALM = 10
#: Seconds between two looks for a signal while a thread compiles.
LOOK_EVERY = 0.1
#: A message names so many changed arguments.
NAMED = 3
#: JAX's explanation of one change (0.10), as in `  * at batch['tokens'], now i32[8,64] and before i32[8,32]`.
CHANGE = re.compile(r"^ *\* (?:at (?:input path )?)?(.+?),? (?:differs: )?now (.+?) and before (.+?)(?:, so .*)?$")


class Compilations:
    """Writes a `compiled` event for work that compiles, and an alert if a kind of work compiles again.

    Only a compilation costs time, because JAX reports it. Compilations outside `record` are ignored, and those in other
    threads, except of `compile_apart`.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._done: Counter[str] = Counter()
        #: How often each kind of work must still be done without compiling before its next alert.
        self._until_calm: Counter[str] = Counter()
        self._seconds, self._names = 0.0, list[str]()
        self._explanations = Explanations(self._thread)
        logging.getLogger("jax").addHandler(self._explanations)
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    @contextmanager
    def record(self, what: str, step: int) -> Iterator[None]:
        """Log what this block compiles, which does a kind of work at `step`. `CompilationLeft` ends the block."""
        settled = self._done[what] >= SETTLED
        self._seconds, self._names = 0.0, []
        self._explanations.changes.clear()
        # only once nothing should compile: explanations cost time
        with jax.explain_cache_misses(settled), contextlib.suppress(CompilationLeft):
            yield
        if self._names:
            self._report(what, step, again=settled)
        elif self._until_calm[what]:
            self._until_calm[what] -= 1
        self._done[what] += 1

    def close(self) -> None:
        """Stop listening to JAX."""
        jax.monitoring.unregister_event_duration_listener(self._on_event)
        logging.getLogger("jax").removeHandler(self._explanations)

    def _report(self, what: str, step: int, *, again: bool) -> None:
        functions, seconds = list(dict.fromkeys(self._names)), round(self._seconds, 3)
        cause = self._cause() if again else {}
        self._log.write(
            "compiled", step=step, what=what, seconds=seconds, count=len(self._names), functions=functions, **cause
        )
        if again:
            if not self._until_calm[what]:
                message = f"{what} at step {step} compiled again, for {seconds:.1f} s ({', '.join(functions)})"
                self._log.write("alert", step=step, kind="recompilation", message=f"{message}: {cause['cause']}")
            self._until_calm[what] = CALM

    def _cause(self) -> dict[str, str]:
        """Return which arguments changed, if the change is one of shape, type or structure, which JAX explains."""
        changes = self._explanations.changes
        if not changes:
            return {"cause": "a shape, a type or a sharding has changed"}
        more = f", and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
        return {"cause": ", ".join(changes[:NAMED]) + more}

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED and (
            threading.get_ident() == self._thread or threading.current_thread().name == COMPILING
        ):
            self._seconds += duration_secs
            self._names.append(str(kwargs.get("fun_name", "a function")))


class CompilationLeft(Exception):
    """The run is to end, so nobody waits for a compilation."""


class InterruptibleJit:
    """A function as `jax.jit` returns it, whose compilation nobody waits for once the run is to end."""

    def __init__(self, function: Callable[..., Any], *, interrupted: Callable[[], bool], **options: Any) -> None:
        """`interrupted` returns whether the run is to end; `options` are those of `jax.jit`."""
        self._jitted, self._interrupted = jax.jit(function, **options), interrupted
        self._compiled = set[Any]()

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns. Raises CompilationLeft."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = structure, tuple((np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves)
        if shapes in self._compiled:
            return self._jitted(*arguments)
        compiling = compile_apart(self._jitted.lower(*arguments).compile)
        while not wait([compiling], LOOK_EVERY).done:
            if self._interrupted():
                raise CompilationLeft
        compiling.result()
        self._compiled.add(shapes)
        return self._jitted(*arguments)  # finds the program, while `compiling` holds it


def compile_apart(work: Callable[[], T]) -> Future[T]:
    """Return what will hold the result of `work`, which a thread does meanwhile, and for which no signal waits."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised by `Future.result`
            future.set_exception(error)

    threading.Thread(target=run, name=COMPILING, daemon=True).start()
    return future


class Explanations(logging.Handler):
    """Collects JAX's explanations of why it traces again, which `jax.explain_cache_misses` enables."""

    def __init__(self, thread: int) -> None:
        """Read explanations of this thread only."""
        super().__init__(logging.WARNING)
        self._thread = thread
        #: Arguments that changed: see `changes`.
        self.changes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "CACHE MISS" not in message:
            # Python's handler of last resort ignores a logger that has a handler
            if logging.lastResort and not logging.getLogger().handlers:
                logging.lastResort.handle(record)
        elif record.thread == self._thread:
            self.changes += [change for change in changes(message) if change not in self.changes]


def changes(explanation: str) -> list[str]:
    """Return the changed arguments in JAX's explanation, such as `batch['tokens'] was i32[8,32] and is i32[8,64]`."""
    matches = [CHANGE.match(line) for line in explanation.splitlines()]
    changed = [f"{match[1]} was {match[3]} and is {match[2]}" for match in matches if match]
    if not changed and "never seen function" in explanation:
        changed = ["it is another function each time"]
    return changed
