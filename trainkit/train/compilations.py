"""What is compiled while a run trains, and why something that has been compiled is compiled again: shapes or types that
change cost seconds each time."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.monitoring

from trainkit.events.log import EventLog

#: What JAX (0.10) says after each compilation, also of a program that its cache on disk had. Where another version
#: calls it otherwise, nothing is told.
COMPILED = "/jax/core/compile/backend_compile_duration"
#: How often a kind of work is done before it must have compiled all it needs; and how often in a row without
#: compiling before it can be told of again.
SETTLED, CALM = 2, 10
#: Changed arguments that are named.
NAMED = 3
#: JAX's explanation of one change (0.10), as in `  * at batch['tokens'], now i32[8,64] and before i32[8,32]`.
CHANGE = re.compile(r"^ *\* (?:at (?:input path )?)?(.+?),? (?:differs: )?now (.+?) and before (.+?)(?:, so .*)?$")


class Compilations:
    """Writes a `compiled` event for every work that compiles, and an alert where a kind of work compiles again. Only a
    compilation costs anything: JAX calls us then.

    What other threads compile, and what is compiled between two works, is not looked at.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._done: Counter[str] = Counter()
        #: The works of a kind that are to be done without compiling before it is calm; 0 where it is.
        self._uneasy: Counter[str] = Counter()
        self._seconds, self._names = 0.0, list[str]()
        self._explanations = Explanations(self._thread)
        logging.getLogger("jax").addHandler(self._explanations)
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    @contextmanager
    def during(self, what: str, step: int) -> Iterator[None]:
        """What is compiled in this block belongs to work of this kind, done at `step`."""
        settled = self._done[what] >= SETTLED
        self._seconds, self._names = 0.0, []
        self._explanations.changes.clear()
        # only where something is wrong if it compiles: JAX is told nothing by those that compile as they should
        with jax.explain_cache_misses(settled):
            yield
        if self._names:
            self._tell(what, step, again=settled)
        elif self._uneasy[what]:
            self._uneasy[what] -= 1
        self._done[what] += 1

    def close(self) -> None:
        """Listen no more."""
        jax.monitoring.unregister_event_duration_listener(self._hear)
        logging.getLogger("jax").removeHandler(self._explanations)

    def _tell(self, what: str, step: int, *, again: bool) -> None:
        functions, seconds = list(dict.fromkeys(self._names)), round(self._seconds, 3)
        cause = self._cause() if again else {}
        self._log.write(
            "compiled", step=step, what=what, seconds=seconds, count=len(self._names), functions=functions, **cause
        )
        if again:
            if not self._uneasy[what]:
                told = f"{what} at step {step} compiled again, for {seconds:.1f} s ({', '.join(functions)})"
                self._log.write("alert", step=step, kind="recompilation", message=f"{told}: {cause['cause']}")
            self._uneasy[what] = CALM

    def _cause(self) -> dict[str, str]:
        """Which arguments have changed; JAX does not say where the change is not one of shape, type or structure."""
        changes = self._explanations.changes
        if not changes:
            return {"cause": "a shape, a type or a placement has changed since it was done before"}
        more = f", and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
        return {"cause": ", ".join(changes[:NAMED]) + more}

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED and threading.get_ident() == self._thread:
            self._seconds += duration_secs
            self._names.append(str(kwargs.get("fun_name", "a function")))


class Explanations(logging.Handler):
    """Reads JAX's explanations of what it has to trace again, which are asked for by `jax.explain_cache_misses`."""

    def __init__(self, thread: int) -> None:
        """Only what this thread traces is read."""
        super().__init__(logging.WARNING)
        self._thread = thread
        #: Each says which argument has changed, from what to what.
        self.changes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "CACHE MISS" not in message:
            # a logger that has a handler is no longer heard by the one of last resort
            if logging.lastResort and not logging.getLogger().handlers:
                logging.lastResort.handle(record)
        elif record.thread == self._thread:
            self.changes += [told for told in changes(message) if told not in self.changes]


def changes(explanation: str) -> list[str]:
    """Of JAX's words the arguments that have changed, such as `batch['tokens'] was i32[8,32] and is i32[8,64]`."""
    found = [CHANGE.match(line) for line in explanation.splitlines()]
    told = [f"{one[1]} was {one[3]} and is {one[2]}" for one in found if one]
    if not told and "never seen function" in explanation:
        told = ["it is another function each time"]
    return told
