"""The plain projection: events as lines that a person reads in a file, a pipe or a scheduler's log."""

from __future__ import annotations

import json
import math
import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from trainkit.events.log import number
from trainkit.events.pace import Pace
from trainkit.events.schema import Event

#: Seconds of the log's own time between two step lines, and between two lines about the growth of a cache.
EVERY_SECONDS = 10.0
#: Predictions of a sample that are told.
PREDICTIONS = 5

#: Unicode's zero-width non-joiner and joiner.
_APART, _JOINED = "\u200c", "\u200d"


def inert(text: str, *, flowing: bool = False) -> str:
    """`text` with nothing in it that a terminal obeys.

    Control characters become their pictures (ESC is `␛`), other characters without a shape of their own, such as those
    that turn the direction of writing, become `�`. Line feeds stay.

    So does U+200C, which keeps letters apart, between two that are not ASCII: Persian is written with it. U+200D, which
    joins letters and emoji, stays between such only where the text is `flowing`, and not on a screen whose cells are
    counted: terminals differ in how many a joined one takes.
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    if text.isprintable():
        return text
    kept = _APART + _JOINED if flowing else _APART
    return "".join(
        c if c == "\n" or c.isprintable() or (c in kept and _between_letters(text, i)) else _picture(c)
        for i, c in enumerate(text)
    )


def one_line(text: str) -> str:
    """`text` inert and without line feeds."""
    return inert(text).replace("\n", "␊")


class Pieces:
    """A flowing text that comes in pieces: what is added up is inert as the whole text is."""

    def __init__(self) -> None:
        #: The last character that was given back, and the end of which the next piece decides what it is.
        self._before = self._held = ""

    def add(self, piece: str) -> str:
        """The next piece, inert; what its end holds back is never anything that is seen."""
        text = self._held + piece
        ready = text.rstrip("\r" + _APART + _JOINED)
        self._held = text[len(ready) :]
        if not ready:
            return ""
        told = inert(self._before + ready, flowing=True)[len(self._before) :]
        self._before = ready[-1] if ready[-1].isprintable() else ""
        return told


def _between_letters(text: str, i: int) -> bool:
    """Whether the characters beside this one are letters, marks of them or emoji, and none of ASCII's."""
    beside = text[max(0, i - 1) : i] + text[i + 1 : i + 2]
    return len(beside) == 2 and all(
        not c.isascii() and (unicodedata.category(c)[0] in "LM" or unicodedata.category(c) in ("So", "Sk"))
        for c in beside
    )


def _picture(c: str) -> str:
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return " " if c.isspace() and code not in (0x85, 0x2028, 0x2029) else "�"


def as_json(event: Event) -> str:
    """The event as its line of the log, in ASCII: nothing in it is obeyed by a terminal."""
    return json.dumps(event)


def line(event: Event) -> str | None:
    """One event as it is printed, with the time of day before it; None where a person need not read it."""
    told = text(event)
    return None if told is None else f"{time.strftime('%H:%M:%S', time.localtime(event['t']))}  {told}"


def text(event: Event) -> str | None:
    """One event in words, without the time; None where a person need not read it. Several lines for samples."""
    match event["type"]:
        case "run_started":
            told = f"run {event['name']}, attempt {event['attempt']}, process {event['pid']} on {event['host']}"
            if event["resumed_from"] is not None:
                told += f", resumed from step {event['resumed_from']}"
        case "planned":
            told = _planned(event)
        case "cache_progress":
            told = _cache(event)
        case "compiled":
            told = f"compiled {event['what']} in {event['seconds']:.1f} s"
        case "step":
            told = f"step {event['step']}{_metrics(event['metrics'])}"
        case "evaluated":
            told = f"evaluated {event['name']} at step {event['step']}{_evaluation(event)}  ({event['seconds']:.1f} s)"
        case "sampled":
            told = f"sample at step {event['step']}: {event['prompt']!r}\n{_indented(event['text'])}{_seen(event)}"
        case "checkpoint_saved":
            size, seconds = bytes_(event["bytes"]), event["seconds"]
            told = f"saved {event['path']} ({event['kind']}, {size}, {seconds:.1f} s)"
        case "exported":
            size, seconds = bytes_(event["bytes"]), event["seconds"]
            told = f"exported {event['path']} ({event['format']}, {size}, {seconds:.1f} s), read back: "
            told += f"logits differ by {event['difference']:.1e}" if event["difference"] else "the same"
        case "control":
            told = f"{event['command']}: {event['detail']}"
        case "alert":
            told = f"ALERT {event['kind']}: {event['message']}"
        case "log":
            told = event["message"] if event["level"] == "info" else f"{event['level'].upper()} {event['message']}"
        case "run_finished":
            told = f"{event['status']} at step {event['step']}"
            told += f": {event['message']}" if event["message"] else ""
        case _:
            return None
    return inert(told)


