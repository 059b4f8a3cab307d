"""Compare optimizers on recipes/quickstart.toml with tuned learning rates and several seeds; write docs/optimisers.md.

uv run python scripts/compare_optimizers.py                  # all of it; after a stop, the same command continues
uv run python scripts/compare_optimizers.py muon lion        # trains only these; the table keeps the others' results
uv run python scripts/compare_optimizers.py --draw           # trains nothing: table and picture of the results so far

Every optimizer trains the model of the recipe on its data. The learning rate is that of the lowest bits per byte after
`--tuning-steps` steps with seed 0: of three rates, each twice the one before it, and of more on a side while the rate
at the edge is the best. With it, each of the seeds trains for `--steps` steps. The optimizers take turns, so that a
machine that is busy for a while slows down all of them. Of each run a JSON file in `--directory` keeps the results; a
run that was cut off is run again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from trainkit.dashboard.charts import ticks
from trainkit.events.tail import number, read

ROOT = Path(__file__).resolve().parents[1]
RECIPE, DOCUMENT, PICTURE = (
    ROOT / place for place in ("recipes/quickstart.toml", "docs/optimisers.md", "docs/optimizers.svg")
)
BEGIN, END = "<!-- results: scripts/compare_optimizers.py writes what follows -->", "<!-- end of the results -->"
METRIC = "validation/held-out/bits_per_byte"
#: Evaluations of a run, and the most rates that are tried for an optimizer.
POINTS, RATES = 10, 7


@dataclass(frozen=True)
class Rule:
    """An optimizer: its table in the recipe, where RATE is the learning rate, the middle of the first three rates, and
    the schedule where it is not the recipe's."""

    table: str
    middle: float
    color: str
    schedule: str = ""

    def settings(self, rate: float) -> list[str]:
        """Return what the recipe changes to train with this optimizer."""
        found = [f"optimizer={{ {self.table.replace('RATE', repr(rate))} }}"]
        return [*found, f"schedule={{ {self.schedule} }}"] if self.schedule else found


