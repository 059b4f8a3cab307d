"""A run's numbers as a table: a row a step, a column a metric."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.events.log import Tail
from trainkit.events.view import View, reduce


def write(run_directory: Path, path: Path) -> int:
    """Write the metrics of a run to `path`, `.csv` or `.parquet`; the number of rows.

    What an earlier attempt did beyond the step from which a later one went on is left out, as everywhere.

    Raises:
        TrainkitError: the suffix is another one, or the file cannot be written.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise TrainkitError("a table is a .csv or a .parquet file", where=str(path), hint="give it one of these names")
    view, tail = View(), Tail(run_directory)
    while events := tail.poll():
        for event in events:
            reduce(view, event)
    columns = _columns(view)
    try:
        if path.suffix == ".csv":
            _write_csv(columns, path)
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table(columns), path)
    except OSError as error:
        raise TrainkitError(f"cannot write it: {error.strerror or error}", where=str(path)) from error
    return len(columns["step"])


def _columns(view: View) -> dict[str, list[float | int | None]]:
    """`step`, and each metric by its name; None where a step has no value of it."""
    by_name = {name: dict(zip(series.steps, series.values, strict=True)) for name, series in view.series.items()}
    steps = sorted({step for values in by_name.values() for step in values})
    columns: dict[str, list[float | int | None]] = {"step": [int(step) for step in steps]}
    return columns | {name: [values.get(step) for step in steps] for name, values in sorted(by_name.items())}


def _write_csv(columns: Mapping[str, list[float | int | None]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
