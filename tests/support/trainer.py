"""Real trainers in processes of their own, on a recipe that is done in seconds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import forked
import held
from places import LIMIT

from trainkit import files
from trainkit.events.schema import Event
from trainkit.events.tail import Tail, read

WORDS = (
    "the cat sat on a mat and saw one dog run far from home while rain fell over all old roads near us".split()  # noqa: SIM905
)

RECIPE = """
schema = 1
[run]
name = "tiny"
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
path = "text/*.txt"
[train]
steps = 24
batch_size = 8
micro_batch_size = 1
[optimizer]
learning_rate = 1e-2
[schedule]
type = "cosine"
[checkpoint]
keep_every = 6
[evaluate]
every = 10
[sample]
every = 12
prompts = ["the cat"]
max_tokens = 8
[track]
aim = false
"""
#: The same without evaluations and samples, each of which a process would compile.
BARE = RECIPE.replace("held_out = 0.1\n", "").replace("[evaluate]\nevery = 10\n", "")
BARE = BARE.replace('[sample]\nevery = 12\nprompts = ["the cat"]\nmax_tokens = 8\n', "")


def workplace(directory: Path, recipe: str = RECIPE, *, documents: int = 60) -> Path:
    """A directory with a recipe and text that is the same every time."""
    chance = random.Random(0)
    (directory / "text").mkdir(parents=True)
    for i in range(documents):
        text = "\n".join(" ".join(chance.choices(WORDS, k=12)) for _ in range(chance.randrange(4, 30)))
        (directory / "text" / f"{i:03}.txt").write_text(text)
    (directory / "tiny.toml").write_text(recipe)
    return directory


def copied(run: Path, directory: Path) -> Path:
    """Copy the workplace that a run was made in; the run there, whose recipe has the paths of the copy."""
    place = run.parent.parent
    shutil.copytree(place, directory, dirs_exist_ok=True)
    copy = directory / run.relative_to(place)
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace(str(place), str(directory)))
    return copy


def edit_manifest(checkpoint: Path, edit: Callable[[str], str]) -> None:
    """Change the text of a checkpoint's manifest, which then has the checksum of its new text."""
    path = checkpoint / "manifest.json"
    body = path.read_text().rpartition(',\n "checksum"')[0] + "}"
    path.write_text(files.seal(edit(body)))


def inputs_copied(place: Path, to: Path) -> Path:
    """Copy a workplace without what was made in it: its runs, caches and exports."""
    return shutil.copytree(place, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs", "cache", "out"))


def environment(*, devices: int = 1, optimised: bool = False) -> dict[str, str]:
    """One CPU device, or so many fake ones; `optimised` as users have XLA, without what `conftest.py` tells it."""
    ours = ["JAX_NUM_CPU_DEVICES", "TRAINKIT_DEBUG"]
    ours += ["JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"] if optimised else []
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | ({"JAX_NUM_CPU_DEVICES": str(devices)} if devices > 1 else {})


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainkit", *arguments]


def trainkit(
    directory: Path, *arguments: str, text: str = "", devices: int = 1, optimised: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in `directory`, with `text` on its standard input.

    It is forked from a process that has imported what it needs; where it is `optimised`, it is started as users do it.
    """
    around = environment(devices=devices, optimised=optimised)
    if not optimised:
        return forked.run(arguments, cwd=directory, env=around, text=text, timeout=LIMIT)
    return subprocess.run(
        command(*arguments), cwd=directory, env=around, capture_output=True, text=True, timeout=LIMIT, input=text
    )


def run_of(directory: Path, *arguments: str, devices: int = 1) -> Path:
    """Return the run of `directory`/tiny.toml, which is trained to its end."""
    done = trainkit(directory, "run", "tiny.toml", "--plain", *arguments, devices=devices)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "runs" / "tiny"


class Trainer:
    """A trainer that can be watched through its log and killed. Always killed in the end.

    It is started with another `program` where one is given, which sees the same arguments. It stands still right after
    the event that `held_at` names, such as "step 3", until it is killed or released.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        run: str = "tiny",
        optimised: bool = False,
        program: str = "",
        held_at: str = "",
    ) -> None:
        self.run = directory / "runs" / run
        self._tail = Tail(self.run, offset=self._size())
        self._output = (directory / "output.txt").open("a")
        start: Callable[..., subprocess.Popen[bytes] | forked.Forked] = partial(forked.Forked, arguments)
        if optimised or program:
            named = {"program": program} if program else {}
            start = partial(subprocess.Popen, held.held_command(*arguments, **named))
        around = environment(optimised=optimised) | {held.HELD_AT: held_at}
        self.process = start(cwd=directory, env=around, stdout=self._output, stderr=self._output)

    def until(self, wanted: Callable[[Event], bool]) -> Event | None:
        """The first event that is wanted; None where the process ended before there was one."""
        for event in self._events():
            if wanted(event):
                return event
        return None

    def kill(self) -> None:
        """As the kernel does when memory runs out: no handler, no goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT)

    def release(self, signal_first: int | None = None) -> None:
        """Let it go on from where it was held, and first hear this signal."""
        if signal_first is not None:
            self.process.send_signal(signal_first)
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        return self.process.wait(LIMIT)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        self._output.close()

    def _size(self) -> int:
        log = self.run / "events.jsonl"
        return log.stat().st_size if log.exists() else 0

    def _events(self) -> Iterator[Event]:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            events = self._tail.poll()
            yield from events
            if ended and not events:
                return
            time.sleep(0.001)
        raise TimeoutError(f"the trainer wrote nothing that was waited for in {LIMIT} s")


def killed_and_resumed(directory: Path, *, saved: int) -> Path:
    """Return the run of `directory`/tiny.toml, killed once the checkpoint of this step was saved, and resumed."""
    killed_at(f"checkpoint_saved {saved}", directory, "run", "tiny.toml", "--plain")
    done = trainkit(directory, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "runs" / "tiny"


def killed_at(event: str, directory: Path, *arguments: str, run: str = "tiny") -> None:
    """Kill a command in the moment after an event of the run, such as "step 3"."""
    kind, step = event.split()
    with Trainer(directory, *arguments, run=run, held_at=event) as trainer:
        found = trainer.until(lambda e: e["type"] == kind and e["step"] == int(step))
        assert found, (directory / "output.txt").read_text()
        trainer.kill()


def evaluations(run: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of the newest evaluation at each step."""
    return {event["step"]: event["metrics"] for event in read(run) if event["type"] == "evaluated"}


def losses(run: Path) -> dict[int, float]:
    return {event["step"]: event["metrics"]["train/loss"] for event in read(run) if event["type"] == "step"}


def ending(run: Path) -> tuple[str, int, str]:
    """Return status, step and message of the end of a run's newest attempt."""
    event = [event for event in read(run) if event["type"] == "run_finished"][-1]
    return event["status"], event["step"], event["message"]


def arrays(run: Path, step: int) -> dict[str, bytes]:
    """Every file of a checkpoint but its manifest: equal where all of the state is equal, bit for bit."""
    root = run / "checkpoints" / str(step) / "arrays"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
