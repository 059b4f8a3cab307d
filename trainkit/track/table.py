"""A run's numbers as a table: a row a step, a column a metric."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.events.current_steps import record
from trainkit.events.log import Tail
from trainkit.events.schema import FOREIGN
from trainkit.events.series import Series
from trainkit.track.tail import events_to_copy


def write(run_directory: Path, path: Path) -> int:
    """Write the metrics of a run to `path`, `.csv` or `.parquet`; the number of rows.

    Every step is there, however long the run. What an earlier attempt did beyond the step from which a later one went
    on is left out, as everywhere.

    Raises:
        TrainkitError: the suffix is another one, or the file cannot be written.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise TrainkitError("a table is a .csv or a .parquet file", where=str(path), hint="give it one of these names")
    columns = _columns(_metrics(run_directory))
    try:
        if path.suffix == ".csv":
            _write_csv(columns, path)
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table(columns), path)
    except OSError as error:
        raise TrainkitError(
            f"cannot write it: {error.strerror or error}",
            where=str(path),
            hint="give it a directory that is there and that you may write to",
        ) from error
    return len(columns["step"])


def _metrics(run_directory: Path) -> dict[str, Series]:
    found: dict[str, Series] = {}
    tail, course = Tail(run_directory), events_to_copy(run_directory)
    while events := tail.poll():
        for event in events:
            if course.keeps(event) and event["type"] in ("step", "evaluated"):
                with contextlib.suppress(*FOREIGN):
                    record(found, event)
    return found


def _columns(metrics: Mapping[str, Series]) -> dict[str, list[float | int | None]]:
    """`step`, and each metric by its name; None where a step has no value of it."""
    steps = sorted(set().union(*(series.steps for series in metrics.values())))
    columns: dict[str, list[float | int | None]] = {"step": [int(step) for step in steps]}
    for name, series in sorted(metrics.items()):
        values = dict(zip(series.steps, series.values, strict=True))
        columns[name] = [values.get(step) for step in steps]
    return columns


def _write_csv(columns: Mapping[str, list[float | int | None]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
