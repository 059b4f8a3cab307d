"""Run the recipes that need no network, each in a directory of its own, and write docs/recipes.md.

uv run python scripts/run_recipes.py                 # all of them in full
uv run python scripts/run_recipes.py classify tag    # only these; docs/recipes.md keeps the rows of the others
uv run python scripts/run_recipes.py --short         # all of them with `--mode sanity`; writes nothing

A recipe is run if one of its first lines is `# result: METRIC above NUMBER` (or `below NUMBER`), with the name of a
metric as in the log. After a full run, the metric must be above (or below) that number. A metric of `validation/test`
is what `trainkit eval RUN --split test` says of the best checkpoint, or of the last one. Others are those of the last
evaluation.
"""

from __future__ import annotations

import argparse
import datetime
import json
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

from trainkit.events.tail import read
from trainkit.text import format_count, format_duration

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "recipes.md"
RESULT = re.compile(r"^# result: (\S+) (above|below) (-?\d+(?:\.\d+)?)", re.MULTILINE)
#: How busy other programs keep the machine: the load average of the last minute, before the first recipe.
LOAD = os.getloadavg()[0]
#: The column of the table, from 0, that says what result a recipe expects.
EXPECTED = 7
HEAD = """\
# Recipes that need no network

`scripts/run_recipes.py` ran each of these recipes in full and wrote this table. The data are the Python standard
library, or `recipes/toy_data.py` makes them from a seed. The models start from random weights. *Time* is that of
`trainkit run`, including tokenising, compiling and evaluating. *Load* is the load average of the machine before the
first recipe: the number of processes of other programs that were running or waiting for a core.

The settings were chosen on other data, the sets of `validation/dev`. Results of `validation/test` are those of the best
checkpoint, or of the last where none is the best. `held-out` is what the recipe was chosen on: it has no other set.

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

    @property
    def expected(self) -> str:
        """The bound as the table shows it."""
        return f"{self.bound} {self.number:g}"

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric is as expected."""
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


def result(recipe: Recipe, run: Path) -> float:
    """Return what a run reached. Raises CalledProcessError, and LookupError where no evaluation has the metric."""
    if recipe.metric.startswith("validation/test/"):
        best = "/best" if (run / "checkpoints" / "best.json").exists() else ""
        command = [sys.executable, "-m", "trainkit", "eval", f"{run}{best}", "--split", "test", "--json"]
        done = subprocess.run(command, cwd=run.parents[1], check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout)["metrics"]["test"][recipe.metric])
    metrics = [event["metrics"] for event in read(run) if event["type"] == "evaluated"]
    return float(metrics[-1][recipe.metric])


def row(recipe: Recipe, run: Path, seconds: float, value: float) -> str:
    """Return the row of a run in the table."""
    events = read(run)
    plan = next(event["plan"] for event in events if event["type"] == "planned")
    resolved = tomli.loads((run / "recipe.toml").read_text())
    name = recipe.path.stem
    busy = f", load {LOAD:.0f}" if LOAD >= 1 else ""
    cells = [
        f"[{name}](../recipes/{name}.toml)",
        resolved["task"]["type"],
        resolved["model"]["type"],
        format_count(plan["parameters"]),
        str(max(event["step"] for event in events)),
        format_duration(seconds),
        f"`{recipe.metric}` {value:.3g}",
        recipe.expected,
        datetime.date.today().isoformat(),
        f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}{busy}",
    ]
    return f"| {' | '.join(cells)} |"


def written(rows: dict[str, str]) -> str:
    """Return the document with new rows, and with the old rows of recipes that have no new one.

    What a recipe expects is what it states now.
    """
    old = {}
    if DOCUMENT.is_file():
        old = {m[1]: m[0] for m in re.finditer(r"^\| \[(.+?)\]\(.*\|$", DOCUMENT.read_text(), re.MULTILINE)}
    table, lines = old | rows, []
    for recipe in offline():
        if recipe.path.stem in table:
            cells = table[recipe.path.stem].strip("| ").split(" | ")
            cells[EXPECTED] = recipe.expected
            lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the recipes that need no network.")
    parser.add_argument("names", nargs="*", help="names of recipes; by default all of them")
    parser.add_argument("--short", action="store_true", help="run them with --mode sanity, and write nothing")
    options = parser.parse_args()
    recipes = {recipe.path.stem: recipe for recipe in offline()}
    if unknown := [name for name in options.names if name not in recipes]:
        parser.error(f"no recipe named {', '.join(unknown)} states a result: choose from {', '.join(recipes)}")
    chosen = [recipe for name, recipe in recipes.items() if not options.names or name in options.names]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="trainkit-recipes-") as directory:
        for recipe in chosen:
            start = time.monotonic()
            try:
                run = train(recipe, Path(directory), short=options.short)
                seconds = time.monotonic() - start
                value = result(recipe, run)
            except subprocess.CalledProcessError as error:
                wrong.append(f"{recipe.path.stem}: exit code {error.returncode}: {error.stderr or ''}")
                continue
            except LookupError:
                wrong.append(f"{recipe.path.stem}: no evaluation has {recipe.metric}")
                continue
            if options.short:
                continue
            line = row(recipe, run, seconds, value)
            print(line)
            DOCUMENT.write_text(written({recipe.path.stem: line}))
            if not recipe.holds(value):
                wrong.append(f"{recipe.path.stem}: {recipe.metric} is {value:.3g}, not {recipe.expected}")
    print("\n".join(wrong) or "all as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
