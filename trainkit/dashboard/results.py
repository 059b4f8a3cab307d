"""The newest results of evaluations in a run's `results/`: metrics, confusions of labels, and the worst predictions.

Any file may be damaged, half written or foreign: what cannot be read is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainkit.text import neutralise

#: The largest file of predictions that is read, in bytes, and how many of the worst are kept.
MOST_BYTES, MOST_WORST = 1 << 26, 200


class Worst(NamedTuple):
    """A prediction that was wrong, and where its item is from."""

    label: str
    predicted: str
    wrong: float
    """The probability of the predicted class; for numbers, the distance from the label; for texts, the share of their
    letters that differ."""
    place: str
    text: str = ""
    """What was judged, on one line; empty where the predictions do not hold it."""


@dataclass(frozen=True)
class SetResult:
    """The newest result of one validation set."""

    name: str
    step: int
    metrics: Mapping[str, float]
    """By name, without `validation/SET/` or, of a task of lm-eval, `lm-eval/TASK/`."""
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of items by (label, predicted class); empty where the task has no classes."""
    worst: tuple[Worst, ...] = ()
    """The worst first."""

    @property
    def classes(self) -> list[str]:
        """The classes that occur as label or prediction, in the order of their names."""
        return sorted({name for pair in self.confused for name in pair})


def read_results(run_directory: Path, *, until: int | None = None) -> list[SetResult]:
    """Return the newest result of each validation set, in the order of the sets' names.

    Args:
        until: the last step of the run. Results of later steps are those of an attempt that was rewound.
    """
    newest: dict[str, tuple[int, dict[str, Any], Path]] = {}
    for path in run_directory.glob("results/*.json"):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            name, step, metrics = str(found["set"]), int(found["step"]), dict(found["metrics"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if (until is None or step <= until) and (name not in newest or step > newest[name][0]):
            newest[name] = (step, metrics, path)
    return [_result(name, *newest[name]) for name in sorted(newest)]


def _result(name: str, step: int, logged: Mapping[str, Any], path: Path) -> SetResult:
    before = f"validation/{name}/"
    metrics = {
        key.removeprefix(before).removeprefix(f"{name}/"): float(value)
        for key, value in logged.items()
        if isinstance(value, int | float)
    }
    table = _read_table(path.with_suffix(".parquet"))
    try:
        if table.keys() >= {"label", "predicted", "scores", "source", "row"}:
            return SetResult(name, step, metrics, *_of_classes(table))
        if table.keys() >= {"target", "generated", "source", "row"}:
            return SetResult(name, step, metrics, worst=_of_texts(table))
        if table.keys() >= {"target", "predicted", "source", "row"}:
            return SetResult(name, step, metrics, worst=_of_numbers(table))
    except (ValueError, TypeError):  # columns that are empty, or hold something else
        pass
    return SetResult(name, step, metrics)


def _read_table(path: Path) -> dict[str, Any]:
    """Return the columns of a file of predictions; none where it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return {}
        from pyarrow import ArrowException, parquet
    except OSError:
        return {}
    try:
        table = parquet.read_table(path)
        return {name: table.column(name) for name in table.column_names}
    except (OSError, ValueError, ArrowException):
        return {}


def _of_classes(table: Mapping[str, Any]) -> tuple[Counter[tuple[str, str]], tuple[Worst, ...]]:
    labels, predicted = table["label"].to_pylist(), table["predicted"].to_pylist()
    if not all(isinstance(label, str | int | None) for label in labels):
        return Counter(), ()
    pairs = [(str(label), str(class_)) for label, class_ in zip(labels, predicted, strict=True)]
    known = [place for place, label in enumerate(labels) if label is not None]
    scores = np.array(table["scores"].to_pylist(), np.float64)
    likely = 1 / np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)  # the softmax of the highest score
    wrong = sorted((place for place in known if pairs[place][0] != pairs[place][1]), key=lambda at: -likely[at])
    worst = tuple(Worst(*pairs[at], float(likely[at]), *_place(table, at)) for at in wrong[:MOST_WORST])
    return Counter(pairs[place] for place in known), worst


def _of_numbers(table: Mapping[str, Any]) -> tuple[Worst, ...]:
    target, predicted = (np.array(table[name].to_pylist(), np.float64) for name in ("target", "predicted"))
    if target.ndim != 1 or target.shape != predicted.shape:
        return ()
    distance = np.abs(target - predicted)
    order = np.argsort(-distance)[:MOST_WORST]
    return tuple(
        Worst(f"{target[at]:.4g}", f"{predicted[at]:.4g}", float(distance[at]), *_place(table, int(at)))
        for at in order.tolist()
    )


def _of_texts(table: Mapping[str, Any]) -> tuple[Worst, ...]:
    pairs = list(zip(table["target"].to_pylist(), table["generated"].to_pylist(), strict=True))
    wrong = [at for at, (target, generated) in enumerate(pairs) if target != generated]
    # letters in any order say quickly which texts differ most
    common = {at: SequenceMatcher(None, *pairs[at]).quick_ratio() for at in wrong}
    chosen = sorted(wrong, key=lambda at: common[at])[:MOST_WORST]
    differ = {at: 1 - SequenceMatcher(None, *pairs[at]).ratio() for at in chosen}
    wrong = sorted(chosen, key=lambda at: -differ[at])
    return tuple(Worst(_line(pairs[at][0]), _line(pairs[at][1]), differ[at], *_place(table, at)) for at in wrong)


def _place(table: Mapping[str, Any], at: int) -> tuple[str, str]:
    """Return where an item is from, the last parts of the file's path, the row, and the token in it; and its text."""
    source = "/".join(str(table["source"][at]).rsplit("/", 2)[-2:])
    token = f" token {table['token'][at]}" if "token" in table else ""
    text = table["text"][at].as_py() if "text" in table else None
    return f"{source}:row {table['row'][at]}{token}", _line(text or "")


def _line(text: str) -> str:
    """Return a text on one line, without what a terminal must not obey."""
    return " ".join(neutralise(text).split())
