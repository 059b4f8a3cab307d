"""Runs that have ended, for pictures of the dashboard: on every page there is something to see, each time the same."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_run
from fake_run import saved
from PIL import Image
from trainer import WORDS

from trainkit.data.cache.build import build
from trainkit.data.recorded import keep
from trainkit.events.schema import SCHEMA, Event
from trainkit.recipe.toml.load import load
from trainkit.rundir.directory import create, recipe_of, replace_recipe

#: Unix seconds at which the run began, and at which it is looked at.
BEGAN, NOW = 1_750_000_000.0, 1_750_002_400.0
STEPS, RESUMED_FROM, LOST_AT = 600, 300, 340
CORES, DEVICES = 16, 2
PROMPTS = {"the cat": " sat on a mat and saw one dog run far from home", "one dog": " saw all old roads near us"}
IMAGE = "samples/digit.png"
SETS = {"held-out": 0.0, "books": 0.35}
SECONDS = 0.37
#: Those beside it: the name, the learning rate, the factor of the losses, the steps that were done.
OTHERS = (("small-rate", 1e-3, 1.25, 600), ("large-rate", 2e-2, 1.5, 600), ("cut", 4e-3, 1.0, 250))
RECIPE = """\
schema = 1
[run]
name = "shown"
[model]
type = "gpt2"
layers = 2
hidden = 32
heads = 2
[tokenizer]
train = { vocab_size = 300 }
[data]
sequence_length = 32
held_out = 0.1
[[data.train]]
name = "prose"
path = "text/prose-*.txt"
weight = 3.0
[[data.train]]
name = "speech"
path = "text/speech.txt"
weight = 1.0
[[data.validation]]
name = "books"
path = "text/book.txt"
[train]
steps = 600
batch_size = 8
[optimizer]
learning_rate = 4e-3
"""


#: A kind of event, its step and its own fields.
Told = tuple[str, int, dict[str, Any]]


def make(directory: Path) -> Path:
    """The run, in `directory`/runs beside three others; with its data, so that its batches can be read. Paths are
    relative: the working directory is `directory`."""
    chance = random.Random(0)
    (directory / "text").mkdir()
    for name in ("book", "speech", *(f"prose-{i}" for i in range(12))):
        text = "\n".join(" ".join(chance.choices(WORDS, k=12)) for _ in range(20))
        (directory / "text" / f"{name}.txt").write_text(text)
    (directory / "shown.toml").write_text(RECIPE)
    run = create(load(Path("shown.toml"), ["train.max_grad_norm=0.5"]))
    replace_recipe(run, recipe_of(run, ["evaluate.every=50"]), attempt=1)
    for path in run.glob("*.toml"):
        path.write_text(path.read_text().replace(f"{directory}/", "").replace(f'"{directory}"', '"."'))
    keep(build(recipe_of(run).recipe), run)  # as a run does that is trained: its batches are those of this data
    for step in (400, 500, 600):
        kind = "final" if step == STEPS else "permanent"
        saved(run, step, kind=kind, created=BEGAN + 700 + SECONDS * step, attempt=2)
    fake_run.write(run, list(events()))
    picture = Image.new("RGB", (28, 28), "#203040")
    picture.paste("#f0e0d0", (7, 5, 21, 9))
    picture.paste("#f0e0d0", (17, 9, 21, 24))
    (run / IMAGE).parent.mkdir()
    picture.save(run / IMAGE)
    for name, rate, factor, steps in OTHERS:
        other = fake_run.write(directory / "runs" / name, list(events(factor=factor, last=steps, name=name)))
        (other / "recipe.toml").write_text((run / "recipe.toml").read_text().replace("0.004", str(rate)))
    return Path("runs") / run.name


def events(*, factor: float = 1.0, last: int = STEPS, name: str = "shown") -> Iterator[Event]:
    """Two attempts: the first is lost after it has done more than the second goes on from."""
    rate = {"command": "rate", "argument": 0.5, "step": 250, "attempt": 1}
    status, code = ("finished", 0) if last == STEPS else ("stopped", 75)
    end = ("run_finished", last, {"status": status, "exit_code": code, "message": ""})
    attempts = [(BEGAN, [*_begin(name, None, []), *_training(1, min(LOST_AT, last), factor)])]
    if last > LOST_AT:
        again = [*_begin(name, RESUMED_FROM, [rate]), *_training(RESUMED_FROM + 1, last, factor)]
        attempts.append((BEGAN + 700, again))
    attempts[-1][1].append(end)
    for attempt, (began, told) in enumerate(attempts, 1):
        for kind, step, fields in told:
            yield {"type": kind, "t": began + SECONDS * step, "step": step, "attempt": attempt, **fields}


def _begin(name: str, resumed_from: int | None, orders: list[dict[str, Any]]) -> Iterator[Told]:
    versions = {"trainkit": "0.1.0", "jax": "0.10.2", "equinox": "0.13.8", "optax": "0.2.8", "numpy": "2.4.6"}
    yield "run_started", resumed_from or 0, {
        "schema": SCHEMA, "name": name, "pid": 4242, "process_started": BEGAN, "host": "workstation",
        "recipe": "3b789e", "resumed_from": resumed_from, "versions": versions, "orders": orders,
    }  # fmt: skip
    step = resumed_from or 0
    size = {"documents": 14, "bytes": 22_000, "tokens": 9_000, "total_bytes": 22_000}
    yield "cache_progress", step, {"what": "train", **size, "done": True}
    planned = {"parameters": 6.8e6, "gradients": 6.8e6, "optimizer": 13.6e6, "activations": 4.1e9, "logits": 1.2e9}
    plan = {
        **fake_run.PLAN, "batch": {"global_size": 16, "micro": 4, "accumulation": 2, "replicas": DEVICES},
        "bytes": {name: int(size) for name, size in planned.items()},
        "devices": {"count": DEVICES, "platform": "gpu", "kind": "A100", "memory_bytes": 8 << 30},
    }  # fmt: skip
    yield "planned", step, {"total_steps": STEPS, "plan": plan, "devices": ["A100"] * DEVICES}
    yield "compiled", step, {"what": "train step", "seconds": 2.9}


def _training(first: int, last: int, factor: float) -> Iterator[Told]:
    for kind, step, fields in fake_run.training(last, first=first, total=STEPS):
        if kind == "step":
            metrics = {**fields["metrics"], **_machine(step)}
            metrics["train/loss"] *= factor
            if step > 250:
                metrics["optimizer/learning_rate"] *= 0.5
            if step == 212:
                metrics |= {"gradients/norm": "nan", "train/loss": 9.5}
            yield kind, step, {"metrics": metrics}
            yield from _beside(step, factor)


def _machine(step: int) -> dict[str, float]:
    noise = random.Random(-step)
    told = {"data/epochs/prose": step * 0.004, "data/epochs/speech": step * 0.011, "throughput/mfu": 0.41}
    told |= {f"host/core/{n}": (n + 1) / CORES * (0.9 + 0.1 * noise.random()) for n in range(CORES)}
    for n in range(DEVICES):
        told |= {f"memory/device/{n}": 5.1e9 + 1e8 * n, f"power/device/{n}": 210 + 40 * noise.random() + 15 * n}
        told[f"utilization/device/{n}"] = 0.9 + 0.08 * noise.random()
    return told | {"time/data_wait": 0.004 + 0.03 * noise.random() ** 8, "parameters/norm": 60 + step / 40}


def _beside(step: int, factor: float) -> Iterator[Told]:
    """What happens after a step beside it."""
    if step % 50 == 0:
        for name, more in SETS.items():
            yield "evaluation_started", step, {"name": name}
            loss = factor * (1.98 + more + 6.3 * math.exp(-step / (0.1 * STEPS)))
            metrics = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / 2.1}
            named = {f"validation/{name}/{metric}": value for metric, value in metrics.items()}
            yield "evaluated", step, {"name": name, "metrics": named, "seconds": 2.1}
    if step % 100 == 0:
        for prompt, text in PROMPTS.items():
            yield "sampled", step, {"prompt": prompt, "text": f"{text} ({step}).", "seconds": 0.8}
        told = [["seven", 0.5 + step / 2000], ["one", 0.3 - step / 3000], ["two", 0.1]]
        seen = {"image": IMAGE, "predictions": told, "expected": "seven"}
        yield "sampled", step, {"prompt": "which digit", "text": " seven", "seconds": 0.1, **seen}
        yield "checkpoint_started", step, {"kind": "rolling"}
        kind = "final" if step == STEPS else "permanent" if step >= 400 else "rolling"
        size = {"path": f"checkpoints/{step}", "bytes": 38_200_000, "seconds": 0.3}
        yield "checkpoint_saved", step, {"kind": kind, **size}
    match step:
        case 40:
            yield "log", step, {"level": "warning", "message": "3 documents have no text and were left out"}
        case 212:
            yield "alert", step, {"kind": "spike", "message": "the loss is 9.5: 41 deviations above its median"}
        case 250:
            told = {"command": "rate", "argument": 0.5, "detail": "the learning rate is half of the schedule's"}
            yield "control", step, {**told, "total_steps": None}
        case 330:
            yield "log", step, {"level": "error", "message": "Aim does not answer; what it lacks is brought later"}
        case 450:
            order = {"command": "evaluate", "argument": None, "detail": "evaluated at step 450", "total_steps": None}
            yield "control", step, order