_REST = 'learning_rate = RATE, adamw = { type = "adamw", learning_rate = RATE, betas = [0.9, 0.98] }'
RULES = {
    "adamw": Rule('type = "adamw", learning_rate = RATE, betas = [0.9, 0.98]', 2.5e-3, "#000000"),
    "muon": Rule(f'type = "muon", scale = "rms", {_REST}', 5e-3, "#d55e00"),
    "lion": Rule('type = "lion", learning_rate = RATE', 4e-4, "#0072b2"),
    "schedule-free": Rule(
        'type = "schedule-free", learning_rate = RATE, betas = [0.9, 0.98]', 5e-3, "#009e73",
        'type = "constant", warmup = 0.05',
    ),
    "soap": Rule(f'type = "soap", {_REST}', 2.5e-3, "#cc79a7"),
    "sgd": Rule('type = "sgd", momentum = 0.9, nesterov = true, learning_rate = RATE', 0.4, "#999999"),
    "adafactor": Rule('type = "adafactor", learning_rate = RATE', 0.1, "#e69f00"),
    "prodigy": Rule('type = "prodigy", learning_rate = RATE, betas = [0.9, 0.98]', 1.0, "#56b4e9"),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a run showed."""

    rule: str
    rate: float
    seed: int
    steps: int
    curve: list[tuple[int, float]]
    """Bits per byte by step, infinite where the run has diverged."""
    seconds: float
    """The median time of a step."""

    @property
    def value(self) -> float:
        """Return the bits per byte at the end."""
        return self.curve[-1][1]


class Laboratory:
    """Runs of the rules in `trained`, and the results of all runs in a directory."""

    def __init__(self, directory: Path, trained: Collection[str]) -> None:
        self.directory, self.trained = directory.resolve(), trained
        self.directory.mkdir(parents=True, exist_ok=True)

    def result(self, rule: str, rate: float, *, seed: int, steps: int, points: int) -> Result | None:
        """Return the result of a run, which is trained if there is none yet; None if there is none and its rule is not
        trained. Raises CalledProcessError if the run fails."""
        name = f"{rule}-{rate:g}-seed-{seed}-steps-{steps}"
        file = self.directory / f"{name}.json"
        if file.exists():
            return Result(**json.loads(file.read_text()))
        if rule not in self.trained:
            return None
        run = self.directory / "runs" / name
        shutil.rmtree(run, ignore_errors=True)
        settings = [
            *RULES[rule].settings(rate), f"run.seed={seed}", f"train.steps={steps}", f'run.directory="{run.parent}"',
            f"evaluate.every={steps // points}", f"sample.every={steps}", "track.aim=false",
            f'data.cache="{self.directory}/cache"',
        ]  # fmt: skip
        command = [sys.executable, "-m", "trainkit", "run", str(RECIPE), "--plain", "--name", name]
        done = subprocess.run(
            [*command, *(part for setting in settings for part in ("--set", setting))],
            cwd=self.directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            done.check_returncode()
        found = summary(run, rule, rate, seed, steps)
        draft = file.with_suffix(".part")
        draft.write_text(json.dumps(asdict(found)) + "\n")
        draft.replace(file)
        shutil.rmtree(run)
        print(f"{name}: {found.value:.4f} bits per byte, {1000 * found.seconds:.0f} ms a step", flush=True)
        return found

    def tuned_rate(self, rule: str, steps: int) -> float | None:
        """Return the learning rate that is best after so many steps; None if results are missing."""
        tried: dict[float, float] = {}
        rates = [RULES[rule].middle * factor for factor in (0.5, 1, 2)]
        while True:
            for rate in rates:
                found = self.result(rule, rate, seed=0, steps=steps, points=1)
                if found is None:
                    return None
                tried[rate] = found.value
            best = min(tried, key=lambda rate: (tried[rate], rate))
            if len(tried) >= RATES or min(tried) < best < max(tried):
                return best
            rates = [best / 2 if best == min(tried) else best * 2]


def summary(run: Path, rule: str, rate: float, seed: int, steps: int) -> Result:
    """Return the result of a run from its log."""
    events = read(run)
    curve = [(e["step"], number(e["metrics"][METRIC])) for e in events if e["type"] == "evaluated"]
    times = [number(e["metrics"]["time/step"]) for e in events if e["type"] == "step"][1:]
    finite = [(step, value if math.isfinite(value) else math.inf) for step, value in curve]
    return Result(rule, rate, seed, steps, finite, statistics.median(times))


def write_table(results: dict[str, list[Result]]) -> None:
    """Write the results of the rules into the document, the best first, where they lie between BEGIN and END."""

    def spread(values: Sequence[float]) -> str:
        return f"{statistics.stdev(values):.4f}" if len(values) > 1 and all(map(math.isfinite, values)) else "–"

    lines = [
        "| `type` | learning rate | bits per byte | deviation | seeds | seconds a step | × `adamw` |",
        "|---|---|---|---|---|---|---|",
    ]
    base = {result.seed: result.seconds for result in results.get("adamw", [])}
    for rule, found in sorted(results.items(), key=lambda item: mean([result.value for result in item[1]])):
        values, seconds = [result.value for result in found], statistics.median(result.seconds for result in found)
        ratios = [result.seconds / base[result.seed] for result in found if result.seed in base]
        cells = [
            f"`{rule}`",
            f"{found[0].rate:.3g}",
            f"{mean(values):.4f}",
            spread(values),
            str(len(values)),
            f"{seconds:.3f}",
        ]
        lines.append(f"| {' | '.join([*cells, f'{statistics.median(ratios):.2f}' if ratios else '–'])} |")
    steps = next(iter(results.values()))[0].steps
    machine = f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"{datetime.date.today().isoformat()}, {machine}. {steps:,} steps.\n"
        "Bits per byte are those of the held-out files: the mean of the seeds and their standard deviation."
    )
    picture = f"![bits per byte over steps and seconds]({PICTURE.name})"
    text = "\n\n".join([BEGIN, head, "\n".join(lines), picture, END])
    place = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    DOCUMENT.write_text(place.sub(lambda _: text, DOCUMENT.read_text()))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


#: Pixels of the picture, of a panel, and around it.
WIDTH, HEIGHT, PANEL, LEFT, APART, TOP, BOTTOM = 1000, 460, 415, 60, 500, 70, 400


def write_picture(results: dict[str, list[Result]]) -> None:
    """Draw the mean of each rule's curves and the band from their lowest to their highest, over steps and seconds."""
    ends = [value for found in results.values() if math.isfinite(value := mean([result.value for result in found]))]
    low = min(ends) - 0.05
    high = min(max(ends) + 0.3, low + 1.5)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, "bits per byte of the held-out files: mean, lowest and highest of the seeds"),
    ]
    for place, rule in enumerate(results):
        x = LEFT + 115 * place
        parts += [f'<path d="M{x} 44h18" stroke="{RULES[rule].color}" stroke-width="3"/>', _text(x + 24, 48, rule)]
    steps = float(max(result.steps for found in results.values() for result in found))
    seconds = {rule: statistics.median(result.seconds for result in found) for rule, found in results.items()}
    parts += _panel(results, LEFT, (low, high), steps, dict.fromkeys(results, 1.0), "steps")
    parts += _panel(
        results, LEFT + APART, (low, high), steps * max(seconds.values()), seconds, "seconds of training steps"
    )
    PICTURE.write_text("\n".join([*parts, "</svg>", ""]))


