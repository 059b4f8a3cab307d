"""What the data room costs over a bare loop, paired in one run. This machine is shared: trust the ratios.

uv run python scripts/bench/data.py tokenise   # trainkit cache-data over a bare loop, and over datasets
uv run python scripts/bench/data.py memory     # peak of the whole process tree; --large also at ten times the size
uv run python scripts/bench/data.py batches    # batch(step) over a view of one memory map; the first batch of a resume
uv run python scripts/bench/data.py shapes     # 10,000 tiny files, and one file of lines; --large: of 1 GB
uv run python scripts/bench/data.py            # all of it

The text is this interpreter's Python source, the standard library's and that of the installed packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from paired import TRAINKIT, begin, report

if TYPE_CHECKING:
    from trainkit.recipe import Recipe

#: Characters after which a source file is cut into another document, at the end of a line.
DOCUMENT = 4096
VOCABULARY = 32_768
#: Characters of text that the tokenizer is trained on.
TRAINED_ON = 20_000_000
RECIPE = """
schema = 1
[model]
type = "gpt2"
layers = 1
hidden = 64
heads = 1
[tokenizer]
path = {tokenizer}
[data]
sequence_length = 1024
cache = {cache}
[[data.train]]
path = {source}
[train]
steps = 1
batch_size = 1
[optimizer]
type = "adamw"
learning_rate = 1e-3
"""


def main() -> None:
    match sys.argv[1:]:
        case ["bare-loop", *paths]:
            return bare_loop(*map(Path, paths))
        case ["datasets", *paths]:
            return with_datasets(*map(Path, paths))
    benchmarks = {"tokenise": tokenise, "memory": memory, "batches": batches, "shapes": shapes}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*benchmarks, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=70, help="of JSON lines")
    parser.add_argument("--large", action="store_true", help="memory also at ten times that; shapes of 1 GB")
    parser.add_argument("--keep", type=Path, help="a directory for text and tokenizer, to be found there again")
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
        text = Text(arguments.keep or Path(directory))
        for what in arguments.what or benchmarks:
            with tempfile.TemporaryDirectory(prefix=f"{what}-", dir=directory) as here:
                benchmarks[what](Path(here), text, arguments)


# ---------------------------------------------------------------------------------------------------------------- text
class Text:
    """Real text in whatever size is asked for, and a tokenizer that was trained on it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def lines(self, megabytes: int) -> Path:
        """A file of JSON lines of about so many megabytes."""
        path = self._directory / f"text-{megabytes}.jsonl"
        if not path.exists():
            written, temporary = 0, path.with_suffix(".tmp")
            with temporary.open("w") as out:
                for document in _documents():
                    written += out.write(json.dumps({"text": document}) + "\n")
                    if written >= megabytes * 1_000_000:
                        break
            temporary.rename(path)
        return path

    def files(self, directory: Path, count: int, characters: int) -> None:
        """So many text files of at most so many characters, in a hundred directories."""
        for number, document in zip(range(count), _documents(characters), strict=False):
            path = directory / f"{number % 100:02d}" / f"{number:05d}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document)

    @property
    def tokenizer(self) -> Path:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        path = self._directory / "tokenizer.json"
        if not path.exists():
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=VOCABULARY,
                special_tokens=["<|endoftext|>"],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            some = (text for text, _ in zip(_documents(), range(TRAINED_ON // DOCUMENT), strict=False))
            tokenizer.train_from_iterator(some, trainer)
            tokenizer.save(str(path))
        return path


def _documents(characters: int = DOCUMENT) -> Iterator[str]:
    """Documents without end: what the installed Python source holds, and the same again with other names in it."""
    roots = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")}
    found = {path.resolve() for root in roots for path in root.rglob("*.py")}
    # in an order that does not put a package's files together
    paths = sorted(found, key=lambda path: hashlib.blake2b(str(path).encode()).digest())
    repeated = 0
    while True:
        for path in paths:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = path.read_text("utf-8")
                text = text.replace("self", f"self{repeated}").replace("0", str(repeated)) if repeated else text
                while text:
                    cut = len(text) if len(text) <= characters else text.rfind("\n", 0, characters) + 1 or characters
                    yield text[:cut]
                    text = text[cut:]
        repeated += 1


# ------------------------------------------------------------------------------------------------------------- measure
class Ran(NamedTuple):
    """A process from its start to its end."""

    seconds: float
    cores: float
    """CPU time, its own and the system's for it and its children, over time."""
    peak: int
    """Bytes of the tree of processes, each page shared out among those who have it; 0 where it was not watched."""
    output: str


def _run(command: list[str], *, watched: bool = False, environment: dict[str, str] | None = None) -> Ran:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        before = os.times()
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=out, stderr=errors, start_new_session=True, env=os.environ | (environment or {})
        )
        peaks, ended = [0], threading.Event()
        if watched:
            watcher = threading.Thread(target=lambda: peaks.append(_peak(child.pid, ended)))
            watcher.start()
        code = child.wait()
        seconds = time.perf_counter() - began
        ended.set()
        if watched:
            watcher.join()
        after = os.times()
        out.seek(0), errors.seek(0)
        if code:
            sys.exit(f"{' '.join(command)} ended with {code}:\n{errors.read()}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Ran(seconds, cpu / seconds, max(peaks), out.read())


def _peak(session: int, ended: threading.Event) -> int:
    """The most memory that the processes of a session had, looked at every 20 ms."""
    peak = 0
    while not ended.wait(0.02):
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            # a process may end between two looks
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                    rollup = stat.with_name("smaps_rollup").read_text()
                    total += int(rollup.partition("\nPss:")[2].split()[0]) * 1024
        peak = max(peak, total)
    return peak


def _cache_data(directory: Path, source: Path, text: Text, *, watched: bool = False) -> tuple[Ran, int, int]:
    """`trainkit cache-data` into an empty cache: what it took, its documents and its tokens."""
    recipe, cache = directory / "recipe.toml", directory / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    values = {"tokenizer": text.tokenizer, "cache": cache, "source": source}
    recipe.write_text(RECIPE.format(**{name: json.dumps(str(value)) for name, value in values.items()}))
    ran = _run([*TRAINKIT, "cache-data", str(recipe)], watched=watched)
    row = next(line.split() for line in ran.output.splitlines() if line.startswith("train "))
    return ran, int(row[1].replace(",", "")), int(row[-1].replace(",", ""))


# ------------------------------------------------------------------------------------------------------------ tokenise
def tokenise(directory: Path, text: Text, arguments: argparse.Namespace) -> None:
    """Tokens a second of the whole command, of the bare loop by itself and with its process, and of `datasets`."""
    source, tokenizer = text.lines(arguments.megabytes), text.tokenizer
    hub = {"HF_HOME": str(directory / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    me = [sys.executable, __file__]
    rates: dict[str, list[float]] = {"cache-data": [], "bare loop": [], "bare loop's process": [], "datasets": []}
    cores: dict[str, list[float]] = {"cache-data": [], "bare loop": [], "datasets": []}

    def ours() -> int:
        ran, documents, tokens = _cache_data(directory, source, text)
        rates["cache-data"].append(tokens / ran.seconds)
        cores["cache-data"].append(ran.cores)
        return tokens - documents

    def bare() -> int:
        ran = _run([*me, "bare-loop", str(source), str(tokenizer)])
        told = json.loads(ran.output)
        rates["bare loop"].append(told["tokens"] / told["seconds"])
        rates["bare loop's process"].append(told["tokens"] / ran.seconds)
        cores["bare loop"].append(ran.cores)
        return told["tokens"]

    def theirs() -> int:
        out = directory / "datasets"
        ran = _run([*me, "datasets", str(source), str(tokenizer), str(out)], environment=hub)
        shutil.rmtree(directory / "hub")
        tokens = json.loads(ran.output.splitlines()[-1])["tokens"]
        assert out.stat().st_size == 2 * tokens
        rates["datasets"].append(tokens / ran.seconds)
        cores["datasets"].append(ran.cores)
        return tokens

    for round_ in range(arguments.rounds):
        order: list[Callable[[], int]] = [ours, bare, theirs]
        counted = [one() for one in order[round_ % 3 :] + order[: round_ % 3]]
        assert len(set(counted)) == 1, f"the contenders do not agree on the text's tokens: {counted}"
    _say_rates(rates, cores)


def _say_rates(rates: dict[str, list[float]], cores: dict[str, list[float]]) -> None:
    million = {name: f"{statistics.median(found) / 1e6:.2f} M tokens/s" for name, found in rates.items()}
    for name in list(rates)[1:]:
        ratios = [a / b for a, b in zip(rates["cache-data"], rates[name], strict=True)]
        report(f"cache-data / {name}", ratios, f"{million['cache-data']} / {million[name]}")
        best = max(rates["cache-data"]) / max(rates[name])
        print(f"  best of each: x{best:.2f} ({max(rates['cache-data']) / 1e6:.2f} / {max(rates[name]) / 1e6:.2f})")
    whole = rates | {"bare loop": rates["bare loop's process"]}
    for name, found in cores.items():
        # hardly moved by what else the machine does, unlike time
        cpu = min(busy / rate * 1e6 for busy, rate in zip(found, whole[name], strict=True))
        print(f"{name}: {statistics.median(found):.2f} cores busy, at least {cpu:.2f} us of CPU a token", flush=True)


def bare_loop(source: Path, tokenizer_json: Path) -> None:
    """The least that tokenising can be: lines, their texts, tokens counted and let go. Run in a process of its own."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    began, tokens, batch = time.perf_counter(), 0, []
    with source.open("rb") as lines:
        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == 1000:
                tokens += sum(map(len, tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
                batch = []
    tokens += sum(map(len, tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
    print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}))


def with_datasets(source: Path, tokenizer_json: Path, out: Path) -> None:
    """The usual way: load, map in two processes, flatten into one array on disk. Run in a process of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its processes are what is parallel
    from datasets import Features, Sequence, Value, load_dataset
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))

    def encode(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": [one.ids for one in tokenizer.encode_batch_fast(rows["text"], add_special_tokens=False)]}

    dataset = load_dataset("json", data_files=str(source), split="train")
    features = Features({"ids": Sequence(Value("uint16"))})
    dataset = dataset.map(encode, batched=True, num_proc=2, remove_columns=["text"], features=features)
    tokens = 0
    with out.open("wb") as file:
        for table in dataset.with_format("arrow").iter(batch_size=1000):
            for chunk in table["ids"].chunks:
                tokens += len(ids := chunk.flatten().to_numpy())
                file.write(ids.tobytes())
    print(json.dumps({"tokens": tokens}))


# -------------------------------------------------------------------------------------------------------------- memory
def memory(directory: Path, text: Text, arguments: argparse.Namespace) -> None:
    """Peak memory of cache-data, all of its processes together."""
    sizes = [arguments.megabytes, *([10 * arguments.megabytes] if arguments.large else [])]
    for size in sizes:
        source = text.lines(size)
        ran = [_cache_data(directory, source, text, watched=True)[0] for _ in range(1 if size > 300 else 3)]
        peaks = [one.peak / 1e6 for one in ran]
        print(f"cache-data of {size} MB: peak {statistics.median(peaks):.0f} MB [{min(peaks):.0f} to {max(peaks):.0f}]")


# ------------------------------------------------------------------------------------------------------------- batches
def batches(directory: Path, text: Text, arguments: argparse.Namespace) -> None:
    """Time of batch(step) over that of the same windows of one memory map; and of the first batch of a resume."""
    _cache_data(directory, text.lines(arguments.megabytes), text)
    for rows, length, steps in ((16, 256, 2000), (64, 1024, 500), (512, 2048, 60)):
        _batch(directory, rows, length, steps, arguments.rounds)
    resumed = [_resume(directory) for _ in range(max(5, arguments.rounds))]
    find, first = ([one[i] * 1e3 for one in resumed] for i in (0, 1))
    print(
        f"resume at step 1,000,000, 16 x 256: first batch {statistics.median(first):.2f} ms"
        f" [{min(first):.2f} to {max(first):.2f}]; finding the cache before it {statistics.median(find):.1f} ms"
    )


def _batch(directory: Path, rows: int, length: int, steps: int, rounds: int) -> None:
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.cache import build as caches

    recipe = _recipe(directory, rows, length)
    cache = caches.find(recipe)
    assert cache is not None
    data = TrainSet(cache, recipe)
    flat = directory / "flat.bin"
    cache.train.windows(np.zeros(1, np.int64), cache.train.tokens).tofile(flat)
    view = np.lib.stride_tricks.sliding_window_view(np.asarray(np.memmap(flat, "<u2", "r")), length + 1)
    # the last example is padded, which a view cannot be: there it takes the last window
    starts = np.array([[min(row.example * length, len(view) - 1) for row in data.rows(step)] for step in range(steps)])
    for step in np.flatnonzero(starts.max(axis=1) < len(view) - 1)[::10].tolist():
        assert np.array_equal(data.batch(step)["tokens"], view[starts[step]][:, :-1])
    ours, floor = [], []
    for _ in range(rounds):
        ours.append(_times(data.batch, steps))
        floor.append(_times(lambda step: view[starts[step]], steps))
    best, best_floor = (min(map(min, found)) for found in (ours, floor))
    middle = [statistics.median(found) for found in ours]
    ratios = [a / statistics.median(b) for a, b in zip(middle, floor, strict=True)]
    mean = statistics.median(map(statistics.mean, ours))
    report(
        f"batch {rows} x {length} / sliding_window_view",
        ratios,
        f"{statistics.median(middle) * 1e6:.1f} us, mean {mean * 1e6:.1f}, best {best * 1e6:.1f};"
        f" the view's best {best_floor * 1e6:.1f}",
    )


def _times(batch: Callable[[int], object], steps: int) -> list[float]:
    times = []
    for step in range(steps):
        began = time.perf_counter()
        batch(step)
        times.append(time.perf_counter() - began)
    return times


def _resume(directory: Path) -> tuple[float, float]:
    """Seconds to find the cache, and from there to the batch of step 1,000,000."""
    from trainkit.data.batches.dataset import TrainSet
    from trainkit.data.cache import build as caches

    recipe = _recipe(directory, 16, 256)
    began = time.perf_counter()
    cache = caches.find(recipe)
    found = time.perf_counter()
    assert cache is not None
    TrainSet(cache, recipe).batch(1_000_000)
    return found - began, time.perf_counter() - found


def _recipe(directory: Path, rows: int, length: int) -> Recipe:
    from trainkit.recipe.toml.load import load

    overrides = [f"train.batch_size={rows}", f"data.sequence_length={length}"]
    return load(directory / "recipe.toml", overrides).recipe


# -------------------------------------------------------------------------------------------------------------- shapes
def shapes(directory: Path, text: Text, arguments: argparse.Namespace) -> None:
    """Whether cache-data uses all cores for many tiny files, and for one large one."""
    text.files(directory / "tiny", 10_000, 2000)
    line = text.lines(1000 if arguments.large else arguments.megabytes)
    of_lines = f"one file of lines, {line.stat().st_size / 1e6:.0f} MB"
    for name, source in (("10,000 tiny files", directory / "tiny/**/*.txt"), (of_lines, line)):
        found = [_cache_data(directory, source, text) for _ in range(min(3, arguments.rounds))]
        cores = [ran.cores for ran, _, _ in found]
        rates = [tokens / ran.seconds / 1e6 for ran, _, tokens in found]
        print(
            f"{name}: {statistics.median(cores):.2f} of {os.cpu_count()} cores busy [{min(cores):.2f} to"
            f" {max(cores):.2f}], {statistics.median(rates):.2f} M tokens/s, {found[0][0].seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
