"""Whether something that has been compiled is compiled again: shapes or types that change cost seconds each time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import jax.monitoring

from trainkit.events.log import EventLog

#: What JAX (0.10) says after each compilation, also of a program that its cache on disk had. Where another version
#: calls it otherwise, nothing is told.
COMPILED = "/jax/core/compile/backend_compile_duration"
#: How often a kind of work is done before it must have compiled all it needs; and how often in a row without
#: compiling before it can be told of again.
SETTLED, CALM = 2, 10


class Compilations:
    """Writes an alert where a kind of work compiles again. Only a compilation costs anything: JAX calls us then.

    What other threads compile, and what is compiled between two works, is not looked at.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._done: Counter[str] = Counter()
        #: The works of a kind that are to be done without compiling before it is calm; 0 where it is.
        self._uneasy: Counter[str] = Counter()
        self._seconds, self._names = 0.0, list[str]()
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    @contextmanager
    def during(self, what: str, step: int) -> Iterator[None]:
        """What is compiled in this block belongs to work of this kind, done at `step`."""
        self._seconds, self._names = 0.0, []
        yield
        if self._names and self._done[what] >= SETTLED:
            if not self._uneasy[what]:
                names = ", ".join(dict.fromkeys(self._names))
                told = f"{what} at step {step} compiled again, for {self._seconds:.1f} s ({names})"
                message = f"{told}: a shape or a type has changed since it was done before"
                self._log.write("alert", step=step, kind="recompilation", message=message)
            self._uneasy[what] = CALM
        elif self._uneasy[what]:
            self._uneasy[what] -= 1
        self._done[what] += 1

    def close(self) -> None:
        """Listen no more."""
        jax.monitoring.unregister_event_duration_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED and threading.get_ident() == self._thread:
            self._seconds += duration_secs
            self._names.append(str(kwargs.get("fun_name", "a function")))
