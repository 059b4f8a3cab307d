"""An attempt at a run leaves its process as it was."""

from __future__ import annotations

import gc
import weakref

from trainkit.run.attempt import _imports_that_stay


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
