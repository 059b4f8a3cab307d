"""The log as plain lines that a person reads in a file, a pipe or a scheduler's log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from trainkit.events.schema import Event
from trainkit.events.tail import number
from trainkit.events.view import Pace
from trainkit.text import format_bytes, format_count, format_duration, format_quantity, neutralise, one_line

#: Seconds of the log's own time between two step lines, and between two lines about the growth of a cache.
EVERY_SECONDS = 10.0
#: Predictions of a sample that are printed.
PREDICTIONS = 5


def as_json(event: Event) -> str:
    """Return the event as its line of the log, in ASCII, so that a terminal cannot obey anything in it."""
    return json.dumps(event)


def line(event: Event) -> str | None:
    """Return an event as it is printed, after the time of day; None if a person need not read it."""
    words = text(event)
    return None if words is None else f"{_clock(event)}  {words}"


def text(event: Event) -> str | None:
    """Return an event in words, without the time; None if a person need not read it. Samples have several lines."""
    match event["type"]:
        case "run_started":
            words = f"run {event['name']}, attempt {event['attempt']}, process {event['pid']} on {event['host']}"
            if event["resumed_from"] is not None:
                words += f", resumed from step {event['resumed_from']}"
        case "planned":
            words = _planned(event)
        case "cache_progress":
            words = _cache(event)
        case "compiled":
            words = f"compiled {event['what']} in {event['seconds']:.1f} s"
        case "step":
            words = f"step {event['step']}{_metrics(event['metrics'])}"
        case "evaluated":
            words = f"evaluated {event['name']} at step {event['step']}{_evaluation(event)}  ({event['seconds']:.1f} s)"
        case "sampled":
            words = f"sample at step {event['step']}: {event['prompt']!r}\n{_indent(event['text'])}{_examples(event)}"
        case "checkpoint_saved":
            size, seconds = format_bytes(event["bytes"]), event["seconds"]
            words = f"saved {event['path']} ({event['kind']}, {size}, {seconds:.1f} s)"
        case "exported":
            size, seconds = format_bytes(event["bytes"]), event["seconds"]
            words = f"exported {event['path']} ({event['format']}, {size}, {seconds:.1f} s), read back: "
            words += f"logits differ by {event['difference']:.1e}" if event["difference"] else "the same"
        case "control":
            words = f"{event['command']}: {event['detail']}"
        case "rolled_back":
            words = f"ALERT rolled back: {event['message']}"
        case "alert":
            words = f"ALERT {event['kind']}: {event['message']}"
        case "log":
            words = event["message"] if event["level"] == "info" else f"{event['level'].upper()} {event['message']}"
        case "run_finished":
            words = f"{event['status']} at step {event['step']}"
            if event["status"] == "crashed" or (event["status"] == "finished" and event["exit_code"]):
                words = f"nothing was trained: the run is still {words}"
            words += f": {event['message']}" if event["message"] else ""
        case _:
            return None
    return neutralise(words)


def _clock(event: Event) -> str:
    """Return the time of day of an event."""
    return time.strftime("%H:%M:%S", time.localtime(event["t"]))


class PlainLog:
    """Chooses the events to print: of the steps the first, the last, and one every `every` seconds."""

    def __init__(self, *, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._pace = Pace()
        self._total: int | None = None
        self._printed = -math.inf
        self._held: Event | None = None
        self._cache: dict[str, float] = {}
        self._attempt: int | None = None

    def feed(self, event: Event) -> list[str]:
        """Return the lines to print for the next event, in order; most steps give none."""
        self._pace.add(event)
        match event["type"]:
            case "step":
                return self._step(event)
            case "cache_progress" if not event["done"]:
                if 0 <= event["t"] - self._cache.setdefault(event["what"], event["t"]) < self._every:
                    return []
                self._cache[event["what"]] = event["t"]
            case "run_started":
                self._pace, self._held, self._printed = Pace(), None, -math.inf
                again, self._attempt = event["attempt"] == self._attempt, event["attempt"]
                if again:  # the attempt continues from another step than it announced: see `prepare.accept_start`
                    return [f"{_clock(event)}  continuing from step {event['step']}"]
            case "planned":
                self._total = event["total_steps"]
            case "control":
                self._total = event.get("total_steps") or self._total
        held, self._held = (self._held, None) if event["type"] == "run_finished" else (None, self._held)
        told = line(event)
        # lines have been printed since that step, so it gets the present time
        return ([self._tell({**held, "t": event["t"]})] if held else []) + ([told] if told is not None else [])

    def _step(self, event: Event) -> list[str]:
        # a clock that is set back must not silence the log
        if 0 <= event["t"] - self._printed < self._every and event["step"] != self._total:
            self._held = event
            return []
        self._printed, self._held = event["t"], None
        return [self._tell(event)]

    def _tell(self, event: Event) -> str:
        step, clock = event["step"], _clock(event)
        of = "" if self._total is None else f"/{self._total}"
        left = self._pace.seconds_left(step, self._total)
        eta = f"  ETA {format_duration(left)}" if left else ""
        return f"{clock}  step {step:>{max(1, len(of) - 1)}}{of}{_metrics(event['metrics'])}{eta}"


def _metrics(metrics: Mapping[str, float | str]) -> str:
    words = ""
    for name, label, form in (
        ("train/loss", "loss", format_quantity),
        ("optimizer/learning_rate", "lr", lambda value: f"{value:.2e}"),
        ("gradients/norm", "norm", format_quantity),
        ("throughput/tokens_per_second", "", lambda value: f"{format_count(value)} tok/s"),
        ("throughput/mfu", "MFU", lambda value: f"{value:.1%}"),
    ):
        if name in metrics:
            words += f"  {label} {form(number(metrics[name]))}" if label else f"  {form(number(metrics[name]))}"
    return words


def _evaluation(event: Event) -> str:
    labels = {"loss": "loss", "perplexity": "perplexity", "bits_per_byte": "bits per byte"}
    words = ""
    for name, value in event["metrics"].items():
        last = name.removeprefix(f"validation/{event['name']}/")
        if "/" in last:  # one of many parts of a metric, such as a class or the cell of a confusion matrix
            continue
        words += f"  {labels.get(last, last.replace('_', ' '))} {format_quantity(number(value))}"
    return words


def _planned(event: Event) -> str:
    plan: dict[str, Any] = event["plan"]
    words = f"planned {event['total_steps']:,} steps"
    if "tokens_per_step" in plan:
        # without a length of sequences, an example counts as one token
        unit = "tokens" if plan.get("sequence_length", 0) is not None else "examples"
        words += f" of {format_count(plan['tokens_per_step'])} {unit}"
    if "parameters" in plan:
        words += f", {format_count(plan['parameters'])} parameters"
    return f"{words}, on {', '.join(event['devices'])}"


def _cache(event: Event) -> str:
    size = format_bytes(event["bytes"])
    if event["total_bytes"] and not event["done"]:
        size += f" of {format_bytes(event['total_bytes'])} ({event['bytes'] / event['total_bytes']:.0%})"
    documents = (
        f"{format_count(event['documents'])} document{'s' * (event['documents'] != 1)}, " if event["documents"] else ""
    )
    tokens = f", {format_count(event['tokens'])} tokens" if event["tokens"] else ""
    return f"{'cached' if event['done'] else 'caching'} {event['what']}: {documents}{size}{tokens}"


def predictions(event: Event) -> list[tuple[str, float]]:
    """Return the predictions of a `sampled` event: labels (inert, on one line) and probabilities, the likeliest first.

    Raises ValueError if they are not pairs of a text and a number.
    """
    pairs = []
    for pair in event.get("predictions", ()):
        match pair:
            case [str(label), int() | float() as probability] if not isinstance(probability, bool):
                pairs.append((one_line(label), float(probability)))
            case _:
                raise ValueError("a prediction is a label and a probability")
    return pairs


def _examples(event: Event) -> str:
    """Return the lines of a sample that is more than text: predictions, whether the first is right, and the image's
    path."""
    parts = [f"{label} {probability:.1%}" for label, probability in predictions(event)[:PREDICTIONS]]
    if parts and "expected" in event:
        right = predictions(event)[0][0] == one_line(event["expected"])
        parts.append(f"right: {event['expected']}" if right else f"wrong: expected {event['expected']}")
    elif "expected" in event:
        parts.append(f"expected {event['expected']}")
    parts += [f"image {event['image']}"] if "image" in event else []
    return "\n    " + one_line(", ".join(parts)) if parts else ""


def _indent(sample: str) -> str:
    return "\n".join(f"    | {row}" for row in sample.splitlines() or [""])
