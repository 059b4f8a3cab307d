"""Put back into a damaged log what is known of it from elsewhere.

The log as it was found stays beside the rebuilt one, as `events.damaged-N.jsonl`.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trainkit import files
from trainkit.events.schema import FOREIGN, Event
from trainkit.events.tail import LONGEST_LINE, NAME, as_logged, number, of_kinds, parse

#: Kinds of events that come after the step events of their step or earlier, and before later ones.
_IN_ORDER = ("step", "checkpoint_started", "evaluation_started", "evaluated")


class KnownStep(NamedTuple):
    """What is known of a step: its attempt and number, when it was over in Unix seconds, and some of its metrics."""

    attempt: int
    step: int
    t: float
    metrics: Mapping[str, float]


class Rebuilt(NamedTuple):
    """The steps that the log lacked, those of which it had other values, and how many bytes were added where."""

    missing: tuple[int, ...] = ()
    different: tuple[int, ...] = ()
    added: tuple[tuple[int, int], ...] = ()

    def place_of(self, offset: int) -> int:
        """Return where in the rebuilt log lies what was at this byte of the damaged one."""
        return offset + sum(size for place, size in self.added if place < offset)


def rebuild(run_directory: Path, known: Iterable[KnownStep]) -> Rebuilt:
    """Add the known steps that a log lacks, and correct those of which it has other values; return which. Raises
    OSError."""
    path, by_key = run_directory / NAME, {(each.attempt, each.step): each for each in sorted(known)}
    found = {key: event for event in of_kinds(run_directory, "step") if (key := _key(event)) in by_key}
    missing = [each for key, each in by_key.items() if key not in found]
    wrong = [key for key, event in found.items() if not _agrees(event, by_key[key])]
    if not missing and not wrong:
        return Rebuilt()
    added: list[tuple[int, int]] = []
    if path.exists():
        os.link(path, _free_name(run_directory))
    with files.replace_file(path) as draft:
        place = 0
        for line, old in _rebuilt_lines(path, missing, {key: by_key[key] for key in wrong}):
            if len(line) != old:
                added.append((place, len(line) - old))
            draft.write(line)
            place += old
    return Rebuilt(tuple(each.step for each in missing), tuple(step for _, step in wrong), tuple(added))


def _rebuilt_lines(
    path: Path, missing: list[KnownStep], wrong: Mapping[tuple[int, int], KnownStep]
) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of the rebuilt log, each with the bytes that the damaged one has for it."""
    left = list(missing)
    for line in _lines(path):
        events = [event for _, event in parse(line)]
        for event in events:
            while left and _is_after(event, left[0]):
                yield _line(left.pop(0), {}), 0
        if events and events[0]["type"] == "step" and (known := wrong.get(_key(events[0]))) is not None:
            yield _line(known, events[0]), len(line)
        else:
            yield line, len(line)
    for known in left:
        yield _line(known, {}), 0


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as log:
            while line := log.readline(LONGEST_LINE):
                yield line


def _key(event: Event) -> tuple[int, int]:
    return event["attempt"], event["step"]


def _agrees(event: Event, known: KnownStep) -> bool:
    """Return whether a step has the values that are known of it; nan is itself."""
    try:
        return all(repr(number(event["metrics"][name])) == repr(value) for name, value in known.metrics.items())
    except FOREIGN:
        return False


def _is_after(event: Event, known: KnownStep) -> bool:
    if event["attempt"] != known.attempt:
        return bool(event["attempt"] > known.attempt)
    return event["type"] in _IN_ORDER and bool(event["step"] >= known.step)


def _line(known: KnownStep, before: Event) -> bytes:
    values = {name: as_logged(value) for name, value in known.metrics.items()}
    metrics = before["metrics"] if isinstance(before.get("metrics"), dict) else {}
    fields = {"type": "step", "t": known.t, "step": known.step, "attempt": known.attempt, **before}
    return json.dumps({**fields, "metrics": {**metrics, **values}}, ensure_ascii=False).encode(errors="replace") + b"\n"


def _free_name(run_directory: Path) -> Path:
    paths = (run_directory / f"events.damaged-{number}.jsonl" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())
