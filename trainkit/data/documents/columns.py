"""Columns of numbers as pieces: the features of a row, then its target, as bytes of little-endian float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from trainkit.data.documents.pieces import Piece, RowContext
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.document import Columns

_FLOAT = np.dtype("<f4")


def make(document: Columns, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the one piece of a row: its numbers as bytes, uint8 (4 × (features + 1),)."""
    numbers: list[float] = []
    for key in document.keys:
        setting = "document.target" if key == document.target else "document.features"
        if key not in row:
            return missing_key(key, row, setting)
        number = number_of(row[key])
        if number is None:
            return f"'{key}' is {_show(row[key])}, not a number", f"{setting} names columns of numbers"
        if not abs(number) <= float(np.finfo(_FLOAT).max):
            return f"'{key}' is {_show(row[key])}, which is not finite as float32", ""
        numbers.append(number)
    return [Piece(index=index, ids=np.array(numbers, _FLOAT).view(np.uint8))]


def width(document: Columns) -> int:
    """Return the bytes that a row is stored as."""
    return _FLOAT.itemsize * (len(document.features) + 1)


def decode(document: Columns, rows_NW: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features, float32 (N, F), the targets, float32 (N,), and weights of 1, float32 (N,)."""
    numbers_NC = rows_NW.view(_FLOAT).astype(np.float32, copy=False)
    return {
        "features": numbers_NC[:, :-1],
        "target": numbers_NC[:, -1],
        "weights": np.ones(len(rows_NW), np.float32),
    }


def number_of(value: Any) -> float | None:
    """Return a number of a table or of JSON, or the number that a text such as a field of CSV is; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str | np.number):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else kind_of(value)
