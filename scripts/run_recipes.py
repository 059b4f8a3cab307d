"""Run the recipes that need no network, each in a directory of its own, and write docs/recipes.md.

uv run python scripts/run_recipes.py                 # all of them in full
uv run python scripts/run_recipes.py classify tag    # only these; docs/recipes.md keeps the rows of the others
uv run python scripts/run_recipes.py --short         # all of them with `--mode sanity`; writes nothing

A recipe takes part if one of its first lines is `# result: METRIC above NUMBER` (or `below NUMBER`), with the name of a
metric as in the log. The last evaluation of a run in full must give such a value.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tomli

from trainkit.events.log import read
from trainkit.text import format_count, format_duration

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "recipes.md"
RESULT = re.compile(r"^# result: (\S+) (above|below) ([\d.]+)", re.MULTILINE)
HEAD = """\
# Recipes that need no network

`scripts/run_recipes.py` ran each of these in full and wrote this table. Their data are the Python standard library or
are made from a seed, by `recipes/toy_data.py`, and the models begin with random weights. *Time* is that of the whole
command, with tokenising, compiling and evaluating.

| recipe | task | model | parameters | steps | time | result | expected | date | machine |
|---|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Recipe:
    """A recipe and the result that it states."""

    path: Path
    metric: str
    bound: str
    """`above` or `below`."""
    number: float

    def holds(self, value: float) -> bool:
        return value > self.number if self.bound == "above" else value < self.number


def offline() -> list[Recipe]:
    """Return the recipes that state a result, by name."""
    found = ((path, RESULT.search(path.read_text())) for path in sorted((ROOT / "recipes").glob("*.toml")))
    return [Recipe(path, match[1], match[2], float(match[3])) for path, match in found if match]


def train(recipe: Recipe, directory: Path, *, short: bool) -> Path:
    """Run a recipe in a directory and return the directory of the run. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "trainkit", "run", str(recipe.path), "--plain", "--name", recipe.path.stem]
    command += ["--mode", "sanity"] if short else []
    subprocess.run(command, cwd=directory, check=True)
    return directory / "runs" / recipe.path.stem


def row(recipe: Recipe, run: Path, seconds: float) -> tuple[str, bool]:
    """Return the row of a run in the table, and whether its result is as stated."""
    events = read(run)
    plan = next(event["plan"] for event in events if event["type"] == "planned")
    values = [e["metrics"][recipe.metric] for e in events if e["type"] == "evaluated" and recipe.metric in e["metrics"]]
    resolved = tomli.loads((run / "recipe.toml").read_text())
    name = recipe.path.stem
    busy = f", load {load:.0f} as it began" if (load := LOAD) >= 1 else ""
    cells = [
        f"[{name}](../recipes/{name}.toml)",
        resolved["task"]["type"],
        resolved["model"]["type"],
        format_count(plan["parameters"]),
        str(max(event["step"] for event in events)),
        format_duration(seconds),
        f"`{recipe.metric}` {values[-1]:.3g}",
        f"{recipe.bound} {recipe.number:g}",
        datetime.date.today().isoformat(),
        f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}{busy}",
    ]
    return f"| {' | '.join(cells)} |", recipe.holds(values[-1])


def written(rows: dict[str, str]) -> str:
    """Return the document with new rows, and with the old rows of recipes that have no new one."""
    old = {}
    if DOCUMENT.is_file():
        old = {m[1]: m[0] for m in re.finditer(r"^\| \[(.+?)\]\(.*\|$", DOCUMENT.read_text(), re.MULTILINE)}
    names = [recipe.path.stem for recipe in offline()]
    table = old | rows
    return HEAD + "".join(f"{table[name]}\n" for name in names if name in table)


#: How busy other programs keep the machine: the load average before the first recipe.
LOAD = os.getloadavg()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the recipes that need no network.")
    parser.add_argument("names", nargs="*", help="recipes, by name; by default all")
    parser.add_argument("--short", action="store_true", help="run them with --mode sanity, and write nothing")
    options = parser.parse_args()
    chosen = [recipe for recipe in offline() if not options.names or recipe.path.stem in options.names]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="trainkit-recipes-") as directory:
        for recipe in chosen:
            start = time.monotonic()
            try:
                run = train(recipe, Path(directory), short=options.short)
            except subprocess.CalledProcessError as error:
                wrong.append(f"{recipe.path.stem}: exit code {error.returncode}")
                continue
            if options.short:
                continue
            line, holds = row(recipe, run, time.monotonic() - start)
            print(line)
            DOCUMENT.write_text(written({recipe.path.stem: line}))
            if not holds:
                wrong.append(f"{recipe.path.stem}: {recipe.metric} is not {recipe.bound} {recipe.number:g}")
    print("\n".join(wrong) or "all as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
