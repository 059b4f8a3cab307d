"""What the readers of all formats have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainkit.data.documents.pieces import Refused


class SourceRow(NamedTuple):
    """A row of a file, before it is a document."""

    number: int
    """Of the document in its file."""
    place: str
    """As in `Refused`."""
    values: Mapping[str, Any]


Rows = Iterator[SourceRow]


def refuse_damaged(error: Exception, place: str = "") -> Refused:
    """That a file cannot be read from here on."""
    return Refused(place, f"is damaged or cut off: {error}", "fetch the file again")
