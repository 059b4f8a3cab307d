"""Statistics of layers and parameters over the steps of a run, thinned so that a long run fits in memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

#: The most steps that are kept. Beyond it every second one is dropped.
MOST = 256


class LayerValues(NamedTuple):
    """The statistics of one step: by path, such as `gradients/l2/blocks.mlp_in.weight`, a value for each layer."""

    step: int
    values: dict[str, array[float]]


class LayerHistory:
    """The statistics of at most `MOST` steps, equally far apart, and of the newest one."""

    def __init__(self) -> None:
        self.columns: list[LayerValues] = []
        #: Grows with every change.
        self.version = 0
        self._paths: dict[str, str] = {}
        self._stride, self._count, self._passing = 1, 0, False

    def add(self, step: int, values: Mapping[str, array[float]]) -> None:
        """Add the statistics of a step."""
        if self._passing:
            self.columns.pop()
        self.columns.append(LayerValues(step, {self._paths.setdefault(path, path): x for path, x in values.items()}))
        self._passing = self._count % self._stride != 0
        self._count += 1
        self.version += 1
        if len(self.columns) > MOST:
            self._thin()

    def cut(self, after: int) -> None:
        """Forget the steps after this one."""
        kept = [column for column in self.columns if column.step <= after]
        if len(kept) < len(self.columns):
            self.columns, self._passing, self._count = kept, False, len(kept) * self._stride
            self.version += 1

    def _thin(self) -> None:
        self._stride *= 2
        newest = self.columns[-1]
        self.columns = self.columns[::2]
        self._passing = self.columns[-1] is not newest or (self._count - 1) % self._stride != 0
        if self.columns[-1] is not newest:
            self.columns.append(newest)
