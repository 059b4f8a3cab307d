"""Which events of a log count after a resume.

An attempt that resumes from step N does again what earlier attempts did beyond N. Their events beyond N no longer
count, except messages. Every reader of a log takes this rule from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from trainkit.events.schema import Event

#: Kinds of events that count whatever later attempts do again: that an attempt began, and what people were told.
MESSAGES = frozenset({"run_started", "alert", "log"})


def resumed_step(event: Event) -> int:
    """Return the step from which the attempt of this `run_started` event continues; 0 for the first step."""
    return event["resumed_from"] or 0


def kept_until(event: Event) -> int | None:
    """Return the last step whose earlier events count after this event; None where all of them still do.

    It is -1 where an attempt starts from the beginning: what was found at step 0, before any training, is found again.
    """
    if event["type"] != "run_started":
        return None
    return -1 if event["resumed_from"] is None else event["resumed_from"]


class CurrentEvents:
    """Says of each event of a log, asked in order, whether it counts after all the attempts in `events`.

    It remembers one number for each attempt, so that a log of any length can be read a second time and filtered.
    """

    def __init__(self, events: Iterable[Event], *, always: Collection[str] = MESSAGES) -> None:
        """`always` lists the kinds of events that count whatever later attempts do again."""
        cuts = [cut for cut in map(kept_until, events) if cut is not None]
        #: For each attempt that is still to come, the last first: the last step that it and those after it keep.
        self._kept = list(accumulate(reversed(cuts), min))
        self._always = always

    def keeps(self, event: Event) -> bool:
        """Return whether the next event counts. Events after those given at the start all do."""
        if event["type"] == "run_started" and self._kept:
            self._kept.pop()
        return not self._kept or event["type"] in self._always or bool(event["step"] <= self._kept[-1])


def current_events(events: Sequence[Event]) -> list[Event]:
    """Return the events that count after all the attempts among them."""
    current = CurrentEvents(events)
    return [event for event in events if current.keeps(event)]
