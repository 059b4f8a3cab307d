"""Documents that are not in a cache: how many, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: How many reasons for skipping documents are reported separately, and the name of all others.
REASONS, OTHER = 16, "has another problem"


class Reason(NamedTuple):
    """Why documents could not be read, with their number and bytes and the place of the first."""

    why: str
    documents: int
    bytes: int
    where: str


def group_reasons(reasons: Iterable[Reason], most: int = REASONS) -> tuple[Reason, ...]:
    """Return equal reasons as one, those with the most bytes first; those beyond `most` as one last reason."""
    grouped: dict[str, Reason] = {}
    for reason in reasons:
        before = grouped.get(reason.why, reason._replace(documents=0, bytes=0))
        grouped[reason.why] = before._replace(
            documents=before.documents + reason.documents, bytes=before.bytes + reason.bytes
        )
    ordered = sorted(grouped.values(), key=lambda reason: (-reason.bytes, -reason.documents, reason.why))
    if len(ordered) <= most:
        return tuple(ordered)
    rest = ordered[most - 1 :]
    other = Reason(OTHER, sum(reason.documents for reason in rest), sum(reason.bytes for reason in rest), rest[0].where)
    return (*ordered[: most - 1], other)


@dataclass(frozen=True)
class LeftOut:
    """Documents that are not in the cache, counted: unreadable ones, those filtered by length, and empty ones.

    `examples` are the first few of each shard, as (where, why); `reasons` count all of them.
    """

    refused: int
    examples: tuple[tuple[str, str], ...]
    reasons: tuple[Reason, ...]
    filtered: int
    empty: int
