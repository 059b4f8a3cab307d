"""Where a part of `gpu.py` runs: its time, its processes, and the files with its results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"
#: Seconds of a part.
LIMIT = 520.0
#: What a child prints of the device and the versions.
FACTS = """
import importlib.metadata, json, platform
import jax
names = "jax jaxlib jax-cuda12-plugin jax-cuda13-plugin equinox optax tensorstore torch transformers".split()
facts = {"device": jax.devices()[0].device_kind, "devices": len(jax.devices()), "python": platform.python_version()}
for name in names:
    try:
        facts[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(facts))
"""


class Row(NamedTuple):
    """One result: what was measured or checked, what came out, and what should."""

    what: str
    found: str
    wanted: str = ""
    good: bool | None = None
    """None for a number that is not compared with anything."""


class Done(NamedTuple):
    """A process that has ended, or was ended because there was no time left (`code` is None)."""

    code: int | None
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """Return the end of what it had to say, for a row."""
        return (self.errors.strip() or self.output.strip() or "nothing").splitlines()[-1][:200]


class Part(NamedTuple):
    """A part: what it does, as rows that come one after another, and what it shows."""

    rows: Callable[[Place], Iterator[Row]]
    shows: str


class Place:
    """The surroundings of one part, with a directory of its own that is removed in the end."""

    def __init__(self, name: str, out: Path, limit: float, torch: str, small: bool) -> None:
        self.name, self.torch, self.small = name, torch, small
        self._out, self._end = out, time.monotonic() + limit
        self._results: dict[str, Any] = {}
        self.directory = Path()

    def run(self, part: Part) -> int:
        """Write the rows of a part as they come; return 1 if one is not as it should be."""
        self._out.mkdir(parents=True, exist_ok=True)
        facts = self.call([sys.executable, "-c", FACTS])
        known = json.loads(facts.output.splitlines()[-1]) if facts.code == 0 else {"device": facts.last_line}
        self._results = {
            "part": self.name,
            "shows": part.shows,
            "small": self.small,
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            **known,
            "driver": self._driver(),
            "revision": self._revision(),
            "rows": [],
        }
        with tempfile.TemporaryDirectory(prefix="trainkit-gpu-") as directory:
            self.directory = Path(directory)
            began, rows = time.monotonic(), part.rows(self)
            while True:
                try:
                    row = next(rows)
                except StopIteration:
                    break
                except Exception as error:  # the rows before it are kept
                    row = Row("the part itself", f"{type(error).__name__}: {error}", "no error", False)
                self._add(row, seconds=time.monotonic() - began)
                began = time.monotonic()
        return int(any(row["good"] is False for row in self._results["rows"]))

    @property
    def seconds_left(self) -> float:
        """Return how much time the part has."""
        return max(0.0, self._end - time.monotonic())

    def call(self, command: list[str], **environment: str) -> Done:
        """Run a command to its end or to the end of the part's time, with these variables set."""
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=self.seconds_left)
                return Done(process.returncode, output, errors)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
                return Done(None, output, f"{errors}\nnot done when the part's time was over")

    def trainkit(self, *arguments: str, **environment: str) -> Done:
        """Run a command of trainkit."""
        return self.call([sys.executable, "-m", "trainkit", *arguments], **environment)

    def bench(self, script: str, *arguments: str, of: str = "") -> Iterator[Row]:
        """Run a script of scripts/bench; yield a row for each row of the Markdown tables that it prints, or for each
        line if it prints none. `of` says what it is about, such as a model."""
        done = self.call([sys.executable, str(BENCH / script), *arguments])
        found = list(table_rows(done.output))
        for cells in found:
            name, *values = cells.items()
            yield Row(
                f"{script}{of and f' {of}'}: {name[1]}", "; ".join(f"{key} {value}" for key, value in values if value)
            )
        if not found:
            yield from (Row(script, line) for line in done.output.splitlines() if line.strip() and line[0] != "#")
        if done.code != 0:
            yield Row(" ".join([script, *arguments]), f"exit code {done.code}: {done.last_line}", "no error", False)

    def _add(self, row: Row, *, seconds: float) -> None:
        self._results["rows"].append({**row._asdict(), "seconds": round(seconds, 1)})
        (self._out / f"part-{self.name}.json").write_text(json.dumps(self._results, indent=1) + "\n")
        (self._out / f"part-{self.name}.md").write_text(markdown(self._results))
        print(f"{'' if row.good is None else 'ok ' if row.good else 'BAD '}{row.what}: {row.found}", flush=True)

    def _driver(self) -> str:
        query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader", "--id=0"]
        with contextlib.suppress(OSError):
            return self.call(query).output.strip()
        return ""

    def _revision(self) -> str:
        with contextlib.suppress(OSError):
            return self.call(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]).output.strip()
        return ""


def markdown(results: dict[str, Any]) -> str:
    """Return the results of a part as a table whose rows stand alone: each has device, versions and date."""
    versions = ", ".join(f"{name} {results[name]}" for name in ("jax", "torch", "python") if name in results)
    where = f"{results['device']}, driver {results['driver'] or 'none'}{' (small form)' if results['small'] else ''}"
    lines = [
        "| part | what | found | wanted | device | versions | revision | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        wanted = f"{row['wanted']}: {'yes' if row['good'] else 'NO'}" if row["good"] is not None else row["wanted"]
        cells = [
            results["part"],
            row["what"],
            row["found"],
            wanted,
            where,
            versions,
            results["revision"],
            results["date"],
        ]
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def table_rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the Markdown tables in a text, by the heads of their columns."""
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heads = []
        elif not heads:
            heads = cells
        elif not all(set(cell) <= set("-: ") for cell in cells):
            yield dict(zip(heads, cells, strict=False))