def _panel(
    results: dict[str, list[Result]],
    left: float,
    y: tuple[float, float],
    most: float,
    scale: dict[str, float],
    name: str,
) -> Iterator[str]:
    """Yield one panel: axes, bands and lines; `scale` is what a step of each rule counts on the horizontal axis."""

    def at(value: float) -> float:
        return TOP + (y[1] - min(value, y[1] + 1)) / (y[1] - y[0]) * (BOTTOM - TOP)

    clip = name.split()[0]
    area = f'<rect x="{left}" y="{TOP}" width="{PANEL}" height="{BOTTOM - TOP}"/>'
    yield f'<clipPath id="{clip}">{area}</clipPath>'
    for value, label in ticks.linear(*y, most=8):
        yield f'<path d="M{left} {at(value):.1f}h{PANEL}" stroke="#dddddd"/>'
        yield _text(left - 6, at(value) + 4, label, anchor="end")
    for value, label in ticks.linear(0, most, most=7):
        yield _text(left + value / most * PANEL, BOTTOM + 18, label, anchor="middle")
    yield f'<path d="M{left} {BOTTOM}h{PANEL}" stroke="#000000"/>'
    yield _text(left + PANEL / 2, BOTTOM + 40, name, anchor="middle")
    for rule, found in results.items():
        known = [step for step, _ in found[0].curve]
        values = [[dict(result.curve).get(step, math.inf) for result in found] for step in known]
        x = [left + step * scale[rule] / most * PANEL for step in known]
        upper, lower = ([at(of(column)) for column in values] for of in (max, min))
        band = _path([*x, *reversed(x)], [*upper, *reversed(lower)])
        yield f'<path d="{band}Z" fill="{RULES[rule].color}" fill-opacity="0.2" clip-path="url(#{clip})"/>'
        line = _path(x, [at(mean(column)) for column in values])
        stroke = f'stroke="{RULES[rule].color}" stroke-width="2"'
        yield f'<path d="{line}" fill="none" {stroke} clip-path="url(#{clip})"/>'


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="optimizers to train; by default all of them")
    parser.add_argument("--steps", type=int, default=400, help=f"a multiple of {POINTS}")
    parser.add_argument("--tuning-steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--directory", type=Path, default=Path("runs/optimizers"), help="where results are kept")
    parser.add_argument("--draw", action="store_true", help="train nothing; write the results that there are")
    given = parser.parse_args()
    if unknown := [rule for rule in given.rules if rule not in RULES]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(RULES)}")
    if given.steps % POINTS or given.steps <= 0:
        parser.error(f"--steps must be a multiple of {POINTS}, found {given.steps}")
    if not 0 < given.tuning_steps < given.steps:
        parser.error(f"--tuning-steps must be from 1 to --steps - 1, found {given.tuning_steps}")
    laboratory = Laboratory(given.directory, [] if given.draw else given.rules or list(RULES))
    rates = {rule: laboratory.tuned_rate(rule, given.tuning_steps) for rule in RULES}
    results: dict[str, list[Result]] = {}
    for seed in given.seeds:
        for rule, rate in rates.items():
            if rate is not None:
                found = laboratory.result(rule, rate, seed=seed, steps=given.steps, points=POINTS)
                results.setdefault(rule, []).extend([found] if found else [])
    results = {rule: found for rule, found in results.items() if found}
    if not results:
        sys.exit(f"no results of {given.steps} steps in {given.directory}")
    write_table(results)
    write_picture(results)


if __name__ == "__main__":
    main()