class PlainLog:
    """Chooses which events are printed: of the steps the first, the last, and one every `every` seconds."""

    def __init__(self, *, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._pace = Pace()
        self._total: int | None = None
        self._printed = -math.inf
        self._held: Event | None = None
        self._cache: dict[str, float] = {}

    def feed(self, event: Event) -> list[str]:
        """The lines to print for one more event, in order; most steps give none."""
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
            case "planned":
                self._total = event["total_steps"]
            case "control":
                self._total = event.get("total_steps") or self._total
        held, self._held = (self._held, None) if event["type"] == "run_finished" else (None, self._held)
        told = line(event)
        # lines have been printed since that step: it is told with the time at which it is
        return ([self._tell({**held, "t": event["t"]})] if held else []) + ([told] if told is not None else [])

    def _step(self, event: Event) -> list[str]:
        # a clock that was put back must not silence the log for as long
        if 0 <= event["t"] - self._printed < self._every and event["step"] != self._total:
            self._held = event
            return []
        self._printed, self._held = event["t"], None
        return [self._tell(event)]

    def _tell(self, event: Event) -> str:
        step, clock = event["step"], time.strftime("%H:%M:%S", time.localtime(event["t"]))
        of = "" if self._total is None else f"/{self._total}"
        left = self._pace.remaining(step, self._total)
        eta = f"  ETA {duration(left)}" if left else ""
        return f"{clock}  step {step:>{max(1, len(of) - 1)}}{of}{_metrics(event['metrics'])}{eta}"


def duration(seconds: float) -> str:
    """Two units at most: `0.3 s`, `42 s`, `3m 05s`, `2h 07m`, `5d 03h`."""
    if seconds < 9.95 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part:02d}{below}"
    return f"{whole} s"


def count(value: float) -> str:
    """Three or four digits and a unit: `950`, `4,096`, `11.1k`, `3.20M`, `1.45B`."""
    if not math.isfinite(value):
        return str(value)
    if 1e3 <= abs(value) < 1e4:
        return f"{value:,.0f}"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def bytes_(value: float) -> str:
    """Bytes in powers of 1000: `38.2 MB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def quantity(value: float) -> str:
    """A loss or a norm, to about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:.2e}"


def _metrics(metrics: Mapping[str, float | str]) -> str:
    told = ""
    for name, label, form in (
        ("train/loss", "loss", quantity),
        ("optimizer/learning_rate", "lr", lambda value: f"{value:.2e}"),
        ("gradients/norm", "norm", quantity),
        ("throughput/tokens_per_second", "", lambda value: f"{count(value)} tok/s"),
        ("throughput/mfu", "MFU", lambda value: f"{value:.1%}"),
    ):
        if name in metrics:
            told += f"  {label} {form(number(metrics[name]))}" if label else f"  {form(number(metrics[name]))}"
    return told


def _evaluation(event: Event) -> str:
    words = {"loss": "loss", "perplexity": "perplexity", "bits_per_byte": "bits per byte"}
    told = ""
    for name, value in event["metrics"].items():
        last = name.rpartition("/")[2]
        told += f"  {words.get(last, last.replace('_', ' '))} {quantity(number(value))}"
    return told


def _planned(event: Event) -> str:
    plan: dict[str, Any] = event["plan"]
    told = f"planned {event['total_steps']} steps"
    if "tokens_per_step" in plan:
        told += f" of {count(plan['tokens_per_step'])} tokens"
    if "parameters" in plan:
        told += f", {count(plan['parameters'])} parameters"
    return f"{told}, on {', '.join(event['devices'])}"


def _cache(event: Event) -> str:
    size = bytes_(event["bytes"])
    if event["total_bytes"] and not event["done"]:
        size += f" of {bytes_(event['total_bytes'])} ({event['bytes'] / event['total_bytes']:.0%})"
    documents = f"{count(event['documents'])} document{'s' * (event['documents'] != 1)}, " if event["documents"] else ""
    tokens = f", {count(event['tokens'])} tokens" if event["tokens"] else ""
    return f"{'cached' if event['done'] else 'caching'} {event['what']}: {documents}{size}{tokens}"


def predictions(event: Event) -> list[tuple[str, float]]:
    """What a `sampled` event says was predicted: labels (inert, on one line) and probabilities, the likeliest first.

    Raises ValueError where they are not in pairs of a text and a number.
    """
    found = []
    for pair in event.get("predictions", ()):
        match pair:
            case [str(label), int() | float() as probability] if not isinstance(probability, bool):
                found.append((one_line(label), float(probability)))
            case _:
                raise ValueError("a prediction is a label and a probability")
    return found


def _seen(event: Event) -> str:
    """Of a sample that is more than text: what was predicted, whether that is right, and where its image is."""
    told = [f"{label} {probability:.1%}" for label, probability in predictions(event)[:PREDICTIONS]]
    if told and "expected" in event:
        right = predictions(event)[0][0] == one_line(event["expected"])
        told.append(f"right: {event['expected']}" if right else f"wrong: expected {event['expected']}")
    elif "expected" in event:
        told.append(f"expected {event['expected']}")
    told += [f"image {event['image']}"] if "image" in event else []
    return "\n    " + one_line(", ".join(told)) if told else ""


def _indented(sample: str) -> str:
    return "\n".join(f"    | {row}" for row in sample.splitlines() or [""])
